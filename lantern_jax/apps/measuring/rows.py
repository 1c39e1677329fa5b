"""What a benchmark returns: one row per configuration, kept as JSON lines.

Axes: D depth of the tree.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import parse_json, read_text

# The method that all others are compared with.
PLAIN = "ar"
_LARGEST = 64 * 2**20
# The fields that agree in two rows if they measure the same thing.
IDENTITY = (
    "model", "pixels", "dtype", "device", "batch", "guidance", "method", "options", "nodes", "depth", "forced",
    "accept_lengths",
)  # fmt: skip
# The fields that are compared between them.
COMPARED = ("seconds", "ms_a_pass", "tokens_a_pass", "speedup", "efficiency")


@dataclass(frozen=True)
class Row:
    """One configuration, measured.

    Attributes:
        model: a checkpoint's name, or "random" and a size.
        pixels: pixels per side of a picture.
        dtype: dtype of parameters and matrix products.
        device: its kind, and how many where there are several.
        batch: pictures decoded together.
        guidance: the scale; 1 means none.
        method: its text.
        options: those of decoding that were given besides, by name.
        nodes, depth: of the tree, the root not counted; 0 for plain decoding and for what drafts no tree.
        passes: passes of the target after prefill, per picture.
        tokens_a_pass: tokens per pass, the first token of each picture not counted.
        acceptance: [D], the share of passes that accepted at least 1, 2, ... draft tokens.
        ms_a_pass: milliseconds per pass of the whole batch, drafting included.
        seconds: seconds per picture, prefill included, compiling and drawing left out; median of ``repeats`` batches.
        quartiles: the first and third quartiles of those.
        repeats: how many batches were decoded.
        plain_seconds: seconds per picture of plain decoding, for the same pictures in the same run; a median too.
        pictures_a_second: 1 / seconds.
        speedup: plain_seconds / seconds.
        speedup_quartiles: plain_seconds / each of the quartiles, the smaller first.
        efficiency: speedup / tokens_a_pass: 1 where a pass costs what a step of plain decoding does.
        floor_share: the share of a pass that reading its weights and cache takes at the bandwidth measured beside it;
            the median over the repeats.
        bandwidth: bytes per second, the median over the repeats.
        peak_memory: the most bytes so far in this process, of the device, or of the process if the device reports none.
        substituted: the share of tokens that a relaxed rule put in place of the strict rule's; None where acceptance is
            forced or no rule is asked.
        distortion: the mean codebook distance of those tokens; None likewise.
        forced: whether accepted lengths were replayed: such a row says something about the engine, not about a drafter.
        accept_lengths: the profile that was replayed; None where none was.
        measured_passes: passes after which a picture was stopped and the rest extrapolated; None for whole pictures.
        parts: milliseconds per pass by part, from a profile (``eval.accelerator``); None where none was taken.
        kernels: kernels or operations that the device ran per pass, from the same profile; None without such a device.
        versions: of lantern_jax, jax, jaxlib and python.
    """

    model: str
    pixels: int
    dtype: str
    device: str
    batch: int
    guidance: float
    method: str
    options: Mapping[str, Any]
    nodes: int
    depth: int
    passes: float
    tokens_a_pass: float
    acceptance: Sequence[float]
    ms_a_pass: float
    seconds: float
    quartiles: Sequence[float]
    repeats: int
    plain_seconds: float
    pictures_a_second: float
    speedup: float
    speedup_quartiles: Sequence[float]
    efficiency: float
    floor_share: float
    bandwidth: float
    peak_memory: int
    substituted: float | None
    distortion: float | None
    forced: bool
    accept_lengths: Any = None
    measured_passes: int | None = None
    parts: Mapping[str, float] | None = None
    kernels: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether it is the plain decoding that others are compared with."""
        return self.method == PLAIN

    @property
    def identity(self) -> str:
        """The same for two rows that measure the same thing."""
        return json.dumps([getattr(self, name) for name in IDENTITY], sort_keys=True)

    @property
    def label(self) -> str:
        """The method with its options, for people."""
        return " ".join(
            [errors.short(self.method, 60), *(f"{name}={value}" for name, value in self.options.items())]
        )


def to_lines(rows: Iterable[Row]) -> str:
    """Returns JSON lines, one per row."""
    return "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)


def row_of(values: Mapping[str, Any]) -> Row:
    """Returns the row in a JSON object, without anything else it holds; TypeError if something is missing."""
    names = {part.name for part in fields(Row)}
    return Row(**{name: value for name, value in values.items() if name in names})


def read_rows(file: str | Path) -> list[Row]:
    """Reads the rows of a file of JSON lines.

    Raises:
        LanternError: the file cannot be read, or a line of it is not a row.
    """
    rows, wanted = [], "give a file that `lantern bench --out` wrote"
    try:
        lines = read_text(file, _LARGEST).splitlines()
    except ValueError as error:
        why = errors.short(str(error).removeprefix(f"{file} "))
        raise LanternError(f"cannot read {file} ({why}): {wanted}") from None
    for number, line in enumerate(filter(str.strip, lines), 1):
        try:
            rows.append(row_of(parse_json(line, "it")))
            # Nothing is computed with the others.
            if not all(isinstance(getattr(rows[-1], name), int | float | None) for name in COMPARED):
                raise LanternError("a number that is none")
        except (ValueError, TypeError, AttributeError):
            raise LanternError(f"{file}: line {number} is no row: {wanted}") from None
    if not rows:
        raise LanternError(f"{file} holds no row: {wanted}")
    return rows


def against(new: Iterable[Row], old: Iterable[Row]) -> list[tuple[Row, dict[str, float]]]:
    """Returns rows with an older row of the same configuration (the last one), and new / old of what is compared."""
    known = {row.identity: row for row in old}
    pairs = [(row, known[row.identity]) for row in new if row.identity in known]
    return [
        (row, {name: getattr(row, name) / getattr(other, name) for name in COMPARED if getattr(other, name)})
        for row, other in pairs
    ]
