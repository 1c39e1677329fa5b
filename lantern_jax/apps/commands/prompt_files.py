"""Published lists of prompts: lines, a column of a table, captions of COCO, classes.

Texts are not corrected: a measurement on a list of prompts needs exactly that list.
"""

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_text, parse_json, read_text

MOST_CLASSES = 1_000_000
# COCO's captions of its training pictures take 92 MB.
_LARGEST = 128 * 2**20


def read_prompts(path: str | Path, column: str | None = None) -> tuple[str, ...]:
    """Reads prompts from a file or a pipe: a named column, COCO's captions if it ends in .json, else its lines.

    Raises LanternError for a missing file or column, an empty line or cell, or bytes that are not text.
    """
    path = Path(path)
    text = _text(path)
    if column is not None:
        return _column(path, text, column)
    if path.suffix.lower() == ".json":
        return _captions(path, text)
    if path.suffix.lower() == ".tsv":
        names = errors.listed(_rows(path, text)[0][1])
        raise LanternError(f"{path} is a table: name the column of its prompts with --column ({names})")
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    return tuple(_filled(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))


def read_columns(path: str | Path, *columns: str) -> list[tuple[str, ...]]:
    """Reads several columns of a table in one go, since a pipe is read once; raises what ``read_prompts`` raises."""
    text = _text(Path(path))
    return [_column(Path(path), text, column) for column in columns]


def class_list(text: str) -> tuple[str, ...]:
    """Returns class numbers from text such as 0-999 or 207,360,386-388, in that order.

    Raises LanternError for anything but numbers and ranges.
    """
    numbers: list[int] = []
    shown = errors.short(repr(text))
    for piece in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", piece)
        more = range(int(found[1]), int(found[2] or found[1]) + 1) if found else ()
        if not more:
            raise LanternError(
                f"classes {shown} are not valid: give numbers and ranges, such as 0-999 or 207,360"
            )
        numbers += more
        if len(numbers) > MOST_CLASSES:
            raise LanternError(f"classes {shown} are more than {MOST_CLASSES}: give fewer")
    return tuple(map(str, numbers))


def _text(path: Path) -> str:
    if not path.is_file() and not path.is_fifo():
        raise LanternError(f"{path} is not a file: give prompts, one per line")
    text = read_text(path, _LARGEST, pipe=True)
    if not text.strip():
        raise LanternError(f"{path} is empty: give prompts, one per line")
    return text


def _filled(prompt: Any, place: str) -> str:
    if not isinstance(prompt, str):
        raise LanternError(f"{place} is {errors.short(repr(prompt))}, which is not text: give a prompt")
    if not prompt.strip():
        raise LanternError(f"{place} is empty: give a prompt, or take it out")
    if "\0" in prompt:
        raise LanternError(f"{place} holds a zero byte: give text")
    check_text(prompt, place)
    return prompt


def _rows(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """Returns (number of its last line, cells) of every row of a table."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise LanternError(f"{path}, line {reader.line_num}: {error}: give cells between tabs") from None


def _column(path: Path, text: str, column: str) -> tuple[str, ...]:
    (_, names), *rows = _rows(path, text)
    if names.count(column) != 1:
        there, shown = names.count(column) or "no", errors.short(repr(column))
        raise LanternError(f"{path} has {there} column {shown}: its first line names {errors.short(names)}")
    if not rows:
        raise LanternError(f"{path} has no row below its names: give prompts")
    at, prompts = names.index(column), []
    for line, cells in rows:
        if cells and len(cells) != len(names):
            raise LanternError(
                f"{path}, line {line} has {len(cells)} cells for {len(names)} columns: fix the line"
            )
        prompts.append(_filled(cells[at] if cells else "", f"{path}, line {line}, column {column!r}"))
    return tuple(prompts)


def _captions(path: Path, text: str) -> tuple[str, ...]:
    """Returns every picture's longest caption, the first of equally long ones, in the order in which pictures appear.

    LANTERN makes its list of prompts from captions_val2017.json in this way.
    """
    content = parse_json(text, str(path))
    entries = content.get("annotations") if isinstance(content, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise LanternError(f"{path} has no list 'annotations': give captions as COCO has them")
    captions: dict[str, list[str]] = {}
    for number, entry in enumerate(entries):
        place = f"{path}, annotation {number}"
        if not isinstance(entry, Mapping) or not {"image_id", "caption"} <= set(entry):
            raise LanternError(f"{place} lacks image_id or caption: give captions, not objects")
        captions.setdefault(str(entry["image_id"]), []).append(_filled(entry["caption"], place))
    return tuple(max(some, key=len) for some in captions.values())
