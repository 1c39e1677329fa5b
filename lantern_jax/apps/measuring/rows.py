"""What a benchmark returns: one row per configuration, kept as JSON lines.

Axes: D depth of the tree.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from lantern_jax.io import errors

# The method that all others are compared with.
PLAIN = "ar"


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
        speedup: plain_seconds / seconds.
        speedup_quartiles: plain_seconds / each of the quartiles, the smaller first.
        efficiency: speedup / tokens_a_pass: 1 where a pass costs what a step of plain decoding does.
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
    speedup: float
    speedup_quartiles: Sequence[float]
    efficiency: float
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
