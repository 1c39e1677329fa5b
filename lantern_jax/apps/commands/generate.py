"""``lantern generate``: pictures from prompts."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lantern_jax.apps.commands.arguments import number, seed
from lantern_jax.apps.commands.options import Command, encoded_prompts, join_hosts, open_pipeline, say_notes
from lantern_jax.apps.commands.outputs import Outputs, write
from lantern_jax.apps.terminal.terminal import say
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

_EXAMPLES = (
    'lantern generate "green hills at noon with a river under clouds"',
    'lantern generate "a foggy forest" "a sunset desert" --num 4 --out pictures/',
    'lantern generate "a foggy forest" --compare --race race.webp',
)


def add(commands) -> None:
    """Adds ``generate`` to a parser's commands."""
    how = {"usage": "[PROMPT ...] [options]", "examples": _EXAMPLES}
    generate = Command(commands, "generate", "make pictures from prompts", _run, **how)
    take = generate.take
    generate.group("picture", "--model", "--num", "--seed", "--size")
    take("prompts", "PROMPT", "what to draw; for models of classes a number or a name", nargs="*")
    instead = "prompts that `lantern encode` wrote, instead"
    take("--prompts", "FILE.npz", instead, dest="encoded", read=encoded_prompts)
    generate.shared("--negative")
    take("--first", "N", "go on after N pictures of another call", 0, type=seed)
    take("--start", "IMAGE", "a picture to go on with: its first rows stay", read=_picture)
    share = "how much of --start stays, from 0 to 1 (default: 0.5)"
    take("--keep", "SHARE", share, type=number(0, 1, above=True, below=True))
    generate.shared("--strict-words")
    generate.decoding_groups("--dtype", "--mesh", "--hosts", "--tuned", "--search-tilings")
    generate.group("output")
    take("--out", "FILE.png|DIR/", "where pictures go; to a .npz: their codes")
    generate.switch("--compare", "also decode plainly; both are in NAME-compare.png")
    generate.switch("--show-acceptance", "draw what each round accepted, in NAME-accepted.png")
    take("--race", "FILE.webp", "also decode plainly: an animation (.webp, .gif, .png)", type=_race_file)
    take("--stats", "FILE", "write the statistics as JSON")
    generate.switch("--explain", "show the table that auto chose from")
    generate.shared("--overwrite")


def _picture(text: str) -> Any:
    from lantern_jax.apps.display.picture_files import open_picture

    return open_picture(Path(text))


def _race_file(text: str) -> Path:
    from lantern_jax.apps.display.race import check_race

    return check_race(text)


def _run(arguments: argparse.Namespace) -> None:
    # Arguments that no model accepts are refused before JAX is imported and a model is opened.
    outputs = _checked(arguments)
    writes = join_hosts(arguments.hosts)

    from lantern_jax.apps.commands.report import (
        decoding_progress,
        show_choice,
        show_statistics,
        weak_drafter,
    )

    pipeline = open_pipeline(arguments)
    with _quoting(arguments.prompts):
        plan = pipeline.plan(
            arguments.prompts or arguments.encoded,
            negative_prompt=arguments.negative,
            num=arguments.num,
            seed=arguments.seed,
            first=arguments.first,
            start=arguments.start,
            keep_rows=_rows_kept(arguments.keep, pipeline.recipe.config.grid),
            **arguments.options,
        )
    if outputs.shows_pictures:
        pipeline.check_draws()
    if writes:
        say_notes(plan.call.notes)
        if arguments.explain:
            show_choice(plan.call.found)
    compare, generation = arguments.compare or arguments.race is not None, None
    try:
        with decoding_progress() as progress:
            generation = plan.run(progress, compare)
        if writes:
            outputs = write(outputs, plan, generation, arguments.overwrite)
    except KeyboardInterrupt as stop:
        # The finished pictures: all of them if the interruption came while they were being written.
        generation = getattr(stop, "generation", generation)
        if generation is None:
            raise
        done = outputs.of(generation.numbers - arguments.first)
        if writes:
            done = write(done, plan, generation, arguments.overwrite)
        wrote = f"wrote {len(generation.numbers)} of {plan.call.count} pictures to {done.place}"
        raise KeyboardInterrupt(f"interrupted, {wrote}") from None
    show_statistics(generation)
    say(f"wrote {', '.join(map(str, outputs.places))}")
    made = generation.statistics
    advice = weak_drafter(plan.call.settings, made.step_compression, made.rounds)
    if writes and advice:
        say_notes([advice])


@contextlib.contextmanager
def _quoting(prompts: list[str]) -> Iterator[None]:
    """Suggests quotes when a prompt is refused that may be one word of a longer one."""
    try:
        yield
    except LanternError as error:
        is_of_prompts = "prompt" in str(error).partition(":")[0].split()
        if len(prompts) < 2 or not is_of_prompts or any(" " in prompt for prompt in prompts):
            raise
        raise LanternError(
            f"{len(prompts)} prompts of one word each: for one prompt of several words put it in quotes, "
            f'"{errors.short(" ".join(prompts))}"'
        ) from error


def _checked(arguments: argparse.Namespace) -> Outputs:
    """Returns the files to write; raises LanternError for arguments that no model accepts."""
    if bool(arguments.prompts) == (arguments.encoded is not None):
        raise LanternError(
            'give a prompt, such as "a foggy forest", or --prompts FILE.npz with encoded ones: one of the two'
        )
    if arguments.keep is not None and arguments.start is None:
        raise LanternError("--keep is of a picture to complete: give --start IMAGE")
    names = arguments.prompts or arguments.encoded.prompts
    return Outputs.of_call(arguments, [name for name in names for _ in range(arguments.num)])


def _rows_kept(share: float | None, rows: int) -> int | None:
    """Returns how many rows of codes a share of a picture is, from 1 to all but one; None for None."""
    return None if share is None else min(max(round(share * rows), 1), rows - 1)
