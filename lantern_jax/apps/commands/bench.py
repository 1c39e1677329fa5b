"""``lantern bench``: how fast each method decodes on this machine, compared with plain decoding."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from lantern_jax.apps.commands.arguments import whole
from lantern_jax.apps.commands.options import (
    Command,
    join_hosts,
    keep_programs,
    mesh_of,
    open_pipeline,
    say_notes,
)
from lantern_jax.apps.commands.prompt_files import read_prompts
from lantern_jax.apps.measuring.accept_lengths import HELP as ACCEPT_LENGTHS
from lantern_jax.apps.measuring.accept_lengths import parse_accept_lengths
from lantern_jax.apps.measuring.rows import Row
from lantern_jax.apps.measuring.sweep import SWEPT, Configuration, check_methods, expand, parse_list
from lantern_jax.apps.terminal.terminal import say
from lantern_jax.decoding.choices import RULES
from lantern_jax.decoding.fields import MOST_PICTURES
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_new_file, write_file

METHODS = ("led", "jacobi", "gumbel", "eagle", "lantern-g", "lantern++")
# How many sample prompts are used where none are given.
PROMPTS = 8
QUICK_METHODS, QUICK_PICTURES, PICTURES = ("eagle", "led", "lantern-g"), 12, 16
_EXAMPLES = (
    "lantern bench --quick",
    "lantern bench --methods led jacobi --batch 1,4 --out rows.jsonl",
)


def add(commands) -> None:
    """Adds ``bench`` to a parser's commands."""
    bench = Command(
        commands, "bench", "measure how fast decoding is on this machine", _run,
        usage="[options]", examples=_EXAMPLES,
    )  # fmt: skip
    take, switch = bench.take, bench.switch
    bench.group("what is measured", "--model", "--seed")
    switch("--quick", f"three minutes: {', '.join(QUICK_METHODS)}, {QUICK_PICTURES} pictures")
    take("--size", "NAME", "a model of a published size, such as llamagen-xl; with --random")
    switch("--random", "with random weights: nothing to download; see --accept-lengths")
    names = f"as `lantern generate` takes them: led:nodes=9,refine=2 (default: {' '.join(METHODS)})"
    take("--methods", "A", names, nargs="+")
    take("--batch", "B,...", "pictures decoded together", "1", read=partial(parse_list, "batch"))
    take("--rules", "R", "acceptance rules, each with all methods: strict near:tau=1", nargs="+")
    scales = "guidance scales; 1 is none (default: the model's)"
    take("--guidance", "F,...", scales, read=partial(parse_list, "guidance"))
    take("--prompts", "FILE", "what to draw, one prompt per line", read=read_prompts)
    pictures = f"decoded by each row, in whole batches (default: {PICTURES})"
    take("--pictures", "N", pictures, type=whole(1, MOST_PICTURES))
    take("--passes", "N", "stop pictures after N passes, estimate the rest; for large models", type=whole())
    take("--accept-lengths", "PROFILE", ACCEPT_LENGTHS, read=parse_accept_lengths)
    bench.decoding_groups("--dtype", "--mesh", "--hosts", "--search-tilings", but=SWEPT)
    bench.group("output")
    switch("--verbose", "show all columns; the file of --out has them anyway")
    take("--out", "FILE.jsonl", "write the rows as JSON lines, after every batch size and guidance")
    bench.shared("--overwrite")


def _run(arguments: argparse.Namespace) -> None:
    configurations = _configurations(arguments)
    pictures = arguments.pictures or (QUICK_PICTURES if arguments.quick else PICTURES)
    if arguments.random != (arguments.size is not None):
        raise LanternError(
            "--size and --random go together: a size alone has no weights, and random ones need a size"
        )
    if arguments.size is not None and (arguments.model != "demo" or arguments.prompts is not None):
        raise LanternError(
            "a random model takes no --model and no --prompts: leave them out, or --size and --random"
        )
    if arguments.out is not None:
        check_new_file(Path(arguments.out), arguments.overwrite)
    writes = join_hosts(arguments.hosts)
    if not writes:
        arguments.out = None

    from lantern_jax.apps.measuring.measure import Procedure

    plan = Procedure(pictures=pictures, passes=arguments.passes, profile=arguments.accept_lengths)
    rows, left_out = [], []
    try:
        _measure(arguments, configurations, plan, writes, rows, left_out)
    finally:
        # Measured rows are shown even if they cannot be written, or if the rest is interrupted.
        if rows or left_out:
            _show(rows, left_out, arguments)
    if arguments.out is not None:
        say(f"wrote {arguments.out}")


def _configurations(arguments: argparse.Namespace) -> list[Configuration]:
    """Returns the requested configurations, with their names and numbers checked."""
    methods = arguments.methods or (QUICK_METHODS if arguments.quick else METHODS)
    for rule in arguments.rules or ():
        RULES.read(rule)
    return expand(
        check_methods(methods),
        rules=arguments.rules or (),
        batches=arguments.batch,
        guidances=arguments.guidance or (None,),
        options=arguments.options,
    )


def _measure(arguments, configurations, plan, writes, rows: list[Row], left_out: list[str]) -> None:
    """Measures and writes rows, group by group; appends them, and the reasons why others are left out."""
    from lantern_jax.apps.commands.report import working
    from lantern_jax.apps.measuring.measure import measure, members
    from lantern_jax.apps.measuring.rows import to_lines

    subject = _subject(arguments)
    groups, reasons = members(subject, configurations, plan.profile)
    if not groups:
        raise LanternError(reasons[0])
    left_out += reasons
    if writes:
        # They are printed again below the table.
        say_notes(f"left out: {reason}" for reason in left_out)
    keep_programs(arguments)
    try:
        for number, group in enumerate(groups, 1):
            with working(f"measuring {len(group)} rows, group {number} of {len(groups)}") as tell:
                try:
                    rows += measure(subject, group, plan, tell)
                except RuntimeError as error:
                    if "RESOURCE_EXHAUSTED" not in str(error) or len(groups) == 1:
                        raise
                    left_out.append(f"{group[0].configuration}: the device has too little memory")
            if arguments.out is not None:
                write_file(arguments.out, to_lines(rows))
    except KeyboardInterrupt:
        kept = f", wrote {len(rows)} rows to {arguments.out}" if arguments.out is not None and rows else ""
        raise KeyboardInterrupt(f"interrupted{kept}") from None


def _subject(arguments: argparse.Namespace) -> Any:
    from lantern_jax.apps.measuring.subject import checkpoint_subject, random_subject, sample_prompts

    if arguments.size is not None:
        return random_subject(arguments.size, arguments.dtype, mesh=mesh_of(arguments), seed=arguments.seed)
    pipeline = open_pipeline(arguments)
    prompts = arguments.prompts or sample_prompts(pipeline.checkpoint, PROMPTS)
    return checkpoint_subject(arguments.model, pipeline, prompts, arguments.seed)


def _show(rows: list[Row], left_out: list[str], arguments: argparse.Namespace) -> None:
    from lantern_jax.apps.measuring import tables
    from lantern_jax.apps.terminal.console import Console

    # In a file or a pipe a wide table takes the width that it needs.
    console = Console()
    console = Console(width=200) if arguments.verbose and not console.is_terminal else console
    if rows:
        console.print(tables.rows_table(rows, arguments.verbose))
    for reason in left_out:
        console.print(f"left out: {reason}")
