"""``lantern set``: picture sets of any size, by any number of workers, resumable wherever they were stopped."""

import argparse
import contextlib
import os
from pathlib import Path

from lantern_jax.apps.commands.arguments import whole
from lantern_jax.apps.commands.command_line import hosts_joined
from lantern_jax.apps.commands.options import Command, join_hosts, keep_programs, say_notes
from lantern_jax.apps.commands.prompt_files import class_list, read_columns, read_prompts
from lantern_jax.apps.sets.cluster import chosen
from lantern_jax.apps.sets.opening import SHARD_SIZE, OpenedSet, open_set
from lantern_jax.apps.sets.set_plan import Part, begin
from lantern_jax.apps.terminal import locks
from lantern_jax.apps.terminal.terminal import say
from lantern_jax.io.errors import LanternError

_EXAMPLES = (
    "lantern set --prompts prompts.txt --out pictures",
    "lantern set --prompts table.tsv --column caption --num 4 --out pictures",
    "lantern set --classes 0-999 --model llamagen-b --out classes --worker 1/2",
)


def add(commands) -> None:
    """Adds ``set`` to a parser's commands."""
    command = Command(
        commands, "set", "make a large set of pictures", _run,
        usage="--prompts FILE --out DIR [options]", examples=_EXAMPLES,
    )  # fmt: skip
    take = command.take
    command.group("pictures", "--model", "--num", "--seed", "--size", "--negative")
    take("--prompts", "FILE", "prompts: one per line, a .tsv with --column, or COCO's captions in .json")
    take("--column", "NAME", "column of the table that holds the prompts")
    take("--negative-column", "NAME", "column of the table that holds a negative prompt for each")
    take("--classes", "LIST", "class numbers instead of prompts, such as 0-999 or 207,360")
    command.shared("--strict-words")
    command.decoding_groups("--dtype", "--mesh", "--hosts", "--tuned", "--search-tilings")
    command.group("output")
    take("--out", "DIR", "folder of the set: new, or one to resume", required=True)
    part = "make the i-th of N parts; auto: as the cluster says (default: auto in a cluster, else all)"
    take("--worker", "i/N|auto", part)
    command.switch(
        "--check", "check that every picture of the set is there, whole, with its prompt and number"
    )
    take("--shard-size", "N", "pictures per folder", SHARD_SIZE, type=whole())


def _run(arguments: argparse.Namespace) -> None:
    directory = Path(arguments.out)
    if arguments.check:
        _check(arguments, directory)
        return
    names = "num", "seed", "shard_size", "dtype", "mesh", "tuned", "strict_words"
    fields = {name: getattr(arguments, name) for name in names}
    prompts, negatives = _prompts(arguments)
    # Without a mesh, joined processes are separate workers, each with its own devices.
    writes = join_hosts(arguments.hosts) or arguments.mesh is None
    part = _part(arguments)
    if part.why:
        say(f"worker {part}: {part.why}", error=True)
    keep_programs(arguments)
    opened = open_set(
        arguments.model,
        prompts,
        arguments.options,
        negatives=negatives,
        size=arguments.picture_size,
        **fields,
    )
    if writes:
        begin(directory, opened.plan)
        say_notes(filter(None, [opened.note]))
    _make(opened, directory, part, writes)


def _part(arguments: argparse.Namespace) -> Part:
    """Returns the part that this process makes; processes that share one mesh make all of it together."""
    if arguments.hosts is not None and arguments.mesh is not None and arguments.worker in (None, "auto"):
        return Part()
    processes = None
    if hosts_joined():
        import jax

        processes = jax.process_index(), jax.process_count()
    return chosen(arguments.worker, os.environ, processes)


def _prompts(arguments: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the prompts and the negative ones."""
    column, negative_column = arguments.column, arguments.negative_column
    if (arguments.prompts is None) == (arguments.classes is None):
        raise LanternError("give --prompts FILE or --classes LIST: one of the two")
    if negative_column is not None and arguments.negative is not None:
        raise LanternError("give --negative TEXT or --negative-column NAME: one of the two")
    if negative_column is not None and column is None:
        raise LanternError(
            "--negative-column names a column of a table: give --prompts FILE and --column NAME"
        )
    if arguments.classes is not None and column is not None:
        raise LanternError("--column names a column of a table: give it with --prompts")
    if negative_column is not None:
        prompts, negatives = read_columns(arguments.prompts, column, negative_column)
        return prompts, negatives
    classes, negative = arguments.classes, arguments.negative
    prompts = read_prompts(arguments.prompts, column) if classes is None else class_list(classes)
    return prompts, () if negative is None else (negative,)


def _make(opened: OpenedSet, directory: Path, part: Part, writes: bool) -> None:
    from lantern_jax.apps.commands.report import decoding_progress
    from lantern_jax.apps.sets.making import make_set

    plan = opened.plan
    busy = f"worker {part} is at work on {directory} already: wait for it, or be another worker"
    mine = directory / f"worker-{part.number}-of-{part.count}"
    with contextlib.ExitStack() as stack:
        if writes:
            stack.enter_context(locks.sole(mine, busy))
        left = plan.missing(directory, part.shards(plan))
        count = sum(len(plan.numbers(shard)) for shard in left)
        shown = {"progress": stack.enter_context(decoding_progress())} if writes else {}
        try:
            make_set(opened, directory, part, **shown)
        except LanternError as error:
            raise LanternError(f"{error}; the set stops here, and what was made stays") from None
        except KeyboardInterrupt:
            done = len(left) - len(plan.missing(directory, left))
            raise KeyboardInterrupt(
                f"interrupted, {done} of {len(left)} shards were written to {directory}, other finished pictures are "
                "kept: give the same command to go on"
            ) from None
    missing = plan.missing(directory)
    say(f"wrote {count} pictures in {len(left)} shards to {directory}, worker {part}")
    if missing:
        say(f"{len(missing)} of {plan.shards} shards are left to other workers")


def _check(arguments: argparse.Namespace, directory: Path) -> None:
    if arguments.prompts is not None or arguments.classes is not None:
        raise LanternError("--check reads the plan in the folder: give it only --out")

    from lantern_jax.apps.sets.reading import read_set

    say(f"{directory} is complete: {sum(1 for _ in read_set(directory))} pictures")
