"""Makes docs/results.md and its pictures from the measurements in docs/results/.

    python -m eval.results [--docs docs] [--check]

A file docs/results/NAME.jsonl holds rows of ``lantern bench --out`` or of ``eval.methods``, NAME.json what
``eval.accelerator`` wrote. Each file becomes a section with its tables, and a picture NAME.svg beside the file, which
needs matplotlib. With ``--check`` nothing is written or drawn, and a page or picture of other numbers is an error.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from eval.plots import Bar, Bars, Panel, is_current
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.measuring.rows import row_of
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json, read_text, write_files

Row = Mapping[str, Any]
# A heading, and a row's cell below it; None for an empty one.
Column = tuple[str, Callable[[Row], str | None]]

# The most bytes of a file of rows.
_LARGEST = 2**26
MEASURES = {
    "frechet": "Fréchet",
    "tokenizer_frechet": "Fréchet, tokenizer's features",
    "kid": "KID",
    "agreement": "caption agreement",
}
HEAD = """# Results

Made by `python -m eval.results` from what was measured, in `docs/results/`; not written by hand. The official programs
are measured beside ours on [a page of their own](peers.md).
"""
QUALITY = """\
Every setting draws the same prompts and seeds as plain decoding (`ar`), a batch of each in turns; brackets are 95 %
intervals of a bootstrap over prompts, and differences to plain decoding are taken draw by draw. *Speed-up* is that at
this batch; a CPU has little left to gain at a large one. *Fréchet* is the distance of the demo classifier's features to
painted landscapes of the same prompts, *KID* the kernel distance of the same; with the *tokenizer's features* the
distance is to landscapes as the tokenizer gives them back; *caption agreement* is the classifier's probability of what
the prompts ask for. A strict method on the shared noise makes plain decoding's pictures, except at float32 near-ties.

The window is fixed by plain decoding alone: if its pictures under two seeds are swapped at random, prompt by prompt,
the two sides differ by less than the window in 99 % of all cases. It reaches equally far to either side. Values outside
it are bold."""
SPEED = """\
Seconds per picture exclude compiling and drawing. *Speed-up* is plain decoding's seconds over a method's in the same
run, the median of its repeats with its quartiles; *efficiency* is speed-up over tokens per pass; *of the floor* is the
share of a pass that reading the weights takes at the bandwidth measured beside it, in files that have it."""
FORCED = "Accepted lengths were replayed with random weights: these rows measure the engine, not a drafter."


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a file. Raises LanternError if a line is not a row."""
    if path.suffix == ".json":
        return read_accelerator(path)
    rows = []
    for number, line in enumerate(read_text(path, _LARGEST).splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"model", "method", "device"} <= row.keys():
            raise LanternError(
                f"{path}, line {number} is no row: give files of lantern bench or eval.methods"
            )
        rows.append(row)
    if not rows:
        raise LanternError(f"{path} holds no rows: remove it, or make it again")
    return rows


def read_accelerator(path: Path) -> list[dict[str, Any]]:
    """Reads what ``eval.accelerator`` wrote; plain decoding, measured with every other row, is taken once."""
    try:
        parts = read_json(path, _LARGEST)["parts"]
        measured = [row for part in parts for row in part.get("rows", []) if isinstance(row, dict)]
        found = [row for row in measured if {"method", "versions"} <= row.keys()]
        first = {(row["model"], row["batch"], row["method"], str(row["options"])): row for row in found[::-1]}
    except (ValueError, TypeError, KeyError, AttributeError):
        first = {}
    if not first:
        raise LanternError(f"{path} holds no rows: give what eval.accelerator wrote")
    return [row | {"command": "python -m eval.accelerator"} for row in list(first.values())[::-1]]


def number(value: Any, digits: int = 2, signed: bool = False) -> str | None:
    """Formats a number, or one with its interval as [value, low, high]; returns None for None."""
    if value is None:
        return None
    form = f"{'+' if signed else ''}.{digits}f"
    if isinstance(value, list | tuple):
        return f"{value[0]:{form}} [{value[1]:{form}}, {value[2]:{form}}]"
    return f"{value:{form}}"


