"""The kinds of drafters that a checkpoint may hold, one of each: a new kind is a new entry of ``DRAFTERS``.

A drafter of any kind is a config, parameters ``{"params": ...}`` and the ``Drafter`` record that decoding calls; the
record's parameters are ``{"drafter": those, "head": kernel [D, V] of the target}``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxtyping import PyTree

from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.models.drafter import DrafterConfig, drafter_shapes, eagle_drafter


@dataclass(frozen=True)
class DrafterKind:
    """One kind of drafters.

    Attributes:
        config: the class of its configs. Fields with names of the target's ``shared_with_drafter`` are the target's.
        shapes: config -> the abstract parameter tree.
        make: (config, dtype) -> the drafter record; the same arguments give the same record.
    """

    config: type
    shapes: Callable[[Any], PyTree]
    make: Callable[[Any, Any], Drafter]

    def read_config(self, values: Mapping[str, Any]) -> Any:
        """A JSON object's values as a config; TypeError or ValueError for an unknown field or a value not valid."""
        # JSON has no tuples, and configs are hashed.
        return self.config(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        )


DRAFTERS: Mapping[str, DrafterKind] = MappingProxyType(
    {
        "eagle": DrafterKind(DrafterConfig, drafter_shapes, eagle_drafter),
    }
)


def drafter_kind(name: str) -> DrafterKind:
    """The kind of drafters called so; ValueError for an unknown one."""
    if name not in DRAFTERS:
        raise ValueError(f"unknown kind of drafter {name!r}, expected one of {', '.join(DRAFTERS)}")
    return DRAFTERS[name]


def misfits(config: Any, target: Any) -> list[tuple[str, Any, Any]]:
    """(name, the drafter's, the target's) of every setting that the target decides and the drafter has otherwise."""
    return [
        (name, getattr(config, name), theirs)
        for name, theirs in target.shared_with_drafter.items()
        if getattr(config, name, theirs) != theirs
    ]
