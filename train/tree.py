"""Grow draft trees from the statistics of a target and a drafter that are in training.

    python -m train.tree --target DIR --drafter DIR --workdir DIR [--name=demo] [--sizes=4,6,8,12,16,25,57]

Random landscapes are decoded plainly, and the trees that would have accepted the most tokens are taken
(`lantern_jax.apps.measuring.paths`). For a checkpoint of any family, `lantern tune` also weighs the costs of trees.

Writes WORKDIR/trees.json ({name: paths}) and WORKDIR/ranks.json (statistics).
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.measuring.paths import (
    MAX_DEPTH,
    TreePath,
    expected_tokens,
    growth,
    path_counts,
    rank_probabilities,
    roots,
)
from lantern_jax.apps.measuring.ranks import collect_ranks
from lantern_jax.apps.measuring.subject import checkpoint_subject
from lantern_jax.drafters.registry import kind_name
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_text, write_files
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.text.encoded import EncodedPrompts
from train import drafter, script, target
from train.loop import working
from train.sources import random_labels

BATCH = 16


def grow_tree(counts: Counter[TreePath], size: int, depth: int = MAX_DEPTH) -> list[TreePath]:
    """Returns the tree of ``size`` nodes below the root that accepts most by these counts, level by level.

    Raises:
        LanternError: fewer paths were seen.
    """
    paths = growth(counts, size, depth)
    if len(paths) < size:
        raise LanternError(f"a tree of {size} nodes from {len(paths)} observed paths; decode more pictures")
    return sorted(paths, key=lambda path: (len(path), path))


def grow(
    target_folder: str | Path, drafter_folder: str | Path, workdir: str | Path,
    *, name: str, sizes: list[int], pictures: int, seed: int,
) -> dict[str, list[TreePath]]:  # fmt: skip
    """Collects ranks, and writes the trees `name`_SIZE of all sizes and their statistics."""
    checkpoint = target.read_target(target_folder)
    config, params = drafter.export(drafter_folder, checkpoint)
    kind = kind_name(config)
    checkpoint = dataclasses.replace(checkpoint, drafters={kind: (config, {"params": params})})
    labels = random_labels(checkpoint.vocabulary, np.random.default_rng(seed), pictures)
    prompts = EncodedPrompts("labels", tuple(map(str, range(pictures))), {"labels": labels})
    subject = checkpoint_subject("target", Pipeline(checkpoint, np.float32), prompts, seed)
    settings, batch = subject.settings({"method": "ar"}), min(BATCH, pictures)
    plain = subject.decode(subject.job(settings), 0, pictures, batch)
    ranks = roots(collect_ranks(subject, kind, settings, plain.tokens, batch=batch))
    counts = path_counts(ranks)
    trees = {f"{name}_{size}": grow_tree(counts, size) for size in sizes}
    statistics = {
        "roots": len(ranks),
        "rank_probability": rank_probabilities(ranks),
        "expected_tokens_per_pass": {
            name: round(expected_tokens(counts, len(ranks), paths), 3) for name, paths in trees.items()
        },
    }
    values = {"ranks": statistics, "trees": trees}
    with working(workdir):
        write_files(
            {Path(workdir) / f"{part}.json": json.dumps(value) + "\n" for part, value in values.items()}
        )
    return trees


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    add("--target", type=arguments.folder, required=True, help="working folder of the target's training run")
    add(
        "--drafter", type=arguments.folder, required=True, help="working folder of the drafter's training run"
    )
    script.add_workdir(parser, "where trees.json and ranks.json go")
    add("--name", default="demo", help="the trees are called NAME_SIZE (default: demo)")
    sizes = "4,6,8,12,16,25,57"
    add(
        "--sizes",
        type=arguments.wholes,
        default=sizes,
        help=f"nodes of the trees, root not counted ({sizes})",
    )
    add("--pictures", type=arguments.whole(), default=64, help="pictures to decode (default: 64)")
    add("--seed", type=arguments.whole(0), default=1000, help="of prompts and pictures (default: 1000)")
    options = parser.parse_args(argv)
    if 0 in options.sizes:
        raise LanternError("--sizes has a tree without nodes: give sizes from 1 on")
    numbers = {name: getattr(options, name) for name in ("name", "sizes", "pictures", "seed")}
    grow(options.target, options.drafter, options.workdir, **numbers)
    print(read_text(options.workdir / "ranks.json", 2**26))


if __name__ == "__main__":
    run_script(main)
