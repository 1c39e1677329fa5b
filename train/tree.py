"""Grow draft trees from the statistics of a target and a drafter that are in training.

    python -m train.tree --target DIR --drafter DIR --workdir DIR [--name=demo] [--sizes=4,6,8,12,16,25,57]

Random landscapes are decoded plainly, and the trees that would have accepted the most are taken
(`lantern_jax.tuning.paths`). A checkpoint of any family has `lantern tune`, which weighs that against what trees cost.

Writes WORKDIR/trees.json ({name: paths}) and WORKDIR/ranks.json (statistics).
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
from absl import app, flags, logging

from lantern_jax.files import write_files
from lantern_jax.models.drafters import kind_name
from lantern_jax.pipeline import Pipeline
from lantern_jax.text.encoded import EncodedPrompts
from lantern_jax.tuning.paths import (
    TreePath,
    expected_tokens,
    grow_tree,
    path_counts,
    rank_probabilities,
    roots,
)
from lantern_jax.tuning.ranks import collect_ranks
from lantern_jax.tuning.samples import Samples
from train import drafter, target
from train.sources import random_labels

BATCH = 16


def grow(
    target_folder: str | Path, drafter_folder: str | Path, workdir: str | Path,
    *, name: str, sizes: list[int], pictures: int, seed: int,
) -> dict[str, list[TreePath]]:  # fmt: skip
    """Collect ranks and write the trees `name`_SIZE of all sizes and their statistics."""
    config, params = drafter.export(drafter_folder, target_folder)
    kind = kind_name(config)
    checkpoint = dataclasses.replace(
        target.read_target(target_folder), drafters={kind: (config, {"params": params})}
    )
    labels = random_labels(np.random.default_rng(seed), pictures)
    prompts = EncodedPrompts("labels", tuple(map(str, range(pictures))), {"labels": labels})
    samples = Samples(Pipeline(checkpoint, np.float32), prompts, seed)
    settings, batch = samples.settings({"method": "ar"}), min(BATCH, pictures)
    plain = samples.decode(samples.pipeline.job(settings), 0, pictures, batch)
    ranks = roots(collect_ranks(samples, kind, settings, plain.tokens, batch=batch))
    counts = path_counts(ranks)
    trees = {f"{name}_{size}": grow_tree(counts, size) for size in sizes}
    statistics = {
        "roots": len(ranks),
        "rank_probability": rank_probabilities(ranks),
        "expected_tokens_per_pass": {
            name: round(expected_tokens(counts, len(ranks), paths), 3) for name, paths in trees.items()
        },
    }
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    values = {"ranks": statistics, "trees": trees}
    write_files({workdir / f"{part}.json": json.dumps(value) + "\n" for part, value in values.items()})
    return trees


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    grow(
        options.target,
        options.drafter,
        options.workdir,
        name=options.name,
        sizes=[int(size) for size in options.sizes],
        pictures=options.pictures,
        seed=options.seed,
    )
    print((Path(options.workdir) / "ranks.json").read_text())


if __name__ == "__main__":
    flags.DEFINE_string("target", None, "working folder of the target's training run")
    flags.DEFINE_string("drafter", None, "working folder of the drafter's training run")
    flags.DEFINE_string("workdir", None, "where trees.json and ranks.json go")
    flags.DEFINE_string("name", "demo", "the trees are called NAME_SIZE")
    flags.DEFINE_list(
        "sizes", ["4", "6", "8", "12", "16", "25", "57"], "nodes of the trees, root not counted"
    )
    flags.DEFINE_integer("pictures", 64, "pictures to decode", lower_bound=1)
    flags.DEFINE_integer("seed", 1000, "of prompts and pictures")
    flags.mark_flags_as_required(["target", "drafter", "workdir"])
    app.run(main)
