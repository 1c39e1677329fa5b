"""Grow draft trees from the statistics of a target and a drafter that are in training.

    python -m train.tree --target DIR --drafter DIR --workdir DIR [--name=demo] [--sizes=4,6,8,12,16,25,57]

Random landscapes are decoded plainly, and the trees that would have accepted the most tokens are taken.

The rank of a token is how many codes the drafter would draft before it, given the preceding tokens. The ranks of the
tokens after a root name the path along which a tree drafted there is accepted. So the accepted tokens to expect from a
tree are the sum, over its nodes, of how often ranks begin with that node's path, and the best tree of a size takes the
most frequent paths. (LANTERN++, arXiv 2502.06352, uses static trees; Sequoia, 2402.12374, derives them from one vector
of ranks; using whole paths is ours.)

Writes WORKDIR/trees.json ({name: paths}) and WORKDIR/ranks.json (statistics).

Axes: R roots, n pictures, T stream tokens.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.measuring.subject import checkpoint_subject
from lantern_jax.drafters.registry import kind_name
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_text, write_files
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.text.encoded import EncodedPrompts
from train import drafter, script, target
from train.loop import working
from train.ranks import MAX_DEPTH, collect_ranks
from train.sources import random_labels

TreePath = tuple[int, ...]
BATCH = 16
# Children of a node that are considered.
MAX_RANK = 16


def roots(ranks: Int[np.ndarray, "n T depth"]) -> Int[np.ndarray, "R depth"]:
    """Returns the ranks of the positions that were roots, one after the other."""
    rows = ranks.reshape(-1, ranks.shape[-1])
    return rows[rows[:, 0] >= 0]


def path_counts(ranks: Int[np.ndarray, "R depth"]) -> Counter[TreePath]:
    """Counts the roots whose ranks begin with each path; a path ends before a rank of ``MAX_RANK`` or more, or -1.

    A path counts at least as much as its siblings of higher rank: if chance had it otherwise, a tree would skip ranks,
    which the rejection coupling cannot draft.
    """
    counts: Counter[TreePath] = Counter()
    for row in ranks.tolist():
        path: TreePath = ()
        for rank in row:
            if not 0 <= rank < MAX_RANK:
                break
            path = (*path, rank)
            counts[path] += 1
    for rank in range(MAX_RANK - 1, 0, -1):
        for path in [path for path in counts if path[-1] == rank]:
            better = (*path[:-1], rank - 1)
            counts[better] = max(counts[better], counts[path])
    return counts


def grow_tree(counts: Counter[TreePath], size: int, depth: int = MAX_DEPTH) -> list[TreePath]:
    """Returns the tree of ``size`` nodes below the root that accepts most by these counts, level by level.

    It takes the most frequent paths. A path is never more frequent than its parent or a sibling of lower rank, and ties
    prefer those, so they are a tree without gaps.

    Raises:
        LanternError: fewer paths were seen.
    """
    paths = [path for path in counts if len(path) <= depth]
    paths = sorted(paths, key=lambda path: (-counts[path], len(path), path))[:size]
    if len(paths) < size:
        raise LanternError(f"a tree of {size} nodes from {len(paths)} observed paths; decode more pictures")
    return sorted(paths, key=lambda path: (len(path), path))


def rank_probabilities(ranks: Int[np.ndarray, "R depth"]) -> list[list[float]]:
    """Returns the share of each rank at each depth, among the tokens that are there."""
    depths = []
    for column in ranks.T:
        seen = column[column >= 0]
        depths.append(
            [round(float(np.mean(seen == rank)), 4) if len(seen) else 0.0 for rank in range(MAX_RANK)]
        )
    return depths


def expected_tokens(counts: Counter[TreePath], total: int, paths: Sequence[TreePath]) -> float:
    """Returns a tree's tokens per pass from the counts of ``total`` roots, as if all positions were roots as often."""
    return 1 + sum(counts[path] for path in paths) / total


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
