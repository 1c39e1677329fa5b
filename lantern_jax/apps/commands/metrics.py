"""``lantern metrics``: how far pictures are from others, and how well they fit their prompts."""

import argparse
import json
from pathlib import Path
from typing import Any

from lantern_jax.apps.commands.arguments import whole
from lantern_jax.apps.commands.options import Command
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_new_file, write_files

# Options that would do nothing without a reference.
_OF_DISTANCES = ("features", "preprocessing", "neighbours", "strict", "save_reference")


def add(commands) -> None:
    """Adds ``metrics`` to a parser's commands."""
    command = Command(commands, "metrics", "measure pictures against others and their prompts", _run)
    take, switch = command.take, command.switch
    take(
        "set",
        "SET",
        "what `generate` or `set` wrote, a folder of pictures, an .npz file of pictures or statistics",
    )
    take("--reference", "SET|FILE.npz", "what to compare with: pictures or saved statistics")
    take("--features", "NAME,NAME", "readers of pictures: demo, inception, vgg, clip (default: demo)")
    take("--preprocessing", "NAME", "of Inception: clean, pytorch-fid, tf; of VGG: linear, relu")
    take("--scores", "NAME,NAME", "of pictures with prompts: agreement, clip, clip-lantern, hpsv2")
    take("--prompts", "FILE", "prompts, one per line, for pictures that do not carry theirs")
    take("--weights", "[NAME=]FILE", "of a network, once for each", action="append")
    take("--preset", "NAME", "measure as published: lantern, adm")
    neighbours = "precision and recall: neighbour that a ball reaches (default: 3)"
    take("--neighbours", "K", neighbours, type=whole())
    switch("--strict", "precision and recall: a ball's surface is outside")
    take("--save-reference", "FILE.npz", "save what was read of the reference")
    take("--out", "FILE.json", "write all numbers as JSON")
    command.shared("--overwrite")


def _run(arguments: argparse.Namespace) -> None:
    from lantern_jax.apps.metrics.protocols import PRESETS
    from lantern_jax.apps.metrics.registry import READERS, SCORES, check_names, weight_files

    preset = None if arguments.preset is None else PRESETS.find(arguments.preset)
    readings = _readings(arguments, preset)
    scores = [] if arguments.scores is None else check_names(arguments.scores, SCORES)
    if not readings and not scores:
        raise LanternError("nothing to measure: give --reference SET or --scores NAME")
    kinds = {reading.features: READERS[reading.features] for reading in readings}
    kinds |= {name: SCORES[name] for name in scores}
    files = weight_files(arguments.weights or [], kinds)
    _check_outputs(arguments)
    prompts = _check_pictures(arguments, bool(scores))

    from lantern_jax.apps.commands.report import working
    from lantern_jax.apps.metrics.comparison import build_reader, check_sizes, compare, score_pictures
    from lantern_jax.apps.metrics.picture_sources import read_pictures, with_prompts
    from lantern_jax.apps.metrics.statistics import Statistics, is_statistics, statistics_file, statistics_of
    from lantern_jax.devices.compilation import keep_compiled_programs

    keep_compiled_programs()
    report = {"set": arguments.set, "reference": arguments.reference, "preset": arguments.preset}
    report |= {"distances": [], "scores": [], "versions": _versions()}

    def read_by_all(path: str) -> list[Statistics]:
        return [statistics_of(path, reader) for reader in readers]

    with working("measuring"):
        # Bad files are refused before pictures are read: those of networks first, then those of statistics.
        readers = [build_reader(reading, files[reading.features]) for reading in readings]
        built = {name: SCORES[name].build(files[name]) for name in scores}
        sets = dict.fromkeys([arguments.reference, arguments.set] if readers else [])
        read = {path: read_by_all(path) for path in sets if is_statistics(path)}
        # Scores come before distances, since they refuse pictures without prompts.
        for name, score in built.items():
            step = None if preset is None else preset.scores.get(name)
            pictures = with_prompts(read_pictures(arguments.set), prompts)
            report["scores"].append({"score": name} | score_pictures(score, pictures, step))
        read |= {path: read_by_all(path) for path in sets if path not in read}
        for number, reading in enumerate(readings):
            made, real = read[arguments.set][number], read[arguments.reference][number]
            if preset is not None:
                check_sizes(preset, made, real)
            report["distances"].append(compare(made, real, reading))
    outputs = {}
    if arguments.save_reference is not None:
        outputs[Path(arguments.save_reference)] = statistics_file(read[arguments.reference])
    if arguments.out is not None:
        outputs[Path(arguments.out)] = json.dumps(report, indent=1) + "\n"
    # Results are shown even if they cannot be written.
    _show(report)
    write_files(outputs)


