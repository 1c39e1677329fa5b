"""Put the trained parts of a demo together into one checkpoint directory.

    python -m train.export --tokenizer DIR --target DIR --drafter DIR --trees FILE --card FILE --out DIR

Weights are rounded to half precision, which is what ships; `python -m train.evaluate` measures them so.

Axes: V codes, K neighbours.
"""

import json
from pathlib import Path

import numpy as np
from absl import app, flags, logging

from lantern_jax.checkpoints.store import Checkpoint, save
from lantern_jax.data.prompts import LANDSCAPES
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.decoding.neighbours import nearest_codes
from train import drafter, target, tokenizer

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


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
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
        (Path(options.out) / "README.md").write_text(Path(options.card).read_text())


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
    flags.mark_flags_as_required(["tokenizer", "target", "drafter", "trees", "out"])
    app.run(main)
