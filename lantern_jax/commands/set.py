"""``lantern set``: picture sets of any size, by any number of workers, gone on with wherever they were stopped."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lantern_jax.commands.options import add_knobs, add_mesh, add_model, check_knobs, check_mesh, given_knobs
from lantern_jax.knobs import check_count, check_seed
from lantern_jax.sets.plan import (
    PICTURE_FORMATS,
    SetPlan,
    Worker,
    begin,
    settings_json,
)
from lantern_jax.text.prompt_files import class_list, read_prompts

if TYPE_CHECKING:
    from lantern_jax.metrics.features import FeatureReader

SHARD_SIZE = 256


def add(commands) -> None:
    """Adds ``set`` to a parser's commands."""
    parser = commands.add_parser("set", help="make a large set of pictures", allow_abbrev=False)
    parser.set_defaults(run=_run)
    add = parser.add_argument
    add(
        "--prompts",
        metavar="FILE",
        help="prompts: one a line, a .tsv with --column, or COCO's captions in .json",
    )
    add("--column", metavar="NAME", help="column of the table that holds the prompts")
    add("--classes", metavar="LIST", help="class numbers instead of prompts, such as 0-999 or 207,360")
    add("--out", required=True, metavar="DIR", help="folder of the set: new, or the same one to go on")
    add("--num", type=int, default=1, metavar="N", help="pictures a prompt (default: 1)")
    add("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")
    add("--worker", default="1/1", metavar="i/N", help="make the i-th of N parts (default: 1/1)")
    add(
        "--merge",
        action="store_true",
        help="check that all parts are there; sum up what was kept of features",
    )
    add("--format", choices=PICTURE_FORMATS, default=PICTURE_FORMATS[0], help="of pictures (default: png)")
    add(
        "--shard-size",
        type=int,
        default=SHARD_SIZE,
        metavar="N",
        help=f"pictures a file; a stop loses what was not in one yet (default: {SHARD_SIZE})",
    )
    add(
        "--sums",
        action=argparse.BooleanOptionalAction,
        help="keep sums of the demo's picture features with each shard (default: for the demo)",
    )
    add_model(parser)
    add_mesh(parser)
    add_knobs(parser)


def _run(arguments: argparse.Namespace) -> None:
    directory = Path(arguments.out)
    if arguments.merge:
        _merge(arguments, directory)
        return
    knobs, worker = given_knobs(arguments), Worker.parse(arguments.worker)
    check_count("--num", arguments.num), check_count("--shard-size", arguments.shard_size)
    check_seed(arguments.seed)
    prompts = _prompts(arguments)
    check_knobs(knobs), check_mesh(arguments.mesh)

    from lantern_jax.checkpoints.digest import checkpoint_digest
    from lantern_jax.checkpoints.store import model_directory
    from lantern_jax.compilation import keep_compiled_programs
    from lantern_jax.pipeline import load

    keep_compiled_programs()
    pipeline = load(arguments.model, arguments.dtype, mesh=arguments.mesh)
    settings = pipeline.settings(knobs)
    _check_prompts(arguments, pipeline, prompts)
    if not pipeline.draws:
        raise ValueError(f"{arguments.model} has no VQ tokenizer to draw with: convert it again with one")
    reader = _reader(arguments)
    plan = SetPlan(
        prompts=prompts,
        num=arguments.num,
        seed=arguments.seed,
        model=checkpoint_digest(model_directory(arguments.model)),
        dtype=pipeline.dtype.name,
        settings=settings_json(settings),
        format=arguments.format,
        shard_size=arguments.shard_size,
        sums=None if reader is None else reader.name,
    )
    begin(directory, plan)
    _make(pipeline, plan, directory, worker, knobs, reader)


def _prompts(arguments: argparse.Namespace) -> tuple[str, ...]:
    if (arguments.prompts is None) == (arguments.classes is None):
        raise ValueError("give --prompts FILE or --classes LIST: one of the two")
    if arguments.classes is not None:
        if arguments.column is not None:
            raise ValueError("--column is that of a table: give it with --prompts")
        return class_list(arguments.classes)
    return read_prompts(arguments.prompts, arguments.column)


def _check_prompts(arguments, pipeline, prompts) -> None:
    """Raises ValueError of prompts that the model does not take; it names the first."""
    try:
        pipeline.check(prompts, num=arguments.num, seed=arguments.seed)
    except ValueError:
        for number, prompt in enumerate(prompts, 1):
            try:
                pipeline.check([prompt])
            except ValueError as error:
                raise ValueError(f"prompt {number} of the set, {prompt!r}: {error}") from None
        raise


def _reader(arguments) -> "FeatureReader | None":
    """The reader of the features whose sums are kept; None where none are."""
    if arguments.sums is False or (arguments.sums is None and arguments.model != "demo"):
        return None
    from lantern_jax.metrics.agreement import demo_features

    return demo_features()


def _make(pipeline, plan: SetPlan, directory: Path, worker: Worker, knobs, reader) -> None:
    from lantern_jax.sets.making import make_set

    left = len(plan.missing(directory, worker.shards(plan)))
    count = sum(len(plan.numbers(shard)) for shard in plan.missing(directory, worker.shards(plan)))
    try:
        with _progress(plan, count) as (progress, written):
            make_set(
                pipeline, plan, directory, worker, knobs, reader=reader, progress=progress, written=written
            )
    except KeyboardInterrupt:
        there = left - len(plan.missing(directory, worker.shards(plan)))
        raise KeyboardInterrupt(
            f"interrupted, {there} of {left} shards were written to {directory}: give the same command to go on"
        ) from None
    missing = plan.missing(directory)
    print(f"wrote {count} pictures in {left} shards to {directory}, worker {worker}")
    if missing:
        print(f"{len(missing)} of {plan.shards} shards are left to other workers")


@contextlib.contextmanager
def _progress(plan: SetPlan, count: int) -> Iterator[tuple[Callable, Callable]]:
    """A bar on a terminal, else a line for every shard."""
    from lantern_jax.commands.report import decoding_progress, rates

    with decoding_progress(count, compare=False) as bar:

        def written(shard, now) -> None:
            if bar is None:
                print(
                    f"shard {shard} of {plan.shards} is written: {rates(now, count)}",
                    file=sys.stderr,
                    flush=True,
                )

        yield bar or (lambda now: None), written


def _merge(arguments: argparse.Namespace, directory: Path) -> None:
    if arguments.prompts is not None or arguments.classes is not None:
        raise ValueError("--merge reads what the set says of itself: give it with --out alone")

    from lantern_jax.sets.merging import SUMS_FILE, merge

    merged = merge(directory)
    sums = "" if merged.sums is None else f"; sums of their features are in {directory / SUMS_FILE}"
    print(f"{directory} is complete: {merged.pictures} pictures in {merged.shards} shards{sums}")
