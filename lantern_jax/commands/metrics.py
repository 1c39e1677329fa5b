"""``lantern metrics``: how far pictures are from others, and how well they fit their prompts."""

import argparse
import json
from pathlib import Path
from typing import Any

from lantern_jax.commands.arguments import whole
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_new_file, write_files


def add(commands) -> None:
    """Adds ``metrics`` to a parser's commands."""
    parser = commands.add_parser(
        "metrics", help="measure pictures against others and their prompts", allow_abbrev=False
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument
    add(
        "set",
        metavar="SET",
        help="pictures: a folder, a picture set, an .npz file of pictures or of statistics",
    )
    add("--reference", metavar="SET|FILE.npz", help="what to compare with: pictures or saved statistics")
    add(
        "--features",
        metavar="NAME,NAME",
        help="who reads the pictures: demo, inception, vgg, clip (default: demo)",
    )
    add("--preprocessing", metavar="NAME", help="of Inception: clean, pytorch-fid, tf; of VGG: linear, relu")
    add(
        "--scores",
        metavar="NAME,NAME",
        help="of pictures with prompts: agreement, clip, clip-lantern, hpsv2, image-reward",
    )
    add("--prompts", metavar="FILE", help="prompts, one a line, for pictures that do not carry theirs")
    add("--weights", action="append", default=[], metavar="[NAME=]FILE", help="of a network; once for each")
    add("--preset", metavar="NAME", help="measure as published: lantern, adm")
    add("--with-slips", action="store_true", help="with the known slips of the preset's program")
    add("--neighbours", type=whole(), metavar="K", help="precision and recall: reach of a ball (default: 3)")
    add("--strict", action="store_true", help="precision and recall: a ball's surface is not in it")
    add(
        "--replicates",
        type=whole(0),
        metavar="N",
        help="bootstrap for the Fréchet distance (default: 200; 0 if wide)",
    )
    add("--save-reference", metavar="FILE.npz", help="keep what was read of the reference")
    add("--out", metavar="FILE.json", help="write all numbers as JSON")
    add("--overwrite", action="store_true", help="replace files that exist")


def _run(arguments: argparse.Namespace) -> None:
    from lantern_jax.metrics.registry import READERS, SCORES, check_names, weight_files

    readings, scores = _readings(arguments), []
    if arguments.scores is not None:
        scores = check_names(arguments.scores, SCORES, "score")
    if not readings and not scores:
        raise LanternError("nothing to measure: give --reference SET or --scores NAME")
    kinds = {reading.features: READERS[reading.features] for reading in readings}
    kinds |= {name: SCORES[name] for name in scores}
    files = weight_files(arguments.weights, kinds)
    _check_outputs(arguments)
    prompts = _check_pictures(arguments, bool(scores))

    from lantern_jax.commands.report import working
    from lantern_jax.devices.compilation import keep_compiled_programs
    from lantern_jax.sets.comparison import score_pictures
    from lantern_jax.sets.sources import read_pictures, with_prompts

    keep_compiled_programs()
    preset = _preset(arguments)
    report = {"set": arguments.set, "reference": arguments.reference, "preset": arguments.preset}
    report |= {"slips": _slips(arguments), "distances": [], "scores": [], "versions": _versions()}
    with working("measuring"):
        saved = []
        for reading in readings:
            row, real = _compare(arguments, reading, files[reading.features])
            report["distances"].append(row)
            saved.append(real)
        for name in scores:
            score = SCORES[name].build(files[name])
            steps = preset.score_steps(name, arguments.with_slips) if preset else []
            pictures = with_prompts(read_pictures(arguments.set), prompts)
            report["scores"].append({"score": name} | score_pictures(score, pictures, steps))
    outputs = {}
    if arguments.save_reference is not None:
        from lantern_jax.sets.statistics import statistics_file

        outputs[Path(arguments.save_reference)] = statistics_file(saved)
    if arguments.out is not None:
        outputs[Path(arguments.out)] = json.dumps(report, indent=1) + "\n"
    write_files(outputs)
    _show(report)


def _preset(arguments: argparse.Namespace):
    from lantern_jax.metrics.protocols import find_preset

    return None if arguments.preset is None else find_preset(arguments.preset)


def _readings(arguments: argparse.Namespace) -> list:
    """What is to be read of both sets; nothing without a reference."""
    from lantern_jax.metrics.protocols import Reading
    from lantern_jax.metrics.registry import READERS, check_names

    preset = _preset(arguments)
    if arguments.with_slips and preset is None:
        raise LanternError("--with-slips is of a published protocol: give --preset too")
    names = None if arguments.features is None else check_names(arguments.features, READERS, "features")
    if arguments.reference is None:
        if names is not None or arguments.save_reference is not None:
            raise LanternError("distances are to other pictures: give --reference too")
        return []
    if preset is not None:
        if arguments.preprocessing is not None or arguments.neighbours is not None or arguments.strict:
            raise LanternError(
                "--preset says how to measure: leave out --preprocessing, --neighbours, --strict"
            )
        chosen = [one for one in preset.readings if names is None or one.features in names]
        if not chosen:
            known = ", ".join(one.features for one in preset.readings)
            raise LanternError(f"--preset {arguments.preset} reads {known}, not {arguments.features}")
        return chosen
    k = 3 if arguments.neighbours is None else arguments.neighbours
    kinds, wanted = {name: READERS[name] for name in names or ["demo"]}, arguments.preprocessing
    choices = dict.fromkeys(choice for kind in kinds.values() for choice in kind.preprocessings if choice)
    if wanted is not None and wanted not in choices:
        if not choices:
            raise LanternError(
                f"{', '.join(kinds)} features have one preprocessing: leave out --preprocessing"
            )
        raise errors.unknown("preprocessing", wanted, choices)
    return [
        Reading(
            name,
            wanted if wanted in kind.preprocessings else kind.preprocessings[0],
            kind.measures,
            k=k,
            strict=arguments.strict,
        )
        for name, kind in kinds.items()
    ]


def _check_outputs(arguments: argparse.Namespace) -> None:
    outputs = [Path(path) for path in (arguments.out, arguments.save_reference) if path is not None]
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise LanternError(f"{outputs[0]} is named for two outputs: give each a file of its own")
    for path in outputs:
        check_new_file(path, arguments.overwrite)
    if arguments.save_reference is not None and not arguments.save_reference.endswith(".npz"):
        raise LanternError(f"--save-reference {arguments.save_reference}: end its name in .npz")


def _check_pictures(arguments: argparse.Namespace, scored: bool) -> list[str] | None:
    """The prompts of --prompts; raises ValueError, before networks are read, for sets that are none."""
    from lantern_jax.sets.sources import read_pictures, with_prompts
    from lantern_jax.sets.statistics import is_statistics
    from lantern_jax.text.prompt_files import read_prompts

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


def _compare(arguments: argparse.Namespace, reading, weights: Path | None) -> tuple[dict[str, Any], Any]:
    """(numbers, statistics of the reference) of one reading."""
    from lantern_jax.sets.comparison import build_reader, check_sizes, compare
    from lantern_jax.sets.statistics import statistics_of

    reader = build_reader(reading, weights)
    real, made = statistics_of(arguments.reference, reader), statistics_of(arguments.set, reader)
    preset = _preset(arguments)
    if preset is not None:
        check_sizes(preset, made, real)
    return compare(made, real, reading, arguments.replicates), real


def _slips(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    preset = _preset(arguments)
    return [] if preset is None else [
        {"what": slip.what, "applied": arguments.with_slips and slip.step is not None} for slip in preset.slips
    ]  # fmt: skip


def _versions() -> dict[str, str]:
    import jax
    import numpy
    import PIL

    versions = {"jax": jax.__version__, "numpy": numpy.__version__, "pillow": PIL.__version__}
    return versions | {"device": jax.devices()[0].device_kind}


def _show(report: dict[str, Any]) -> None:
    """Prints the tables: every number with the pictures it is of and who read them."""
    from rich.table import Table

    from lantern_jax.io.console import Console
    from lantern_jax.metrics.registry import READERS

    console = Console(soft_wrap=True)
    for row in report["distances"]:
        table = Table(box=None, pad_edge=False, show_header=False)
        for label, value in _lines(row, READERS[row["features"]].distance):
            table.add_row(label, value)
        console.print(table)
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in report["scores"]:
        low, high = row["interval"]
        table.add_row(row["name"], f"{row['mean']:.4f} [{low:.4f}, {high:.4f}], {row['pictures']:,} pictures")
    if report["scores"]:
        console.print(table)
    if report["reference"] is not None:
        console.print(f"{report['set']} against {report['reference']}")
    for slip in report["slips"]:
        console.print(f"slip {'applied' if slip['applied'] else 'not applied'}: {slip['what']}")


def _lines(row: dict[str, Any], distance: str) -> list[tuple[str, str]]:
    def count(number: int | None) -> str:
        # Such a file does not say by whom it was read either.
        return "not known, taken to be of this reader" if number is None else f"{number:,}"

    pictures = f"{count(row['pictures'])}, reference {count(row['reference_pictures'])}"
    lines = [("read by", row["reader"]), ("pictures", pictures)]
    if "frechet" in row:
        lines.append((distance, f"{row['frechet']:.4f}"))
        if "frechet_interval" in row:
            low, high = row["frechet_interval"]
            lines[-1] = (distance, f"{row['frechet']:.4f} [{low:.4f}, {high:.4f}]")
    if "kid" in row:
        kid = row["kid"]
        lines.append(
            ("KID x 1000", f"{1000 * kid['mean']:.4f} ± {1000 * kid['deviation']:.4f}"
                           f" ({kid['subsets']} subsets of {kid['size']})")
        )  # fmt: skip
    if "cmmd" in row:
        lines.append(("CMMD", f"{row['cmmd']:.4f}"))
    if "precision" in row:
        how = f"k {row['k']}, {'<' if row['strict'] else '<='}"
        lines += [
            ("precision", f"{row['precision']:.4f} ({how})"),
            ("recall", f"{row['recall']:.4f} ({how})"),
        ]
    if row["left_out"]:
        lines.append((", ".join(row["left_out"]), "not known: a file holds no features"))
    return lines
