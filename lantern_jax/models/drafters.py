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
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.drafter import DrafterConfig, drafter_shapes, eagle_drafter
from lantern_jax.models.eagle3 import Eagle3Config, eagle3_drafter, eagle3_shapes
from lantern_jax.models.medusa import MedusaConfig, medusa_drafter, medusa_shapes
from lantern_jax.models.parallel import ParallelConfig, parallel_drafter, parallel_shapes


@dataclass(frozen=True)
class DrafterKind:
    """One kind of drafters.

    Attributes:
        config: the class of its configs, itself and no subclass. Fields with names in the target's
            ``shared_with_drafter``, and ``num_codes``, have the target's values; ``taps``, if there are any, are the
            target's layers whose states the drafter reads (``families.Family.target``).
        shapes: config -> the abstract parameter tree.
        make: (config, dtype) -> the drafter record; the same arguments give the same record.
    """

    config: type
    shapes: Callable[[Any], PyTree]
    make: Callable[[Any, Any], Drafter]

    def read_config(self, values: Mapping[str, Any]) -> Any:
        """Makes a config of a JSON object; raises TypeError or ValueError for unknown fields and invalid values."""
        # JSON has no tuples, and configs are hashed.
        return self.config(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        )


DRAFTERS: Mapping[str, DrafterKind] = MappingProxyType(
    {
        "eagle": DrafterKind(DrafterConfig, drafter_shapes, eagle_drafter),
        "eagle3": DrafterKind(Eagle3Config, eagle3_shapes, eagle3_drafter),
        "medusa": DrafterKind(MedusaConfig, medusa_shapes, medusa_drafter),
        "parallel": DrafterKind(ParallelConfig, parallel_shapes, parallel_drafter),
    }
)


def drafter_kind(name: str) -> DrafterKind:
    """Returns the kind of drafters of a name; raises LanternError for an unknown one."""
    if name not in DRAFTERS:
        raise LanternError(
            f"unknown kind of drafter {errors.quoted(name)}, expected one of {', '.join(DRAFTERS)}"
        )
    return DRAFTERS[name]


def kind_name(config: Any) -> str:
    """Returns the kind of drafters of a config."""
    return next(name for name, kind in DRAFTERS.items() if kind.config is type(config))


def misfits(config: Any, target: Any) -> list[tuple[str, Any, Any]]:
    """Returns (name, drafter's, target's) of every setting in which a drafter differs from its target."""
    shared = {"num_codes": target.num_codes, **target.shared_with_drafter}
    found = [
        (name, getattr(config, name), theirs)
        for name, theirs in shared.items()
        if getattr(config, name, theirs) != theirs
    ]
    taps = getattr(config, "taps", ())
    if any(tap >= target.num_layers for tap in taps):
        found.append(("taps", taps, f"layers 0 to {target.num_layers - 1}"))
    return found
