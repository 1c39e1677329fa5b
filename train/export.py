"""Put the trained parts of a demo together into one checkpoint directory.

    python -m train.export --tokenizer DIR --target DIR --drafter DIR --trees FILE --card FILE --out DIR

or write a checkpoint directory again with drafters trained for it, each replacing an older one of its kind:

    python -m train.export --checkpoint DIR --drafter DIR --out DIR

`--drafter` may be given several times, once per kind; a run's config names its kind.

The demo's weights are rounded to half precision, which is what ships and what `python -m train.evaluate` measures.
A drafter takes the precision of its checkpoint's target.

Axes: V codes, K neighbours.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.convert.conversion import add_drafters
from lantern_jax.apps.convert.convert import make_codebook
from lantern_jax.apps.terminal import locks
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import check_new, load, save
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.drafters.registry import kind_name
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_bounded, read_json, write_file
from train import drafter, script, target
from train.encode import read_tokenizer
from train.fit import fitted
from train.loop import read_config

# More than any rule needs: beyond a hundred neighbours LANTERN's bound, not their number, decides.
NEIGHBOURS = 128


def build(
    tokenizer_folder: str | Path,
    target_folder: str | Path,
    drafter_folders: Sequence[str | Path],
    *,
    model: str,
    defaults: dict,
    metadata: dict,
) -> Checkpoint:
    """Builds a checkpoint from training runs; codes are neighbours by how the decoder sees them.

    The tokenizer's folder is as `read_tokenizer` takes it.
    """
    vq_config, params, *_ = read_tokenizer(tokenizer_folder)
    vq_params = {"params": params}
    trained = target.read_target(target_folder)
    return Checkpoint(
        model=model,
        target_config=trained.target_config,
        target_params=trained.target_params,
        tokenizer_config=vq_config,
        tokenizer_params=vq_params,
        drafters=read_drafters(drafter_folders, trained),
        codebook=make_codebook(vq_config, vq_params, NEIGHBOURS),
        vocabulary=trained.vocabulary,
        defaults=defaults,
        metadata=metadata,
    )


def read_drafters(
    drafter_folders: Sequence[str | Path], checkpoint: Checkpoint
) -> dict[str, tuple[Any, PyTree]]:
    """Reads {kind: (config, parameters)} from runs for a checkpoint's target.

    Raises LanternError if two are of the same kind, a folder holds none, or a drafter was trained for another target.
    """
    drafters: dict[str, tuple[Any, PyTree]] = {}
    for folder in drafter_folders:
        config, params = drafter.export(folder, checkpoint)
        kind = kind_name(config)
        if kind in drafters:
            raise LanternError(
                f"{folder} is a second drafter of the kind {kind}: a checkpoint holds one per kind"
            )
        drafters[kind] = (config, {"params": params})
    return drafters


def with_drafters(checkpoint_folder: str | Path, drafter_folders: Sequence[str | Path]) -> Checkpoint:
    """Reads a checkpoint and adds the drafters of training runs, which replace others of their kinds.

    Raises LanternError if a folder holds none, or a drafter was trained for another target.
    """
    old = load(checkpoint_folder, None)
    dtype = jax.tree.leaves(old.target_params)[0].dtype
    drafters = read_drafters(drafter_folders, old)
    rounded = {
        kind: (config, jax.tree.map(lambda leaf: leaf.astype(dtype), params))
        for kind, (config, params) in drafters.items()
    }
    recipes = {
        kind: _recipe(read_config(folder)) for kind, folder in zip(drafters, drafter_folders, strict=True)
    }
    return add_drafters(old, rounded, recipes)


def _recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a run's config that a checkpoint's metadata keeps."""
    names = ("steps", "batch_size", "passes", "guidance", "seed")
    return {name: config[name] for name in names if name in config}


def write_with_drafters(options: argparse.Namespace) -> None:
    check_new(options.out, options.overwrite)
    save(options.out, with_drafters(options.checkpoint, options.drafter), overwrite=options.overwrite)


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    wanted = "working folder of the tokenizer's training run, or a checkpoint directory"
    add("--tokenizer", type=arguments.folder, help=wanted)
    add("--target", type=arguments.folder, help="working folder of the target's training run")
    wanted = "working folder of a drafter's training run; may be given once per kind"
    add("--drafter", type=arguments.folder, action="append", required=True, help=wanted)
    add("--model", default="demo", help="the model's name")
    add("--trees", type=arguments.file, help="trees.json that train.tree wrote")
    add("--tree", default="demo_4", help="the default on CPUs, where a round is bound by arithmetic")
    add("--large", default="demo_57", help="the default on accelerators")
    add("--guidance", type=arguments.number(), default=target.SAMPLING["guidance"], help="default guidance")
    wanted = "default temperature"
    add("--temperature", type=arguments.number(), default=target.SAMPLING["temperature"], help=wanted)
    add(
        "--fit", type=arguments.whole(0), default=0, help="pictures to fit drafting to (train.fit); 0: do not"
    )
    add("--card", type=arguments.file, help="model card to put beside the weights")
    add("--out", required=True, metavar="DIR", help="checkpoint directory; an older one there is replaced")
    add("--checkpoint", type=arguments.folder, help="checkpoint directory to write again with the drafters")
    add("--overwrite", action="store_true", help="with --checkpoint: replace a checkpoint that exists")
    options = parser.parse_args(argv)
    check_new(options.out, options.overwrite or options.checkpoint is None)
    if options.checkpoint is not None and options.fit:
        raise LanternError(
            "--fit is not for --checkpoint: leave it out, and run train.fit on what is written"
        )
    for folder in options.drafter:
        read_config(folder)
    with locks.sole(options.out):
        export(options)


def export(options: argparse.Namespace) -> None:
    """Writes the checkpoint."""
    if options.checkpoint is not None:
        return write_with_drafters(options)
    missing = [name for name in ("tokenizer", "target", "trees") if getattr(options, name) is None]
    if missing:
        raise LanternError(f"--{missing[0]} is missing: give it, or a --checkpoint to add the drafters to")
    with script.reading(options.trees, "give trees.json that train.tree wrote"):
        trees = read_json(options.trees, 2**20)
        tree, large = trees[options.tree], trees[options.large]
    defaults = {
        "guidance": options.guidance,
        "temperature": options.temperature,
        # Measured on two cores and on an H100: having no drafter, which costs nothing, beats a drafter's fewer passes.
        "method": {"cpu": "jacobi", "gpu": "jacobi"},
        "tree": {"cpu": str(DraftTree(tree)), "gpu": str(DraftTree(large))},
    }
    checkpoint = build(
        options.tokenizer,
        options.target,
        options.drafter,
        model=options.model,
        defaults=defaults,
        metadata={"data": "procedural landscapes", "trees": trees},
    )
    if options.fit:
        checkpoint = fitted(checkpoint, "eagle", options.fit)
    save(options.out, checkpoint, dtype=np.float16, overwrite=True)
    if options.card:
        write_file(Path(options.out) / "README.md", read_bounded(options.card, 2**20))
    return None


if __name__ == "__main__":
    run_script(main)
