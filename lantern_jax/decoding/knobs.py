"""Knobs: the description of one setting of a generation, and checks of numbers.

The knobs themselves are in ``settings.settings``.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# The most that one call makes, and holds until it returns; more are a job for a set.
MOST_PICTURES = 10_000
MOST_SEED = 2**32 - 1
# Devices compute in float32, and take numbers below its least normal one for 0.
_LEAST_FLOAT, _MOST_FLOAT = (float(bound) for bound in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
MOST_INT = int(np.iinfo(np.int32).max)
# At ten thousand, float32 logits lie a thousandth apart. Divided by less than that, the step between two of them would
# exceed the noise that draws a token; divided by very little, all would be infinite.
TEMPERATURE = {"low": 1e-3, "also": 0, "note": "0 is greedy"}
TOP_K = {"low": 0, "note": "0 turns it off"}
TOP_P = {"low": 0, "low_open": True, "high": 1, "note": "1 turns it off"}
SHARPNESS = {"low": 0, "low_open": True}
THRESHOLD = {"low": 0, "high": 1, "high_open": True, "note": "0 is never"}


@dataclass(frozen=True)
class Knob:
    """The description of a knob.

    Attributes:
        name: as in ``Settings``.
        type: float, int or str; object where ``resolve_settings`` has to judge the value (``tree``).
        default: the default in ``Settings``.
        help: one line.
        metavar: the placeholder for its value in the command's help.
        low, high: the least and the greatest number allowed.
        low_open, high_open: whether the bound itself is excluded.
        also: one more number that is allowed, below ``low``.
        note: what a number with a special meaning does.
        choices: the valid names; empty for numbers.
        by_platform: the default for each platform, where they differ.

    Example:
        >>> sharpness = lantern_jax.Knob("sharpness", float, 1.0, "how sharp", low=0, low_open=True)
        >>> sharpness.range, sharpness.read("2.5")
        ('a finite number > 0', 2.5)
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
    also: float | None = None
    note: str = ""
    choices: Collection[str] = ()
    by_platform: Mapping[str, Any] | None = None

    @property
    def range(self) -> str:
        """What may be given, in words: a range, or the valid names; empty for any other object or text."""
        if self.type not in (int, float):
            return ", ".join(self.choices)
        bounded, other = math.isfinite(self.high), "" if self.also is None else f"{self.also:g} or "
        if self.type is int and bounded:
            return f"{other}a whole number from {self.low} to {self.high}"
        kind = "whole" if self.type is int else "" if bounded else "finite"
        sign, left, right = ">" if self.low_open else ">=", "(["[not self.low_open], ")]"[not self.high_open]
        limits = f"in {left}{self.low:g}, {self.high:g}{right}" if bounded else f"{sign} {self.low:g}"
        return other + " ".join(filter(None, ("a", kind, "number", limits)))

    def check(self, value: Any) -> None:
        """Raises LanternError for a value that has another type, is out of range or is not a known name."""
        if self.choices:
            if value not in self.choices and not (value is None and self.default is None):
                raise errors.unknown(self.name, value, self.choices)
        elif self.type in (int, float):
            wanted = self._wanted(value)
            if wanted:
                raise errors.invalid(self.name, value, wanted)

    def read(self, text: str) -> int | float:
        """Reads a number from text; raises LanternError if it is not one, or one that ``check`` refuses."""
        try:
            value = self.type(text)
        except ValueError:
            # Python's own message would show every digit of a number that has thousands.
            raise errors.invalid(self.name, text, self._described) from None
        wanted = self._wanted(value)
        if wanted:
            # A float of hundreds of digits becomes infinite, which is not what was given.
            raise errors.invalid(self.name, text if math.inf in (value, -value) else value, wanted)
        return value

    @property
    def _described(self) -> str:
        return self.range + (f" ({self.note})" if self.note else "")

    def _wanted(self, value: Any) -> str:
        """Says what to give in place of a value; empty if the value is valid."""
        numbers = int | np.integer if self.type is int else int | float | np.integer | np.floating
        if isinstance(value, bool) or not isinstance(value, numbers):
            return self._described
        if self.also is not None and value == self.also:
            return ""
        # Python's integers have no bound: they are compared, never converted to floats.
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open or self.high == math.inf else value <= self.high
        if not (above and below):
            return self._described
        if self.type is int and value < -MOST_INT:
            return f"a whole number from {-MOST_INT}"
        if self.type is int and self.high == math.inf and value > MOST_INT:
            return f"a whole number up to {MOST_INT}"
        if self.type is float and value and not _LEAST_FLOAT <= abs(value) <= _MOST_FLOAT:
            return f"{self.range} within what 32 bits hold, {_LEAST_FLOAT:.1e} to {_MOST_FLOAT:.1e}"
        return ""


def knob(default: Any, help: str, metavar: str | None = None, **limits: Any) -> Any:
    """Declares a knob as a field; ``limits`` are fields of ``Knob``."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, **limits})


def knob_of(field: dataclasses.Field) -> Knob:
    """Returns the knob that a field declares."""
    if "knob" in field.metadata:
        return field.metadata["knob"]
    kind = next((kind for kind in (int, float) if field.type is kind), object)
    return Knob(field.name, str if field.metadata.get("choices") else kind, field.default, **field.metadata)


def check_count(name: str, value: Any, most: float = math.inf) -> int:
    """Returns a whole number from 1 to ``most``; raises LanternError for anything else."""
    Knob(name, int, 1, "", low=1, high=most).check(value)
    return int(value)


def check_seed(seed: Any, name: str = "seed") -> int:
    """Returns a whole number from 0 to 2**32 - 1; raises LanternError for anything else."""
    Knob(name, int, 0, "", high=MOST_SEED).check(seed)
    return int(seed)


def check_numbers(prompts: int, num: Any, seed: Any, first: Any, most: int = MOST_PICTURES) -> int:
    """Returns how many pictures a call makes; raises LanternError if there are no prompts or a number is not valid."""
    if not prompts:
        raise LanternError("no prompts: give at least one")
    count = check_count("num", num) * prompts
    if count > most:
        raise LanternError(
            f"{count} pictures are more than one call makes, {most}: make a set of them (lantern set)"
        )
    check_seed(seed)
    if check_seed(first, "first") > 2**32 - count:
        raise errors.invalid("first", first, f"at most {2**32 - count} for {count} picture(s)")
    return count
