"""Checks of model configs, which may come from files: any number in them may be wrong."""

import dataclasses
from typing import Any

import numpy as np

from lantern_jax.io import errors

# The largest whole number allowed in config fields of these names, far above any published model's; all other fields
# are widths and table sizes.
_MOST = {
    "num_layers": 512, "num_heads": 4096, "grid": 192, "columns": 192, "patch": 64, "encoder_blocks": 64,
    "decoder_blocks": 64, "caption_length": 4096, "label_slots": 4096, "prefix_length": 4096, "heads": 4096,
    "layers": 256, "masks": 256, "num_buckets": 4096, "max_distance": 1 << 20,
}  # fmt: skip
_MOST_OF_ANY = 1 << 24
# Limits within which float32 holds a number and its square.
_LEAST_NUMBER, _MOST_NUMBER = 1e-18, 1e18


def check_sizes(config: Any, *, may_be_zero: tuple[str, ...] = ()) -> None:
    """Raises LanternError unless every field of a config holds what its annotation says.

    Args:
        config: a dataclass: ``int`` fields must be whole numbers >= 1 within limits, ``float`` fields positive numbers
            within float32's range. ``bool`` and ``str`` fields must be of their type. None is
            accepted where ``| None`` is annotated; other types are not checked.
        may_be_zero: names of ``int`` fields that may be 0.
    """
    for field in dataclasses.fields(config):
        value, kind = getattr(config, field.name), field.type
        if kind == int | None and value is None:
            continue
        if kind in (int, int | None):
            check_size(field.name, value, 0 if field.name in may_be_zero else 1)
            continue
        if kind is float:
            number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
            valid = number and _LEAST_NUMBER <= value <= _MOST_NUMBER
            wanted = f"a number from {_LEAST_NUMBER:g} to {_MOST_NUMBER:g}"
            if valid:
                # A whole number from JSON may not fit int32.
                object.__setattr__(config, field.name, float(value))
        elif kind is bool:
            valid, wanted = isinstance(value, bool | np.bool_), "true or false"
        else:
            valid, wanted = kind is not str or isinstance(value, str), "text"
        if not valid:
            raise errors.invalid(field.name, value, wanted)


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Raises LanternError unless a field's value is a whole number from ``least`` to the limit for the field's name."""
    most = _MOST.get(name, _MOST_OF_ANY)
    if not is_size(value, least) or value > most:
        raise errors.invalid(name, value, f"a whole number from {least} to {most}")


def shape_of(config: Any) -> tuple[int, int]:
    """Returns rows and columns of codes in a model's picture: ``grid`` of each unless its config has ``columns``."""
    return config.grid, getattr(config, "columns", None) or config.grid


def is_size(value: Any, least: int = 1) -> bool:
    """Tells whether a value is a whole number of at least ``least``."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
