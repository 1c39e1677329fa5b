"""Is ``auto`` ever slower than plain decoding, or than the best of the other methods one might have asked for?

    python -m eval.never_slower [--model demo] [--batches 1,2,4,8,16,32,64] [--turns 5] [--out FILE.json]
    python -m eval.never_slower --size llamagen-b --batches 1,4,16
    python -m eval.never_slower --batches 1 --tuned tuned-batch1-0123456789ab.json

At each batch size, ``auto``, plain decoding, ``led`` and ``jacobi`` make the same pictures in turns of random order, a
batch of each, once to compile and then ``--turns`` times; what takes half as long again as the best in the first batch
(without compiling) drops out. A row has the seconds per batch of each (the median), and the best one's seconds over
those of ``auto``: the median of the turns, each against those beside it; and by the medians of all. Only decoding
counts, prefill included. Run it on quiet cores.

``--size`` takes a published size with random weights, whose windows accept as many tokens per pass as the demo's: these
lengths are replayed. ``--tuned`` takes a file of ``lantern tune``, which is also compared at the batch it is for.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from typing import Any

import lantern_jax
from eval.replayed import SIZES, replaying
from eval.report import to_json
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.measuring.subject import sample_prompts
from lantern_jax.apps.terminal.console import Console, table
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.io.files import write_file
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.tuned import Tuned, read_tuned

AUTO = "auto"
WAYS: dict[str, dict[str, Any]] = {
    AUTO: {},
    "plain": {"method": "ar"},
    "led": {"method": "led"},
    "jacobi": {"method": "jacobi"},
}
HOPELESS = 1.5  # times the best


def compare(pipeline: Pipeline, batch: int, turns: int, tuned: Tuned | None = None) -> dict[str, Any]:
    """Returns the row of a batch size."""
    prompts = sample_prompts(pipeline.checkpoint, batch)
    names = WAYS if pipeline.checkpoint.drafters else (AUTO, "plain", "jacobi")
    ways = {name: WAYS[name] for name in names}
    if tuned is not None and tuned.key.batch == batch:
        ways["tuned"] = dict(tuned.options)
    spent: dict[str, list[float]] = {name: [] for name in ways}

    def run(name: str, first: int) -> float:
        return pipeline.generate(prompts, batch=batch, first=first, seed=1, **ways[name]).statistics.seconds

    warmed = {name: run(name, 0) for name in ways}
    longest = HOPELESS * min(warmed.values())
    racing = [name for name in ways if name == AUTO or warmed[name] <= longest]
    for turn in range(turns):
        # What ran before a program changes its time by a tenth: each turn has an order of its own.
        for name in random.Random(turn).sample(racing, len(racing)):
            spent[name].append(run(name, turn * batch))
    ratios = [min(spent[name][turn] for name in racing) / spent[AUTO][turn] for turn in range(turns)]
    medians = {name: statistics.median(spent[name] or [warmed[name]]) for name in ways}
    return {
        "batch": batch, "raced": racing, "seconds": medians, "turns": statistics.median(ratios),
        "medians": min(medians.values()) / medians[AUTO], "said": pipeline.tuning(batch, batch=batch).note,
    }  # fmt: skip


def _batches(text: str) -> list[int]:
    return [arguments.whole()(word) for word in arguments.words(text)]


def main(argv: Sequence[str] | None = None) -> None:
    """Compares, prints and writes."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=arguments.model, default="demo", help="checkpoint directory")
    parser.add_argument("--size", choices=SIZES, help="a published size, in place of a model")
    parser.add_argument("--tuned", type=arguments.file, help="a file of lantern tune, to compare with")
    default = [1, 2, 4, 8, 16, 32, 64]
    parser.add_argument(
        "--batches", type=_batches, default=default, help="pictures decoded together, separated by commas"
    )
    parser.add_argument("--turns", type=arguments.whole(), default=5, help="batches that each method makes")
    parser.add_argument("--out", type=arguments.new_file, help="write the rows as JSON")
    options = parser.parse_args(argv)
    keep_compiled_programs()
    rows = []
    tuned = None if options.tuned is None else read_tuned(options.tuned)
    pipeline = replaying(options.size) if options.size else lantern_jax.load(options.model)
    for batch in options.batches:
        rows.append(compare(pipeline, batch, options.turns, tuned))
        print(rows[-1], flush=True)
    heads = ("batch", *(f"{name} s" for name in rows[0]["seconds"]), "turns", "medians")
    cells = [
        (
            str(row["batch"]), *(f"{value:.2f}" for value in row["seconds"].values()), f"{row['turns']:.2f}",
            f"{row['medians']:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    console = Console(soft_wrap=True)
    console.print(table(heads, cells))
    for row in rows:
        console.print(f"batch {row['batch']}: {row['said']}", markup=False)
    if options.out is not None:
        write_file(options.out, to_json(rows))


if __name__ == "__main__":
    run_script(main)
