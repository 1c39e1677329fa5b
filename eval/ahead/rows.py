"""Rows of the account: one per program, for a file and for tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from eval.ahead.account import Account, Work, account_of
from eval.ahead.compiling import Compiled
from eval.ahead.slices import Slice
from lantern_jax.apps.measuring.data_sheets import GIB, GPU
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json

# The most bytes of a file of rows.
_LARGEST = 2**26
# The fields that tell rows apart, and those that are compared.
KEY = ("device", "mesh", "size", "method", "batch", "program")
COMPARED = (
    *("arguments_bytes", "temporary_bytes", "copied_bytes", "cycles_per_round", "kernels_per_round"),
    *("cycles_per_call", "kernels_per_call"),
)


@dataclass(frozen=True)
class AheadRow:
    """What compiling one program for a device showed; numbers are per device, None where there is none.

    Attributes:
        device, mesh, size, method, batch, program: what was compiled.
        arguments_bytes, temporary_bytes, results_bytes, state_bytes, code_bytes, copied_bytes: as in ``Account``.
        cycles_per_round, kernels_per_round: of the decoding loop: a TPU's estimated cycles, a GPU's launches.
        cycles_per_call, kernels_per_call: the same outside that loop, or of a program without one.
        parts: the cycles or launches of a round, by part.
        collectives: those of a round, or of a program without rounds: kind -> {"count", "bytes"}.
        inner_loops: loops within a round, whose bodies are counted once.
        compile_seconds: the seconds spent tracing and compiling.
        error: why the compiler refused, or None.
    """

    device: str
    mesh: str | None
    size: str
    method: str
    batch: int
    program: str
    arguments_bytes: int | None = None
    temporary_bytes: int | None = None
    results_bytes: int | None = None
    state_bytes: int | None = None
    code_bytes: int | None = None
    copied_bytes: int | None = None
    cycles_per_round: int | None = None
    kernels_per_round: int | None = None
    cycles_per_call: int | None = None
    kernels_per_call: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    collectives: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    inner_loops: int | None = None
    compile_seconds: float = 0.0
    error: str | None = None

    @property
    def key(self) -> tuple:
        """What tells this row from others."""
        return tuple(getattr(self, name) for name in KEY)


def row_of(slice_: Slice, size: str, method: str, batch: int, made: Compiled) -> AheadRow:
    """Returns the row of a program that was compiled or refused."""
    names = (slice_.name, slice_.mesh, size, method, batch, made.kind)
    seconds = round(made.seconds, 1)
    if made.program is None:
        needed = made.needed or None
        return AheadRow(
            *names,
            arguments_bytes=made.arguments,
            temporary_bytes=needed,
            compile_seconds=seconds,
            error=made.error,
        )
    device = slice_.device
    account = account_of(made.program, device, made.kind == "advance")
    needed = account.arguments + account.temporaries + account.results + account.code
    error = None
    if needed > device.memory:
        error = f"does not fit: {needed / GIB:.4g} GiB, {device.memory / GIB:.4g} GiB there"
    numbers = _numbers(account, device.platform == GPU)
    return AheadRow(*names, **numbers, compile_seconds=seconds, error=error)


def _numbers(account: Account, is_gpu: bool) -> dict[str, Any]:
    unit = "kernels" if is_gpu else "cycles"
    main: Work = account.round or account.call
    numbers = {
        "arguments_bytes": account.arguments,
        "temporary_bytes": account.temporaries,
        "results_bytes": account.results,
        "state_bytes": account.state,
        "code_bytes": account.code,
        "copied_bytes": account.copied,
        f"{unit}_per_call": getattr(account.call, unit),
        "collectives": main.collectives,
    }
    if account.round is None:
        return numbers
    more = {f"{unit}_per_round": getattr(account.round, unit), "inner_loops": account.round.loops}
    return numbers | more | {"parts": account.round.parts}


def to_json(rows: Sequence[AheadRow]) -> str:
    """Returns the text of a file of rows."""
    return json.dumps([asdict(row) for row in rows], indent=1) + "\n"


def read_ahead_rows(file: str | Path) -> list[AheadRow]:
    """Reads a file of rows; LanternError if it is not one."""
    content = read_json(file, _LARGEST)
    known = {each.name for each in fields(AheadRow)}
    if not isinstance(content, list) or not all(
        isinstance(row, dict) and set(KEY) <= set(row) for row in content
    ):
        raise LanternError(f"{file} holds no rows of eval.ahead: give what --json wrote")
    return [AheadRow(**{name: value for name, value in row.items() if name in known}) for row in content]


def changes(rows: Sequence[AheadRow], old: Sequence[AheadRow]) -> list[tuple[AheadRow, AheadRow]]:
    """Returns (old, new) for the rows that both have and that differ in a number or in being refused."""
    before = {row.key: row for row in old}
    pairs = [(before[row.key], row) for row in rows if row.key in before]

    def differ(one: AheadRow, other: AheadRow) -> bool:
        numbers = any(getattr(one, name) != getattr(other, name) for name in COMPARED)
        return numbers or one.collectives != other.collectives or one.error != other.error

    return [(one, other) for one, other in pairs if differ(one, other)]
