"""A knob: what is known of one setting of a generation, and the checks of numbers.

The knobs there are stand in ``settings``.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lantern_jax import errors

# Of a mesh: groups of devices that sequences are spread over, and the devices of a group that share one model.
AXES = ("data", "model")
# What one call makes, and holds until it returns; more are a set's business.
MOST_PICTURES = 10_000
# Devices compute in these, and take smaller numbers than the least normal one for 0.
_LEAST_FLOAT, _MOST_FLOAT = (float(bound) for bound in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
_MOST_INT = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Knob:
    """What is known of a knob.

    Attributes:
        name: as in ``Settings``.
        type: float, int or str; object where ``resolve_settings`` has to know it (``tree``).
        default: of ``Settings``.
        help: one line.
        metavar: what stands for its value in the command's help.
        low, high: the least and the greatest number.
        low_open, high_open: whether the bound itself is out.
        note: what a number of special meaning does.
        choices: the names there are; empty for numbers.
        by_platform: the default where it differs by platform.
    """

    name: str
    type: type
    default: Any
    help: str
    metavar: str | None = None
    low: float = 0
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    note: str = ""
    choices: tuple[str, ...] = ()
    by_platform: Mapping[str, Any] | None = None

    @property
    def range(self) -> str:
        """What may be given, in words; empty where names or types of its own say it."""
        if self.type not in (int, float):
            return ", ".join(self.choices)
        bounded = math.isfinite(self.high)
        kind = "whole" if self.type is int else "" if bounded else "finite"
        sign, left, right = ">" if self.low_open else ">=", "(["[not self.low_open], ")]"[not self.high_open]
        limits = f"in {left}{self.low:g}, {self.high:g}{right}" if bounded else f"{sign} {self.low:g}"
        return " ".join(filter(None, ("a", kind, "number", limits)))

    def check(self, value: Any) -> None:
        """Raises ValueError for a value of another type, out of range or of no known name."""
        if self.choices:
            if value not in self.choices and not (value is None and self.default is None):
                raise errors.unknown(self.name, value, self.choices)
        elif self.type in (int, float):
            if not self._holds(value):
                raise errors.invalid(self.name, value, self.range + (f" ({self.note})" if self.note else ""))
            if self.type is int and value > _MOST_INT:
                raise errors.invalid(self.name, value, f"a whole number up to {_MOST_INT}")
            if self.type is float and value and not _LEAST_FLOAT <= value <= _MOST_FLOAT:
                limits = f"within what 32 bits hold, {_LEAST_FLOAT:.1e} to {_MOST_FLOAT:.1e}"
                raise errors.invalid(self.name, value, f"{self.range} {limits}")

    def _holds(self, value: Any) -> bool:
        numbers = int | np.integer if self.type is int else int | float | np.integer | np.floating
        if isinstance(value, bool) or not isinstance(value, numbers) or not math.isfinite(value):
            return False
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)


def knob(default: Any, help: str, metavar: str | None = None, **limits: Any) -> Any:
    """A field that declares a knob; ``limits`` are fields of ``Knob``."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, **limits})


def knob_of(field: dataclasses.Field) -> Knob:
    """The knob that a field declares."""
    kind = next((kind for kind in (int, float) if field.type is kind), object)
    return Knob(field.name, str if field.metadata.get("choices") else kind, field.default, **field.metadata)


def check_count(name: str, value: Any, most: float = math.inf) -> int:
    """A whole number from 1 to ``most``, or ValueError."""
    Knob(name, int, 1, "", low=1, high=most).check(value)
    return int(value)


def check_seed(seed: Any, name: str = "seed") -> int:
    """A whole number from 0 to 2**32 - 1, or ValueError."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise errors.invalid(name, seed, f"a whole number from 0 to {2**32 - 1}")
    return int(seed)


def check_numbers(prompts: int, num: Any, seed: Any, first: Any, most: int = MOST_PICTURES) -> int:
    """How many pictures there are of so many prompts; ValueError for a number that is not valid."""
    count = check_count("num", num) * prompts
    if count > most:
        raise ValueError(
            f"{count} pictures are more than one call makes, {most}: make a set of them (lantern set)"
        )
    check_seed(seed)
    if check_seed(first, "first") > 2**32 - count:
        raise errors.invalid("first", first, f"at most {2**32 - count} for {count} picture(s)")
    return count


def mesh_sizes(text: str) -> dict[str, int]:
    """{"data": devices, "model": devices} of a text such as "data=2,model=4"; an axis left out has one.

    Raises:
        ValueError: anything else than that.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.partition("="))
        if name not in AXES or name in sizes or not sign or not number.isdecimal() or int(number) < 1:
            raise errors.invalid("mesh", text, 'axes with their devices, such as "data=2,model=4"')
        sizes[name] = int(number)
    return {name: sizes.get(name, 1) for name in AXES}
