"""Checks of model configs: they come from files as well, so every number in them may be wrong."""

import dataclasses
import math
from typing import Any

import numpy as np


def check_sizes(config: Any, *, may_be_zero: tuple[str, ...] = ()) -> None:
    """Raises ValueError unless every field of a config holds what its annotation says.

    Args:
        config: a dataclass: ``int`` fields must be whole numbers >= 1, ``float`` fields positive and finite,
            ``bool`` and ``str`` fields such. None passes where ``| None`` is annotated; other types are not checked.
        may_be_zero: names of ``int`` fields that may be 0.
    """
    for field in dataclasses.fields(config):
        value, kind = getattr(config, field.name), field.type
        if kind == int | None and value is None:
            continue
        if kind in (int, int | None):
            least = 0 if field.name in may_be_zero else 1
            valid = is_size(value, least)
            wanted = f"a whole number >= {least}"
        elif kind is float:
            number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
            valid = number and math.isfinite(value) and value > 0
            wanted = "a number > 0"
        elif kind is bool:
            valid, wanted = isinstance(value, bool | np.bool_), "true or false"
        else:
            valid, wanted = kind is not str or isinstance(value, str), "text"
        if not valid:
            raise ValueError(f"{field.name} {value!r} is not valid: give {wanted}")


def is_size(value: Any, least: int = 1) -> bool:
    """Whether a value is a whole number of at least ``least``."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
