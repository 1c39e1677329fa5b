"""Put the trained parts of a demo together into one checkpoint directory.

    python -m train.export --tokenizer DIR --target DIR --drafter DIR --trees FILE --card FILE --out DIR

or write a checkpoint directory again with drafters trained for it, each in place of an old one of its kind:

    python -m train.export --checkpoint DIR --drafter DIR --out DIR

`--drafter` may be given several times, once for a kind. What kind a run's drafter is stands in the run's config.

The demo's weights are rounded to half precision, which is what ships; `python -m train.evaluate` measures them so.
A drafter takes the precision of its checkpoint's target.

Axes: V codes, K neighbours.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging
from jaxtyping import PyTree

from lantern_jax.checkpoints.store import Checkpoint, check_new, load, save
from lantern_jax.data.prompts import LANDSCAPES
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.files import write_file
from lantern_jax.models.drafters import kind_name
from train import drafter, target, tokenizer
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
    """The checkpoint of three training runs; neighbours are those of the codes as the decoder sees them."""
    vq_config, vq_params = tokenizer.export(tokenizer_folder)
    target_sizes, target_params = target.export(target_folder)
    codes = vq_params["codebook"]
    if vq_config.l2_norm:
        codes = codes / np.linalg.norm(codes, axis=-1, keepdims=True)
    neighbours = nearest_codes(codes, min(NEIGHBOURS, len(codes) - 1))
    return Checkpoint(
        model=model,
        target_config=target_sizes,
        target_params={"params": target_params},
        tokenizer_config=vq_config,
        tokenizer_params={"params": vq_params},
        drafters=read_drafters(drafter_folders, target_folder),
        codebook=Codebook(neighbours=neighbours, codes=codes),
        vocabulary=LANDSCAPES,
        defaults=defaults,
        metadata=metadata,
    )


def read_drafters(
    drafter_folders: Sequence[str | Path], target_folder: str | Path
) -> dict[str, tuple[Any, PyTree]]:
    """{kind: (config, parameters)} of training runs; ValueError where two are of one kind or a folder holds none."""
    drafters: dict[str, tuple[Any, PyTree]] = {}
    for folder in drafter_folders:
        config, params = drafter.export(folder, target_folder)
        kind = kind_name(config)
        if kind in drafters:
            raise ValueError(
                f"{folder} is a second drafter of the kind {kind}: a checkpoint holds one a kind"
            )
        drafters[kind] = (config, {"params": params})
    return drafters


def with_drafters(checkpoint_folder: str | Path, drafter_folders: Sequence[str | Path]) -> Checkpoint:
    """A checkpoint with the drafters of training runs, each in place of any other of its kind.

    Raises ValueError where a folder holds none, or a drafter was trained for another target.
    """
    old = load(checkpoint_folder, None)
    dtype = jax.tree.leaves(old.target_params)[0].dtype
    drafters = read_drafters(drafter_folders, checkpoint_folder)
    rounded = {
        kind: (config, jax.tree.map(lambda leaf: leaf.astype(dtype), params))
        for kind, (config, params) in drafters.items()
    }
    recipes = {
        kind: _recipe(read_config(folder)) for kind, folder in zip(drafters, drafter_folders, strict=True)
    }
    return dataclasses.replace(
        old,
        drafters={**old.drafters, **rounded},
        metadata=old.metadata | {"drafters": old.metadata.get("drafters", {}) | recipes},
    )


def _recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's config is worth knowing of its drafter."""
    names = ("steps", "batch_size", "passes", "guidance", "seed")
    return {name: config[name] for name in names if name in config}


def add_drafters(options: flags.FlagValues) -> None:
    check_new(options.out, options.overwrite)
    save(options.out, with_drafters(options.checkpoint, options.drafter), overwrite=options.overwrite)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    if options.checkpoint is not None:
        return add_drafters(options)
    missing = [name for name in ("tokenizer", "target", "trees") if options[name].value is None]
    if missing:
        raise ValueError(f"--{missing[0]} is missing: give it, or a --checkpoint to add the drafters to")
    trees = json.loads(Path(options.trees).read_text())
    defaults = {
        "guidance": options.guidance,
        # Measured on an H100: where few kernels count, no drafter beats a drafter's fewer passes.
        "method": {"cpu": "led", "gpu": "jacobi"},
        "tree": {"cpu": trees[options.tree], "gpu": trees[options.large], "tpu": trees[options.large]},
    }
    checkpoint = build(
        options.tokenizer,
        options.target,
        options.drafter,
        model=options.model,
        defaults=defaults,
        metadata={"data": "procedural landscapes", "trees": trees},
    )
    save(options.out, checkpoint, dtype=np.float16, overwrite=True)
    if options.card:
        write_file(Path(options.out) / "README.md", Path(options.card).read_bytes())


if __name__ == "__main__":
    flags.DEFINE_string("tokenizer", None, "working folder of the tokenizer's training run")
    flags.DEFINE_string("target", None, "working folder of the target's training run")
    flags.DEFINE_multi_string(
        "drafter", None, "working folder of a drafter's training run; several, one a kind"
    )
    flags.DEFINE_string("model", "demo", "the model's name")
    flags.DEFINE_string("trees", None, "trees.json that train.tree wrote")
    flags.DEFINE_string("tree", "demo_4", "the default on CPUs, where a round is bound by arithmetic")
    flags.DEFINE_string("large", "demo_57", "the default on accelerators")
    flags.DEFINE_float("guidance", 2.0, "default guidance")
    flags.DEFINE_string("card", None, "model card to put beside the weights")
    flags.DEFINE_string("out", None, "checkpoint directory; an older checkpoint there is replaced")
    flags.DEFINE_string("checkpoint", None, "checkpoint directory to write again with the drafters")
    flags.DEFINE_boolean("overwrite", False, "with --checkpoint: replace a checkpoint that exists")
    flags.mark_flags_as_required(["drafter", "out"])
    app.run(main)