def percent(value: Any) -> str | None:
    """Formats a share in per cent, without its interval if it has one; returns None for None."""
    if value is None:
        return None
    share = value[0] if isinstance(value, list | tuple) else value
    return "0" if share == 0 else f"{share:.1%}".replace("%", " %")


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Returns a Markdown table of the columns that have a cell in at least one row."""
    cells = [[of(row) for _, of in columns] for row in rows]
    kept = [i for i in range(len(columns)) if any(line[i] for line in cells)]
    lines = [[columns[i][0] for i in kept], ["---"] * len(kept)]
    lines += [[line[i] or "" for i in kept] for line in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def quality_columns(rows: Sequence[Row]) -> list[Column]:
    """Returns the columns of the table about pictures."""

    def less(measure: str) -> Column:
        digits = 3 if measure == "agreement" else 4 if measure == "kid" else 2

        def cell(row: Row) -> str | None:
            value = number(row.get(f"{measure}_less_plain"), digits, signed=True)
            return f"**{value}**" if measure in row["outside"] else value

        return f"{MEASURES[measure]} less plain's", cell

    def of(measure: str) -> Column:
        return MEASURES[measure], lambda row: number(row.get(measure), 3 if measure != "frechet" else 2)

    there = [measure for measure in MEASURES if measure in rows[0]]
    return [
        ("setting", lambda row: f"`{row['method']}`" + (" **outside**" if row["outside"] else "")),
        ("tokens per pass", lambda row: number(row["tokens_a_pass"])),
        ("speed-up", lambda row: number(row["speedup"])),
        ("substituted", lambda row: None if row["strict"] else percent(row["substituted"])),
        ("their distance", lambda row: None if row["strict"] else number(row["distortion"][0])),
        ("pictures equal to plain's", lambda row: percent(row["same_pictures"])),
        *(of(measure) for measure in there),
        *(less(measure) for measure in there),
    ]


def speed_columns() -> list[Column]:
    """Returns the columns of a benchmark's table."""

    def spread(name: str, digits: int) -> Callable[[Row], str | None]:
        return lambda row: number([row[name], *row[f"{name}_quartiles"]], digits)

    def given(name: str, show: Callable[[Any], str | None]) -> Callable[[Row], str | None]:
        return lambda row: show(row.get(name))

    return [
        ("method", lambda row: f"`{row['label']}`"),
        ("batch", lambda row: str(row["batch"])),
        ("nodes, depth", lambda row: f"{row['nodes']}, {row['depth']}" if row["nodes"] else None),
        ("tokens per pass", given("tokens_a_pass", number)),
        ("ms per pass", given("ms_a_pass", lambda value: number(value, 1 if value > 5 else 2))),
        ("kernels per pass", given("kernels", lambda value: None if value is None else f"{value:.0f}")),
        ("seconds per picture", given("seconds", lambda value: number(value, 3 if value > 0.05 else 4))),
        ("speed-up", spread("speedup", 2)),
        ("efficiency", given("efficiency", number)),
        ("of the floor", given("floor_share", percent)),
        ("substituted", given("substituted", percent)),
        ("distortion", given("distortion", lambda value: number(value) if value else None)),
    ]


def quality_panels(rows: Sequence[Row]) -> list[Panel]:
    """Returns panels of speed-up and of each measure's difference to plain decoding, with its window."""
    panels = [Panel("speed-up", [Bar(*row["speedup"]) for row in rows])]
    for measure in (name for name in MEASURES if name in rows[0]):
        bars = [Bar(*row[f"{measure}_less_plain"], measure in row["outside"]) for row in rows]
        window = rows[0]["windows"][measure]
        panels.append(Panel(f"{MEASURES[measure]} less plain's", bars, (-window, window)))
    return panels


