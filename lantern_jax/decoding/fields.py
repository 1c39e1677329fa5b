"""Fields of records that users choose: what each may hold, declared once beside its default, checked when it is made.

A field's meaning is in its record's docstring, and nowhere else. In a command, a request or a file a record is text,
``name:field=value`` (``decoding.choices``); what turns text into a value, and back, is here. Needs no JAX.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# The most that one call makes, and holds until it returns; more are a job for a set.
MOST_PICTURES = 10_000
MOST_SEED = 2**32 - 1
MOST_INT = int(np.iinfo(np.int32).max)
# Devices compute in float32, and take numbers below its least normal one for 0.
_LEAST_FLOAT, _MOST_FLOAT = (float(bound) for bound in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


class Allowed(ABC):
    """What a field may hold; ``words`` says it in an error or a table."""

    words: str

    @abstractmethod
    def check(self, name: str, value: Any) -> Any:
        """Returns a value in its usual form; raises LanternError if the field may not hold it."""

    def read(self, name: str, text: str) -> Any:
        """Reads a value from text; raises LanternError if it is not one, or one that ``check`` refuses."""
        return self.check(name, text)


@dataclass(frozen=True)
class Range(Allowed):
    """Numbers that 32 bits hold.

    Attributes:
        type: float or int.
        low, high: the least and the greatest number allowed.
        low_open, high_open: whether the bound itself is excluded.
        also: one more number that is allowed, below ``low``.
        note: what a number with a special meaning does.

    Example:
        >>> from lantern_jax.decoding.fields import Range
        >>> sharpness = Range(float, low_open=True)
        >>> sharpness.words, sharpness.read("sharpness", "2.5")
        ('a finite number > 0', 2.5)
    """

    type: type
    low: float = 0
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    also: float | None = None
    note: str = ""

    @property
    def words(self) -> str:
        """The range in words."""
        bounded, other = math.isfinite(self.high), "" if self.also is None else f"{self.also:g} or "
        if self.type is int and bounded:
            return f"{other}a whole number from {self.low} to {self.high}"
        kind = "whole" if self.type is int else "" if bounded else "finite"
        sign, left, right = ">" if self.low_open else ">=", "(["[not self.low_open], ")]"[not self.high_open]
        limits = f"in {left}{self.low:g}, {self.high:g}{right}" if bounded else f"{sign} {self.low:g}"
        return other + " ".join(filter(None, ("a", kind, "number", limits)))

    def check(self, name: str, value: Any) -> Any:
        """Implements ``Allowed.check``; NumPy's numbers become Python's."""
        value = value.item() if isinstance(value, np.generic) else value
        kinds, least, most = int | float, _LEAST_FLOAT, _MOST_FLOAT
        if self.type is int:
            kinds, least, most = int, 1, MOST_INT if self.high == math.inf else math.inf
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if is_number and value == self.also:
            return value
        # Python's integers have no bound: they are compared, never converted to floats.
        above = is_number and (value > self.low if self.low_open else value >= self.low)
        if not above or not (value < self.high if self.high_open else value <= self.high):
            raise errors.invalid(name, value, self.words + (f" ({self.note})" if self.note else ""))
        if value and not least <= abs(value) <= most:
            raise errors.invalid(name, value, f"{self.words} within what 32 bits hold")
        return value

    def read(self, name: str, text: str) -> int | float:
        try:
            value = self.type(text)
        except ValueError:
            # Python's own message would show every digit of a number that has thousands.
            value = text
        # A float of hundreds of digits becomes infinite, which is not what was given.
        return self.check(name, text if value in (math.inf, -math.inf) else value)


@dataclass(frozen=True)
class Names(Allowed):
    """One of some names."""

    names: Collection[str]

    @property
    def words(self) -> str:
        """The names."""
        return ", ".join(self.names)

    def check(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.names:
            raise errors.unknown(name, value, self.names)
        return value


@dataclass(frozen=True)
class Switch(Allowed):
    """True or False, in text on or off."""

    words: str = "on, off"

    def check(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise errors.invalid(name, value, "True or False")
        return value

    def read(self, name: str, text: str) -> bool:
        return Names(("on", "off")).check(name, text) == "on"


@dataclass(frozen=True)
class Made(Allowed):
    """A value of its own class, which ``make`` returns for such a value, for text and for what JSON holds of it."""

    words: str
    make: Callable[[Any], Any]

    def check(self, name: str, value: Any) -> Any:
        return self.make(value)


class ByPlatform(NamedTuple):
    """A value that differs by platform, in text ``7|56|25``: for CPUs, GPUs and TPUs; None takes the GPUs'.

    Example:
        >>> from lantern_jax.decoding.fields import ByPlatform
        >>> ByPlatform(16, 32).on("tpu")
        32
    """

    cpu: Any
    gpu: Any
    tpu: Any = None

    def on(self, platform: str) -> Any:
        """Returns the value for cpu, gpu or tpu."""
        value = self.cpu if platform == "cpu" else self.gpu if platform == "gpu" else self.tpu
        return self.gpu if value is None else value


# At ten thousand, float32 logits lie a thousandth apart. Divided by less than that, the step between two of them would
# exceed the noise that draws a token; divided by very little, all would be infinite.
TEMPERATURE = Range(float, 1e-3, also=0, note="0 is greedy")
TOP_K = Range(int, note="0 turns it off")
TOP_P = Range(float, low_open=True, high=1, note="1 turns it off")
MIN_P = Range(float, high=1, note="0 turns it off")
SHARPNESS = Range(float, low_open=True)


def field(
    default: Any, allowed: Allowed, *, fitted: bool = False, otherwise: Any = None, traced: bool = True
) -> Any:
    """Declares a field.

    Args:
        fitted: whether None means the checkpoint's own value, which was fitted to its drafter.
        otherwise: what None means where there is none.
        traced: for a rule's field, whether programs take it as an argument, so that it can be swept.
    """
    how = {"allowed": allowed, "fitted": fitted, "otherwise": otherwise, "pytree_node": traced}
    return dataclasses.field(default=default, metadata=how)


def whole(default: Any, low: float = 0, high: float = math.inf, note: str = "", **how: Any) -> Any:
    """Declares a field for whole numbers."""
    return field(default, Range(int, low, high, note=note), **how)


def number(default: Any, low: float = 0, high: float = math.inf, **range_: Any) -> Any:
    """Declares a field for numbers; further arguments are those of ``Range``."""
    return field(default, Range(float, low, high, **range_))


def named(default: str | None, names: Collection[str]) -> Any:
    """Declares a field for one of some names."""
    return field(default, Names(names))


def allowed_in(kind: type) -> dict[str, dataclasses.Field]:
    """Returns the declared fields of a class, by name."""
    there = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {one.name: one for one in there if "allowed" in one.metadata}


def check_fields(record: Any, only: tuple[type, ...] = (object,)) -> None:
    """Puts the values of a record's declared fields into their usual form; for its ``__post_init__``.

    Values of other classes than ``only`` are left alone. Raises LanternError for a value that its field may not hold.
    """
    for name, declared in allowed_in(type(record)).items():
        value, check = getattr(record, name), declared.metadata["allowed"].check
        if isinstance(value, ByPlatform):
            value = ByPlatform(*(None if one is None else check(name, one) for one in value))
        elif isinstance(value, only) and not (value is None and declared.default is None):
            value = check(name, value)
        object.__setattr__(record, name, value)


def settled(record: Any, platform: str, fitted: Mapping[str, Any], but: Collection[str] = ()) -> Any:
    """Returns a record with a value for this platform in every field, the only place where one is chosen.

    Args:
        fitted: what a checkpoint has for fields that are fitted to its drafter, by name.
        but: fields that are left open.
    """
    values = {}
    for name, declared in allowed_in(type(record)).items():
        value = getattr(record, name)
        if value is None and declared.metadata["fitted"]:
            value = fitted.get(name)
        if value is None and name not in but:
            value = declared.metadata["otherwise"]
        values[name] = on_platform(value, platform)
    return dataclasses.replace(record, **values) if values else record


def on_platform(value: Any, platform: str) -> Any:
    """Returns a value for a platform, where it is ``ByPlatform`` or, from JSON, an object of platforms."""
    if isinstance(value, dict):
        value = ByPlatform(*(value.get(name) for name in ByPlatform._fields))
    return value.on(platform) if isinstance(value, ByPlatform) else value


def read_field(declared: dataclasses.Field, text: str) -> Any:
    """Reads a declared field's value from text, one or one for each platform; raises LanternError."""
    parts = [declared.metadata["allowed"].read(declared.name, part) for part in text.split("|")]
    if len(parts) > len(ByPlatform._fields):
        raise errors.invalid(declared.name, text, "one value, or one each for CPUs, GPUs and TPUs")
    return parts[0] if len(parts) == 1 else ByPlatform(*parts)


def written(value: Any) -> str:
    """Returns a value as ``read_field`` reads it."""
    if isinstance(value, ByPlatform):
        return "|".join(written(one) for one in value if one is not None)
    if isinstance(value, bool):
        return "on" if value else "off"
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def check_count(name: str, value: Any, most: float = math.inf) -> int:
    """Returns a whole number from 1 to ``most``; raises LanternError for anything else."""
    return Range(int, 1, most).check(name, value)


def check_seed(seed: Any, name: str = "seed") -> int:
    """Returns a whole number from 0 to 2**32 - 1; raises LanternError for anything else."""
    return Range(int, high=MOST_SEED).check(name, seed)


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
