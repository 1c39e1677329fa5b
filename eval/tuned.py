"""What ``lantern tune`` found, against every named tree and the default, on the same pictures, in turns.

    python -m eval.tuned [--model demo] [--batch 1] [--repeats 8] [--minutes 5] [--file FILE.json] [--no-trees]
                         [--out FILE.json]

Tunes first unless ``--file`` names what a tuning wrote. Then every setting makes the same pictures, which the tuning
did not see, a batch of each in turns. A row has tokens per target pass, tokens per second, how many times as fast the
tuned setting is, and how far off the tuning's prediction was, where it made one. With ``--no-trees`` the tuned setting
is compared with the default and plain decoding alone, which is enough for large batches and much quicker.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

import lantern_jax
from eval.report import to_json
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.measuring.clock import alternate
from lantern_jax.apps.measuring.subject import Subject, checkpoint_subject, sample_prompts
from lantern_jax.apps.measuring.tune import Goal, Tuner
from lantern_jax.apps.terminal.console import Console
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.io.files import write_file
from lantern_jax.settings.settings import SAMPLING
from lantern_jax.settings.tuned import Key, Tuned, read_tuned

TUNED, DEFAULT = "tuned", "default"
PROMPTS, FIRST = 64, 10_000


def ways(tuned: Tuned, trees: bool = True) -> dict[str, dict[str, Any]]:
    """Returns the options of every setting that is compared, by name."""
    named = {name: {"method": f"gumbel:tree={name}"} for name in lantern_jax.draftings.tree_names() if trees}
    return {TUNED: dict(tuned.options), DEFAULT: {}, "plain": {"method": "ar"}} | named


def compare(subject: Subject, tuned: Tuned, repeats: int, trees: bool = True) -> list[dict[str, Any]]:
    """Returns a row for every setting, at the batch, guidance and sampling of the tuning."""
    batch = tuned.key.batch
    base = {"batch": batch} | {name: getattr(tuned.key, name) for name in SAMPLING}
    jobs = {name: subject.job(subject.settings({**base, **way})) for name, way in ways(tuned, trees).items()}
    for job in jobs.values():
        subject.decode(job, FIRST, batch, batch)

    def task(job):
        return lambda repeat: subject.decode(job, FIRST + repeat * batch, batch, batch)

    made = alternate({name: task(job) for name, job in jobs.items()}, repeats)
    ours = np.array([part.timing.decoding for part in made[TUNED]])
    predicted = {row["name"]: row["predicted"][0] for row in tuned.found["candidates"]}
    # A tuning that was interrupted early names no default.
    predicted |= {TUNED: predicted[tuned.name], DEFAULT: predicted.get(tuned.found["default"])}
    rows = []
    for name, parts in made.items():
        seconds = np.array([part.timing.decoding for part in parts])
        rate = len(subject.free) * batch * repeats / seconds.sum()
        rounds = np.concatenate([part.rounds for part in parts])
        said = predicted.get(name, predicted.get(f"tree {name} (eagle)"))
        ratios = seconds / ours
        rows.append(
            {
                "name": name,
                "tokens_a_pass": (len(subject.free) - 1) / rounds.mean(),
                "tokens_a_second": rate,
                "tuned_is_faster": seconds.sum() / ours.sum(),
                "error": float(ratios.std(ddof=1) / repeats**0.5),
                "predicted": said,
                "off": None if said is None else said / rate - 1,
            }
        )
    return rows


def show(rows: Sequence[Mapping[str, Any]], tuned: Tuned) -> None:
    """Prints the table."""
    heads = ("", "tokens per pass", "tokens/s", "tuned is faster", "predicted tokens/s", "off by")
    table = Table(*heads, title=f"tuned: {tuned.name}")
    for row in rows:
        said = ("", "") if row["off"] is None else (f"{row['predicted']:.0f}", f"{row['off']:+.1%}")
        faster = f"{row['tuned_is_faster']:.3f} ± {row['error']:.3f}"
        table.add_row(
            row["name"], f"{row['tokens_a_pass']:.2f}", f"{row['tokens_a_second']:.0f}", faster, *said
        )
    Console().print(table)


def main(argv: Sequence[str] | None = None) -> None:
    """Tunes if need be, compares and writes."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=arguments.model, default="demo", help="checkpoint directory")
    parser.add_argument("--batch", type=arguments.whole(), default=1, help="pictures per batch")
    parser.add_argument(
        "--repeats", type=arguments.whole(2), default=8, help="batches of each way, at least 2"
    )
    parser.add_argument("--minutes", type=arguments.number(above=True), default=5.0, help="of the tuning")
    parser.add_argument("--file", type=arguments.file, help="what a tuning wrote")
    parser.add_argument("--no-trees", action="store_true", help="leave the named trees out")
    parser.add_argument(
        "--out", type=arguments.new_file, help="write the rows, and what the tuning found, as JSON"
    )
    options = parser.parse_args(argv)
    tuned = None if options.file is None else read_tuned(options.file)
    keep_compiled_programs()
    pipeline = lantern_jax.load(options.model, tuned="off")
    prompts = sample_prompts(pipeline.checkpoint, PROMPTS)
    subject = checkpoint_subject(options.model, pipeline, prompts)
    if tuned is None:
        asked = {"batch": options.batch}
        key = Key.of(
            pipeline.checkpoint, subject.settings(asked), pipeline.dtype, devices=pipeline.engine.devices
        )
        tuned = Tuner(subject, Goal(asked, minutes=options.minutes), key, print).run().tuned
    rows = compare(subject, tuned, options.repeats, not options.no_trees)
    show(rows, tuned)
    if options.out is not None:
        values = {"rows": rows, "tuned": json.loads(tuned.to_json())}
        write_file(options.out, to_json(values))


if __name__ == "__main__":
    run_script(main)