def quality_section(rows: Sequence[Row]) -> str:
    """Returns the text about pictures."""
    first = rows[0]
    windows = ", ".join(
        f"{MEASURES[name]} ±{width:.3g}" for name, width in first["windows"].items() if name in MEASURES
    )
    outside = [
        f"- `{row['method']}` is outside by {' and '.join(MEASURES.get(name, name) for name in row['outside'])}."
        for row in rows
        if row["outside"]
    ]
    text = [
        f"{first['model']}, {first['pictures']} pictures per setting, batch {first['batch']}, seed {first['seed']}, "
        f"guidance {first['guidance']:g}; {machine(first)}.",
        QUALITY,
        f"Windows: {windows}.",
        table(quality_columns(rows), rows),
        "\n".join(outside),
        f"```sh\n{first['command']}\n```",
    ]
    return "\n\n".join(filter(None, text))


def speed_section(rows: Sequence[Row]) -> str:
    """Returns the text about a benchmark, with a table for rows of the same model, machine and versions."""

    def subject(row: Row) -> str:
        forced = f" {FORCED}" if row["forced"] else ""
        return f"{row['model']}, {row['pixels']} px, guidance {row['guidance']:g}; {machine(row)}.{forced}"

    text = [SPEED]
    for line, group in groupby(sorted(rows, key=subject), key=subject):
        text += [line, table(speed_columns(), list(group))]
    commands = dict.fromkeys(row["command"] for row in rows if row.get("command"))
    return "\n\n".join(text + [f"```sh\n{command}\n```" for command in commands])


def machine(row: Row) -> str:
    """Describes what computed: device, dtype and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(row["versions"].items()))
    return f"{row['device']}, {row['dtype']}, {versions}"


def is_quality(row: Row) -> bool:
    return row.get("kind") == "quality"


def section(path: Path) -> tuple[str, Bars]:
    """Returns a file's section of the page, and its picture."""
    rows = read_rows(path)
    if any(is_quality(row) != is_quality(rows[0]) for row in rows):
        raise LanternError(f"{path} mixes rows of benchmarks and of pictures: give each a file of its own")
    title = path.stem.replace("-", " ").replace("_", " ").capitalize()
    if is_quality(rows[0]):
        body, labels, panels = quality_section(rows), [row["method"] for row in rows], quality_panels(rows)
    else:
        rows = [row | {"label": _label(row, path)} for row in rows]
        body, labels = speed_section(rows), [f"{row['label']}, batch {row['batch']}" for row in rows]
        bars = [Bar(row["speedup"], *row["speedup_quartiles"], bool(row["forced"])) for row in rows]
        panels = [Panel("speed-up", bars)]
    picture = f"![{title}: bars with intervals.](results/{path.stem}.svg)"
    return f"## {title}\n\n{picture}\n\n{body}\n", Bars(title, labels, panels)


def _label(row: Row, path: Path) -> str:
    try:
        return row_of(row).label
    except TypeError:
        raise LanternError(
            f"{path} holds something that is not a row: give files of lantern bench or eval.methods"
        ) from None


def make(docs: Path) -> tuple[str, dict[Path, Bars]]:
    """Returns the page, and its pictures by file."""
    files = sorted(path for path in (docs / "results").glob("*.json*") if path.suffix in (".json", ".jsonl"))
    if not files:
        raise LanternError(
            f"{docs / 'results'} holds no .json or .jsonl files: put what was measured there first"
        )
    sections = {path: section(path) for path in files}
    pictures = {path.with_suffix(".svg"): picture for path, (_, picture) in sections.items()}
    page = "\n".join([HEAD, *(text for text, _ in sections.values())])
    return page, pictures


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the page and its pictures, or checks them."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--docs", type=arguments.folder, default=Path("docs"), help="folder of the page (default docs)"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if something is not up to date"
    )
    options = parser.parse_args(argv)
    page, pictures = make(options.docs)
    file = options.docs / "results.md"
    stale = [path for path, picture in pictures.items() if not is_current(path, picture)]
    if not options.check:
        # Pictures of the same numbers stay: other versions of matplotlib draw other bytes.
        return write_files({file: page} | {path: pictures[path].draw() for path in stale})
    if not file.exists() or file.read_text(encoding="utf-8") != page:
        stale.append(file)
    if stale:
        names = ", ".join(map(str, stale))
        raise LanternError(f"not what the measured files give: {names}; run python -m eval.results")


if __name__ == "__main__":
    run_script(main)
