"""Put the trained parts of a demo together into one checkpoint directory.

    python -m train.export --tokenizer DIR --target DIR --drafter DIR --trees FILE --card FILE --out DIR

or write a checkpoint directory again with a drafter trained for it:

    python -m train.export --checkpoint DIR --drafter DIR --out DIR

The demo's weights are rounded to half precision, which is what ships; `python -m train.evaluate` measures them so.
A drafter takes the precision of its checkpoint's target.

Axes: V codes, K neighbours.
"""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
from absl import app, flags, logging

from lantern_jax.checkpoints.store import Checkpoint, check_new, load, save
from lantern_jax.data.prompts import LANDSCAPES
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.files import write_file
from train import drafter, target, tokenizer
from train.loop import read_config

# More than any rule needs: beyond a hundred neighbours LANTERN's bound, not their number, decides.
NEIGHBOURS = 128


def build(
    tokenizer_folder: str | Path,
    target_folder: str | Path,
    drafter_folder: str | Path,
    *,
    model: str,
    defaults: dict,
    metadata: dict,
) -> Checkpoint:
    """The checkpoint of three training runs; neighbours are those of the codes as the decoder sees them."""
    vq_config, vq_params = tokenizer.export(tokenizer_folder)
    target_sizes, target_params = target.export(target_folder)
    drafter_sizes, drafter_params = drafter.export(drafter_folder, target_folder)
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
        drafter_config=drafter_sizes,
        drafter_params={"params": drafter_params},
        codebook=Codebook(neighbours=neighbours, codes=codes),
        vocabulary=LANDSCAPES,
        defaults=defaults,
        metadata=metadata,
    )


def with_drafter(checkpoint_folder: str | Path, drafter_folder: str | Path) -> Checkpoint:
    """A checkpoint with the drafter of a training run in place of any other.

    Raises ValueError where a folder holds none, or the drafter was trained for another target.
    """
    old = load(checkpoint_folder, None)
    sizes, params = drafter.export(drafter_folder, checkpoint_folder)
    dtype = jax.tree.leaves(old.target_params)[0].dtype
    config = read_config(drafter_folder)
    recipe = {name: config[name] for name in ("steps", "batch_size", "passes", "guidance", "seed")}
    return dataclasses.replace(
        old,
        drafter_config=sizes,
        drafter_params={"params": jax.tree.map(lambda leaf: leaf.astype(dtype), params)},
        metadata=old.metadata | {"drafter": recipe},
    )


def add_drafter(options: flags.FlagValues) -> None:
    check_new(options.out, options.overwrite)
    save(options.out, with_drafter(options.checkpoint, options.drafter), overwrite=options.overwrite)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    if options.checkpoint is not None:
        return add_drafter(options)
    missing = [name for name in ("tokenizer", "target", "trees") if options[name].value is None]
    if missing:
        raise ValueError(f"--{missing[0]} is missing: give it, or a --checkpoint to add the drafter to")
    trees = json.loads(Path(options.trees).read_text())
    defaults = {
        "guidance": options.guidance,
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
    flags.DEFINE_string("drafter", None, "working folder of the drafter's training run")
    flags.DEFINE_string("model", "demo", "the model's name")
    flags.DEFINE_string("trees", None, "trees.json that train.tree wrote")
    flags.DEFINE_string("tree", "demo_4", "the default on CPUs, where a round is bound by arithmetic")
    flags.DEFINE_string("large", "demo_57", "the default on accelerators")
    flags.DEFINE_float("guidance", 2.0, "default guidance")
    flags.DEFINE_string("card", None, "model card to put beside the weights")
    flags.DEFINE_string("out", None, "checkpoint directory; an older checkpoint there is replaced")
    flags.DEFINE_string("checkpoint", None, "checkpoint directory to write again with the drafter")
    flags.DEFINE_boolean("overwrite", False, "with --checkpoint: replace a checkpoint that exists")
    flags.mark_flags_as_required(["drafter", "out"])
    app.run(main)
