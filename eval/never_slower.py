"""Is ``auto`` ever slower than plain decoding, or than the best of the other methods one might have asked for?

    python -m eval.never_slower [--model demo] [--batches 1,2,4,8,16,32,64] [--minutes 12] [--out FILE.json]
    python -m eval.never_slower --size llamagen-b --batches 1,4,16 --minutes 40
    python -m eval.never_slower --batches 1 --tuned "$(ls ~/.cache/lantern_jax/tuned/*.json)"

At each batch size, ``auto``, plain decoding, ``led``, ``jacobi`` and ``gumbel`` with a chain make the same pictures in
turns of random order, a batch of each, as often as its share of the time allows (once to compile, then 2 to 10 times).
``auto`` begins with an empty cache directory and learns from its own runs alone. A row has the seconds per batch of
each (the median), and the best one's seconds over those of ``auto``: in its first run; the median of the later runs,
each against those beside it; and by the medians of all. Only decoding counts, prefill included. Run it on quiet cores.

``--size`` takes a published size with random weights, whose windows accept as many tokens per pass as the demo's: these
lengths are replayed. ``--tuned`` takes a file of ``lantern tune``, which is also compared at the batch it is for.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lantern_jax
from eval.replayed import SIZES, replaying
from eval.report import to_json
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.io.console import Console, table
from lantern_jax.io.files import write_file
from lantern_jax.measuring.subject import sample_prompts
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.tuned import Shelf, Tuned, read_tuned

AUTO = "auto"
WAYS: dict[str, dict[str, Any]] = {
    AUTO: {},
    "plain": {"method": "ar"},
    "led": {"method": "led"},
    "jacobi": {"method": "jacobi"},
    "chain": {"method": "gumbel", "tree": "chain"},
}
FEWEST, MOST = 1, 9


def compare(
    learning: Pipeline, fixed: Pipeline, batch: int, seconds: float, tuned: Tuned | None = None
) -> dict[str, Any]:
    """Returns the row of a batch size, made in about this many seconds."""
    prompts = sample_prompts(fixed.checkpoint, batch)
    names = WAYS if fixed.checkpoint.drafters else (AUTO, "plain", "jacobi")
    drafted = {name: WAYS[name] for name in names}
    if tuned is not None and tuned.key.batch == batch:
        drafted["tuned"] = dict(tuned.knobs)
    spent: dict[str, list[float]] = {name: [] for name in drafted}
    said: list[str] = []

    def run(name: str, first: int) -> float:
        pipeline = learning if name == AUTO else fixed
        made = pipeline.generate(prompts, batch=batch, first=first, seed=1, **drafted[name])
        if name == AUTO:
            said.append(made.notes[0])
        return made.statistics.seconds

    began = time.monotonic()
    for name in drafted:
        if name != AUTO:
            run(name, 0)
    compiling = time.monotonic() - began
    repeats, repeat = FEWEST + 1, 0
    while repeat < repeats:
        began = time.monotonic()
        # What ran before a program changes its time by a tenth: each turn has an order of its own.
        for name in random.Random(repeat).sample(list(drafted), len(drafted)):
            spent[name].append(run(name, repeat * batch))
        if not repeat:
            left = seconds - compiling
            repeats = 1 + int(min(MOST, max(FEWEST, left / max(time.monotonic() - began, 1e-6) - 1)))
        repeat += 1
    ratios = [min(times[i] for times in spent.values()) / spent[AUTO][i] for i in range(repeats)]
    medians = {name: statistics.median(times) for name, times in spent.items()}
    return {
        "batch": batch, "repeats": repeats, "seconds": medians, "first": ratios[0],
        "later": statistics.median(ratios[1:]), "later_of_medians": min(medians.values()) / medians[AUTO],
        "said_first": said[0], "said_last": said[-1],
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
    parser.add_argument(
        "--minutes", type=arguments.number(above=True), default=12.0, help="how long it may take"
    )
    parser.add_argument("--out", type=arguments.new_file, help="write the rows as JSON")
    options = parser.parse_args(argv)
    keep_compiled_programs()
    batches, rows = options.batches, []
    tuned = None if options.tuned is None else read_tuned(options.tuned)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        fixed = (
            replaying(options.size, place) if options.size else lantern_jax.load(options.model, tuned="off")
        )
        learning = Pipeline(fixed.checkpoint, fixed.dtype, Shelf(place / "tuned"), fixed.engine.devices)
        learning.recipe, learning.engine = fixed.recipe, fixed.engine
        for number, batch in enumerate(batches):
            left = 60 * options.minutes * (1 - number / len(batches))
            rows.append(compare(learning, fixed, batch, left / (len(batches) - number), tuned))
            print(rows[-1], flush=True)
    heads = ("batch", *(f"{name} s" for name in rows[0]["seconds"]), "first", "later", "of medians")
    cells = [
        (
            str(row["batch"]), *(f"{value:.2f}" for value in row["seconds"].values()), f"{row['first']:.2f}",
            f"{row['later']:.2f}", f"{row['later_of_medians']:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    console = Console(soft_wrap=True)
    console.print(table(heads, cells))
    for row in rows:
        console.print(f"batch {row['batch']}: {row['said_last']}", markup=False)
    if options.out is not None:
        write_file(options.out, to_json(rows))


if __name__ == "__main__":
    run_script(main)
