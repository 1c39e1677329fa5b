"""Real lengths at a published size: trains LlamaGen's shape on painted landscapes, and replays nothing.

    python -m train.encode --tokenizer lantern_jax/assets/demo --workdir TOKENS --pictures 65536
    python -m eval.trained --tokens TOKENS --work DIR [--size XL] [--pictures 32] [--STAGE.NAME=VALUE ...]

The stages are the target, an EAGLE drafter for it, and the pictures: every method of ``METHODS`` beside plain decoding,
in bfloat16 and in float32, as `eval.methods` compares them. Its rows go to DIR/bfloat16.jsonl and DIR/float32.jsonl; a
copy in docs/results becomes a table of that page. The model, DIR/model, draws with the demo's tokenizer.

Each stage is a process; finished ones are skipped, and a killed one continues. ``--target.steps=3000`` and
``--drafter.batch_size=32`` change values of the two experiments.
"""

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import demo_directory, load, load_shapes, save
from lantern_jax.families.llamagen.model import SIZES, published_config
from lantern_jax.io import errors
from lantern_jax.io.files import read_text, write_file
from train import script, target
from train.demo import ROOT, changes_of, run_stage
from train.export import read_drafters
from train.fit import fitted
from train.script import Experiment

METHODS = ("jacobi", "led", "lantern++", "led lantern++")
DTYPES = ("bfloat16", "float32")
# The shape in small, for trials of the stages.
TINY = {"num_layers": 2, "num_heads": 2, "dim": 64, "hidden_dim": 128}
# Adam's rate in configs/demo_target.py is for a width of 256; five to ten minutes of an H100 for XL.
_TARGET = {"steps": 2000, "warmup": 200, "save_every": 250, "adam_rate": 1e-3}
_DRAFTER = {"steps": 1500, "warmup": 50, "save_every": 250, "scored": 0.25, "adam_rate": 1e-3}
_FITTED_ON = 16


def sizes_of(size: str) -> dict[str, int]:
    """Returns the layers' sizes of a published size, as experiments take them."""
    if size == "tiny":
        return TINY
    layers = published_config(size).transformer
    return {name: getattr(layers, name) for name in TINY}


def training(
    size: str, tokens: Path, work: Path, changes: Mapping[tuple[str, str], str]
) -> dict[str, list[str]]:
    """Returns the arguments of Python for both trainings, by stage; raises LanternError for a wrong change."""
    layers = sizes_of(size)
    values: dict[str, dict[str, Any]] = {
        "target": _TARGET | {f"model.{name}": value for name, value in layers.items()},
        "drafter": _DRAFTER | {f"model.{name}": layers[name] for name in ("num_heads", "hidden_dim")},
    }
    for (stage, name), value in changes.items():
        if stage not in values:
            raise errors.unknown("stage", stage, values)
        values[stage][name] = value
    for stage, changed in values.items():
        experiment = script.read_experiment(Experiment(ROOT / "configs" / f"demo_{stage}.py"))
        script.change(experiment, {name: str(value) for name, value in changed.items()}, f"--{stage}.")
    return {
        stage: [
            "-m", f"train.{stage}", f"--config={ROOT}/configs/demo_{stage}.py", f"--tokens={tokens}",
            f"--workdir={work / stage}", *(f"--config.{name}={value}" for name, value in values[stage].items()),
            *([f"--target={work / 'target'}"] if stage == "drafter" else []),
        ]
        for stage in values
    }  # fmt: skip


def assembled(work: Path, size: str) -> Checkpoint:
    """Returns what was trained as a checkpoint with the demo's tokenizer and codebook."""
    trained, demo = target.read_target(work / "target"), load(demo_directory(), None)
    checkpoint = dataclasses.replace(
        demo,
        model=f"llamagen-{size.lower()} of landscapes",
        target_config=trained.target_config,
        target_params=trained.target_params,
        drafters=read_drafters([work / "drafter"], trained),
        defaults=dict(target.SAMPLING),
        metadata={"data": "procedural landscapes"},
    )
    return fitted(checkpoint, "eagle", _FITTED_ON)


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, writes the model and measures."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tokens", type=arguments.folder, required=True, help="folder that train.encode wrote")
    add("--work", type=arguments.working_folder, required=True, help="where the stages work")
    add("--size", choices=("tiny", *SIZES), default="XL", help="LlamaGen's (default: XL)")
    add("--pictures", type=arguments.whole(2), default=32, help="of each method (default: 32)")
    options, rest = parser.parse_known_args(argv)
    work, model = options.work.absolute(), options.work.absolute() / "model"
    commands = training(options.size, options.tokens.absolute(), work, changes_of(rest))
    target.read_tokens(options.tokens, "train")
    try:
        if not model.exists():
            for command in commands.values():
                run_stage([sys.executable, *command], cwd=ROOT)
            save(model, assembled(work, options.size), dtype=np.float32)
        changed = shlex.join([f"--size={options.size}", f"--pictures={options.pictures}", *rest])
        recipe = f"python -m eval.trained --tokens DIR --work DIR {changed}"
        named = {"model": load_shapes(model).model, "command": recipe}
        for dtype in DTYPES:
            run_stage([
                sys.executable, "-m", "eval.methods", f"--work={work / dtype}", f"--model={model}", "--methods",
                *METHODS, f"--pictures={options.pictures}", "--batch=1", f"--dtype={dtype}",
            ], cwd=ROOT)  # fmt: skip
            lines = read_text(work / dtype / "quality.jsonl", 2**24).splitlines()
            rows = "".join(json.dumps(json.loads(line) | named) + "\n" for line in lines)
            write_file(work / f"{dtype}.jsonl", rows)
    except subprocess.CalledProcessError as failed:
        # The stage said why.
        raise SystemExit(failed.returncode if failed.returncode > 0 else 1) from None


if __name__ == "__main__":
    run_script(main)
