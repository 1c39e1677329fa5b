"""What a benchmark hands back: a row a configuration, kept as JSON lines.

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
# What makes two rows measurements of the same thing.
IDENTITY = (
    "model", "pixels", "dtype", "device", "batch", "guidance", "method", "knobs", "nodes", "depth", "forced",
    "accept_lengths",
)  # fmt: skip
# What is compared between them.
COMPARED = ("seconds", "ms_a_pass", "tokens_a_pass", "speedup", "efficiency")


@dataclass(frozen=True)
class Row:
    """One configuration, measured.

    Attributes:
        model: a checkpoint's name, or "random" and a size.
        pixels: a side of a picture.
        dtype: of parameters and matrix products.
        device: its kind, and how many where there are several.
        batch: pictures decoded together.
        guidance: the scale; 1 is none.
        method: its name.
        knobs: those that were given beside the method, by name.
        nodes, depth: of the tree, the root not counted; 0 of plain decoding and of what drafts no tree.
        passes: of the target after prefill, a picture.
        tokens_a_pass: tokens after the first of each picture, a pass.
        acceptance: [D], the share of passes that accepted at least 1, 2, ... draft tokens.
        ms_a_pass: milliseconds, for the whole batch, drafting included.
        ms_a_level: milliseconds that each further level of the draft takes; None where a method has no levels.
        seconds: a picture, prefill included, compiling and drawing left out; the median of ``repeats`` batches.
        quartiles: the first and third of those.
        repeats: how many batches were decoded.
        plain_seconds: of plain decoding of the same pictures in the same run.
        pictures_a_second: 1 / seconds.
        speedup: the median over the repeats of plain decoding's seconds over the row's, one after the other.
        speedup_quartiles: the first and third of those ratios.
        efficiency: speedup / tokens_a_pass: 1 where a pass costs what a step of plain decoding does.
        floor_share: the share of a pass that reading its weights and cache takes at the bandwidth that was measured
            beside it; the median over the repeats.
        bandwidth: bytes per second, the median over the repeats.
        peak_memory: bytes: the most so far in this process, of the device, or of the process where the device does
            not tell.
        compile_cold, compile_warm: seconds of tracing and compiling with nothing kept, and with programs kept by
            JAX's cache; None where it was not measured.
        substituted: share of tokens that a relaxed rule put in place of the strict one's; None where acceptance is
            forced, or no rule is asked.
        distortion: their mean distance in the codebook; likewise.
        forced: whether accepted lengths were replayed: such a row tells of the engine, not of a drafter.
        accept_lengths: the profile that was replayed; None where none was.
        measured_passes: passes after which a picture was stopped and the rest reckoned; None for whole pictures.
        parts: milliseconds of a pass by its part, from a profile; None where none was taken.
        kernels: kernels or operations that the device ran a pass, from the same; None where there is no such device.
        versions: of lantern_jax, jax, jaxlib and python.
    """

    model: str
    pixels: int
    dtype: str
    device: str
    batch: int
    guidance: float
    method: str
    knobs: Mapping[str, Any]
    nodes: int
    depth: int
    passes: float
    tokens_a_pass: float
    acceptance: Sequence[float]
    ms_a_pass: float
    ms_a_level: float | None
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
    compile_cold: float | None
    compile_warm: float | None
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
        """The method with its knobs, for people."""
        given = ",".join(f"{name}={_brief(value)}" for name, value in self.knobs.items())
        return f"{self.method}:{given}" if given else self.method


def to_lines(rows: Iterable[Row]) -> str:
    """Returns JSON lines, one per row."""
    return "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)


def row_of(values: Mapping[str, Any]) -> Row:
    """Returns the row of a JSON object, without what else it holds; TypeError where something is missing."""
    names = {part.name for part in fields(Row)}
    return Row(**{name: value for name, value in values.items() if name in names})


def read_rows(file: str | Path) -> list[Row]:
    """Reads the rows of a file of JSON lines.

    Raises:
        LanternError: the file cannot be read, or a line of it is no row.
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
            # The others are not computed with.
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


def _brief(value: Any) -> str:
    """Returns a knob's value in short: a list of paths is a tree without a name."""
    return f"{len(value)} paths" if isinstance(value, list | tuple) else str(value)
