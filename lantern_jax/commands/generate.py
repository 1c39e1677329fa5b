"""``lantern generate``: pictures from prompts."""

import argparse
import dataclasses
import json
from pathlib import Path

from lantern_jax.commands.arguments import number, seed, whole
from lantern_jax.commands.options import (
    add_knobs,
    add_mesh,
    add_model,
    check_knobs,
    check_mesh,
    given_knobs,
    join_hosts,
    mesh_of,
)
from lantern_jax.commands.outputs import DEFAULT_OUT, PicturePlan, check_outputs, plan_pictures, write_outputs
from lantern_jax.decoding.knobs import check_numbers
from lantern_jax.io.errors import LanternError
from lantern_jax.io.terminal import say
from lantern_jax.settings.settings import settings_json


def add(commands) -> None:
    """Adds ``generate`` to a parser's commands."""
    generate = commands.add_parser("generate", help="make pictures from prompts", allow_abbrev=False)
    generate.set_defaults(run=_run)
    add = generate.add_argument
    add(
        "prompts",
        nargs="*",
        metavar="PROMPT",
        help="what to draw; a class number or ImageNet name for class-conditional models",
    )
    add("--prompts", dest="encoded", metavar="FILE.npz", help="prompts that `lantern encode` wrote, instead")
    add_model(generate)
    add_mesh(generate)
    add("--num", type=whole(), default=1, metavar="N", help="pictures a prompt (default: 1)")
    add("--seed", type=seed, default=0, metavar="S", help="random seed (default: 0)")
    add(
        "--first",
        type=seed,
        default=0,
        metavar="N",
        help="number of the first picture: a set made in several calls is the set made in one (default: 0)",
    )
    add("--start", metavar="IMAGE", help="a picture to go on with: its first rows stay")
    add(
        "--keep",
        type=number(0, 1, above=True, below=True),
        metavar="SHARE",
        help="how much of --start stays, more than 0 and less than 1 (default: 0.5)",
    )
    add_knobs(generate)
    add(
        "--tuned",
        default="auto",
        metavar="FILE|auto|off",
        help="what `lantern tune` found: a file, that of this very call if there is one, or nothing (default: auto)",
    )
    add(
        "--out",
        default=DEFAULT_OUT,
        metavar="FILE.png|DIR/",
        help=f"where pictures go (default: {DEFAULT_OUT})",
    )
    add(
        "--compare",
        action="store_true",
        help="also decode plainly; both pictures side by side, and the speed-up",
    )
    add("--show-acceptance", action="store_true", help="draw over the picture what each round accepted")
    add(
        "--race",
        metavar="FILE.webp",
        help="also decode plainly, and write an animation of both painting (.webp, .gif or .png)",
    )
    add("--stats", metavar="FILE", help="write the statistics as JSON")
    add("--overwrite", action="store_true", help="replace files that exist")


def _others(generation, stats: Path | None, race: Path | None) -> dict[Path, bytes]:
    """The contents of what is written beside pictures."""
    files = {}
    if stats is not None:
        files[stats] = (json.dumps(generation.statistics.to_json(), indent=1) + "\n").encode()
    if race is not None:
        from lantern_jax.pictures.race import encode_race

        files[race] = encode_race(generation, race.suffix)
    return files


def _read_start(arguments: argparse.Namespace):
    """The picture of --start, or None; ValueError for what is none, or for --keep without it."""
    if arguments.start is None:
        if arguments.keep is not None:
            raise LanternError("--keep is of a picture to go on with: give --start IMAGE")
        return None

    from lantern_jax.pictures.images import open_picture

    return open_picture(Path(arguments.start))


def _rows_kept(share: float | None, rows: int) -> int | None:
    """A share of a picture in rows of codes, 1 to all but one; None as it was."""
    return None if share is None else min(max(round(share * rows), 1), rows - 1)


def _run(arguments: argparse.Namespace) -> None:
    knobs = given_knobs(arguments)
    others = [None if path is None else Path(path) for path in (arguments.stats, arguments.race)]
    stats, race = others
    if race is not None:
        from lantern_jax.pictures.race import check_race

        check_race(race)
    compare = arguments.compare or race is not None
    if bool(arguments.prompts) == (arguments.encoded is not None):
        raise LanternError("give prompts, or --prompts FILE.npz with encoded ones: one of the two")
    encoded = None
    if arguments.encoded is not None:
        from lantern_jax.text.encoded import load_encoded

        encoded = load_encoded(arguments.encoded)
    prompts = arguments.prompts if encoded is None else encoded.prompts
    check_numbers(len(prompts), arguments.num, arguments.seed, arguments.first)
    plan = plan_pictures(
        arguments.out, [prompt for prompt in prompts for _ in range(arguments.num)], arguments.first
    )
    check_outputs(plan, [path for path in others if path is not None], arguments.overwrite)
    check_knobs(knobs), check_mesh(arguments.mesh, arguments.hosts)
    start = _read_start(arguments)
    writes = join_hosts(arguments.hosts)

    from lantern_jax.devices.compilation import keep_compiled_programs
    from lantern_jax.pipeline.pipeline import load
    from lantern_jax.settings.recipe import without_effect

    keep_compiled_programs()
    pipeline = load(arguments.model, arguments.dtype, tuned=arguments.tuned, mesh=mesh_of(arguments))
    numbers = {"num": arguments.num, "seed": arguments.seed, "first": arguments.first}
    if start is not None:
        keep_rows = _rows_kept(arguments.keep, pipeline.checkpoint.target_config.grid)
        numbers |= {"start": start, "keep_rows": keep_rows}
    made = pipeline.check(prompts if encoded is None else encoded, **numbers, **knobs)
    settings, notes = settings_json(made), without_effect(knobs, made)
    if start is not None:
        settings["keep_rows"] = numbers["keep_rows"]
    if not pipeline.draws:
        raise LanternError(f"{arguments.model} has no VQ tokenizer to draw with: convert it again with one")

    from lantern_jax.commands.report import decoding_progress, picture_files, show_statistics

    def write(generation, plan: PicturePlan, others: dict[Path, bytes]) -> None:
        if not writes:
            return
        num = arguments.num if len(generation.numbers) == count else None
        if not arguments.compare:
            generation = dataclasses.replace(generation, plain=None)
        pictures = picture_files(plan, generation, num, arguments.show_acceptance, arguments.seed, settings)
        write_outputs(plan, pictures | others)

    count, generation = len(prompts) * arguments.num, None
    for note in (pipeline.tuning(count, **knobs).note, *(f"--{idle.replace('_', '-')}" for idle in notes)):
        if note and writes:
            say(f"lantern: {note}", error=True)
    try:
        with decoding_progress(count, compare) as progress:
            conditioning = pipeline.encode(prompts) if encoded is None else encoded
            generation = pipeline.generate_from(
                conditioning, compare=compare, progress=progress, **numbers, **knobs
            )
        write(generation, plan, _others(generation, stats, race))
    except KeyboardInterrupt as stop:
        # Of those that are done; all, where it came in while they were written.
        generation = getattr(stop, "generation", generation)
        if generation is None:
            raise
        write(generation, plan.of(generation.numbers - arguments.first), {})
        wrote = f"wrote {len(generation.numbers)} of {count} pictures to {plan.place}"
        raise KeyboardInterrupt(f"interrupted, {wrote}") from None
    show_statistics(generation, plan.place)