def _readings(arguments: argparse.Namespace, preset) -> list:
    """Returns what to read of both sets; nothing without a reference."""
    from lantern_jax.apps.metrics.protocols import Reading
    from lantern_jax.apps.metrics.registry import READERS, check_names

    names = None if arguments.features is None else check_names(arguments.features, READERS)
    wanted, k = arguments.preprocessing, arguments.neighbours
    if arguments.reference is None:
        for name in _OF_DISTANCES:
            if getattr(arguments, name) not in (None, False):
                flag = f"--{name.replace('_', '-')}"
                raise LanternError(f"{flag} is of distances to other pictures: give --reference too")
        return []
    if preset is not None:
        if wanted is not None or k is not None or arguments.strict:
            raise LanternError(
                "--preset says how to measure: leave out --preprocessing, --neighbours, --strict"
            )
        chosen = [one for one in preset.readings if names is None or one.features in names]
        if not chosen:
            known = ", ".join(one.features for one in preset.readings)
            raise LanternError(f"--preset {arguments.preset} reads {known}, not {arguments.features}")
        return chosen
    kinds = {name: READERS[name] for name in names or ["demo"]}
    choices = dict.fromkeys(choice for kind in kinds.values() for choice in kind.preprocessings if choice)
    if wanted is not None and wanted not in choices:
        if choices:
            raise errors.unknown("preprocessing", wanted, choices)
        raise LanternError(f"{', '.join(kinds)} features have one preprocessing: leave out --preprocessing")

    def reading(name: str) -> Reading:
        kind = kinds[name]
        way = wanted if wanted in kind.preprocessings else kind.preprocessings[0]
        return Reading(name, way, kind.measures, k=3 if k is None else k, strict=arguments.strict)

    return [reading(name) for name in kinds]


def _check_outputs(arguments: argparse.Namespace) -> None:
    for path in filter(None, (arguments.out, arguments.save_reference)):
        check_new_file(Path(path), arguments.overwrite)
    if arguments.save_reference is not None:
        from lantern_jax.apps.metrics.statistics import check_counted

        if not arguments.save_reference.endswith(".npz"):
            raise LanternError(f"--save-reference {arguments.save_reference}: end its name in .npz")
        check_counted(arguments.reference)


def _check_pictures(arguments: argparse.Namespace, scored: bool) -> list[str] | None:
    """Returns the prompts of --prompts; raises LanternError for unreadable sets before any network is read."""
    from lantern_jax.apps.commands.prompt_files import read_prompts
    from lantern_jax.apps.metrics.picture_sources import read_pictures, with_prompts
    from lantern_jax.apps.metrics.statistics import is_statistics

    for path in filter(None, (arguments.set, arguments.reference)):
        if not is_statistics(path):
            next(iter(read_pictures(path)))
        elif scored and path == arguments.set:
            raise LanternError(f"{path} holds no pictures to score: give the pictures, or leave out --scores")
    prompts = None if arguments.prompts is None else read_prompts(arguments.prompts)
    if scored:
        next(with_prompts(read_pictures(arguments.set), prompts))
    elif prompts is not None:
        raise LanternError("--prompts are for --scores: give both, or leave it out")
    return prompts


def _versions() -> dict[str, str]:
    import jax
    import numpy
    import PIL

    versions = {"jax": jax.__version__, "numpy": numpy.__version__, "pillow": PIL.__version__}
    return versions | {"device": jax.devices()[0].device_kind}


def _show(report: dict[str, Any]) -> None:
    """Prints tables: each number with its pictures and the reader that read them."""
    from rich.table import Table

    from lantern_jax.apps.metrics.registry import READERS
    from lantern_jax.apps.terminal.console import Console

    console = Console(soft_wrap=True)
    tables = [_lines(row, READERS[row["features"]].distance) for row in report["distances"]]
    if report["scores"]:
        tables.append([(row["name"], f"{_with_interval(row, 'mean')}, pictures: {row['pictures']:,}")
                       for row in report["scores"]])  # fmt: skip
    for lines in tables:
        table = Table(box=None, pad_edge=False, show_header=False)
        for line in lines:
            table.add_row(*line)
        console.print(table)
    if report["reference"] is not None:
        console.print(f"{report['set']} against {report['reference']}")


def _with_interval(row: dict[str, Any], name: str, interval: str = "interval") -> str:
    shown = f"{row[name]:.4f}"
    return shown + " [{:.4f}, {:.4f}]".format(*row[interval]) if interval in row else shown


def _lines(row: dict[str, Any], distance: str) -> list[tuple[str, str]]:
    def count(number: int | None) -> str:
        # A file without a count does not name its reader either.
        return "not known, taken to be of this reader" if number is None else f"{number:,}"

    pictures = f"{count(row['pictures'])}, reference {count(row['reference_pictures'])}"
    lines = [("read by", row["reader"]), ("pictures", pictures)]
    if row["too_few"] is not None:
        why = f"the reader gives {row['too_few']} numbers, whose covariance needs more pictures than that in each set"
        lines.append(("too few", f"{why}: {distance} and KID say little"))
    if "frechet" in row:
        lines.append((distance, _with_interval(row, "frechet", "frechet_interval")))
    if "kid" in row:
        kid = row["kid"]
        shown = f"{1000 * kid['mean']:.4f} ± {1000 * kid['deviation']:.4f}"
        lines.append(("KID x 1000", f"{shown} ({kid['subsets']} subsets of {kid['size']})"))
    if "cmmd" in row:
        lines.append(("CMMD", f"{row['cmmd']:.4f}"))
    for name in ("precision", "recall"):
        if name in row:
            lines.append((name, f"{row[name]:.4f} (k {row['k']}, {'<' if row['strict'] else '<='})"))
    if row["left_out"]:
        lines.append((", ".join(row["left_out"]), "not known: a file holds no features"))
    return lines
