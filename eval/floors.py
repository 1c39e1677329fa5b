"""What a step of plain decoding, a pass of N nodes and a level of a draft cannot be quicker than, on paper.

    python -m eval.floors [--sizes llamagen-xl,llamagen-3b,chameleon-7b]

A step reads all weights but the tables that are looked up, and the caches, which are half full on the average; in
bfloat16, one picture at a time, with guidance, so that every token is computed for two rows. A pass of N nodes reads
the same and computes N times as much. Bytes over the published bandwidth, operations over the published rate of dense
bfloat16: the larger of the two times is the floor, and *free nodes* is how many there are before it is the second.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jax

from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.families.registry import family_of
from lantern_jax.measuring.machine import NOT_READ
from lantern_jax.measuring.random_models import random_model
from lantern_jax.models.drafter import drafter_shapes

SIZES = "llamagen-xl,llamagen-3b,chameleon-7b"
# Bytes and operations a second, by their makers' data sheets.
DEVICES = {
    "TPU v5e": (819e9, 197e12),
    "TPU v6e": (1640e9, 918e12),
    "A100 80 GB": (2039e9, 312e12),
    "H100 SXM": (3350e9, 989e12),
    "H200": (4800e9, 989e12),
}
_ROWS, _BYTES = 2, 2


@dataclass(frozen=True)
class Work:
    """What a pass of one node moves and computes, and a level of a draft moves.

    Attributes:
        bytes, operations: of the pass; every further node adds as many operations and no bytes to speak of.
        level_bytes: of a level.
    """

    bytes: float
    operations: float
    level_bytes: float


@cache
def work_of(size: str) -> Work:
    """Of a published size with LANTERN's drafter; ValueError for an unknown size."""
    model = random_model(size)
    config, layer = model.config, model.config.transformer
    weights = _entries(family_of(config).shapes(config))
    # Keys and values of half a picture, of both rows.
    seen = config.num_tokens / 2
    states = 2 * layer.num_layers * layer.dim * seen * _ROWS
    attention = 2 * 2 * layer.num_layers * layer.dim * seen
    head = layer.dim * config.vocab_size
    level = _entries(drafter_shapes(model.drafter)) + head + states / layer.num_layers
    return Work(_BYTES * (weights + states), _ROWS * (2 * weights + attention), _BYTES * level)


def table(sizes: list[str]) -> str:
    """A Markdown table: a line a device, for every size a step's floor, free nodes, and a level's floor."""
    titles = ["device"]
    for size in sizes:
        titles += [f"{size}: step, ms", "free nodes", "level, ms"]
    lines = [titles, ["---"] * len(titles)]
    for device, (bandwidth, rate) in DEVICES.items():
        line = [device]
        for work in map(work_of, sizes):
            step = work.bytes / bandwidth
            nodes = math.floor(step / (work.operations / rate))
            line += [f"{1e3 * step:.2f}", str(nodes), f"{1e3 * work.level_bytes / bandwidth:.3f}"]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _entries(shapes) -> int:
    """Entries of the parameters that a pass reads."""
    return sum(
        math.prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
        if not any(getattr(key, "key", None) in NOT_READ for key in path)
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=arguments.words, default=SIZES, help=f"published sizes (default: {SIZES})"
    )
    print(table(parser.parse_args(argv).sizes))


if __name__ == "__main__":
    run_script(main)
