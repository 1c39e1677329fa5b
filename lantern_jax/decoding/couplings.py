"""The couplings by name. Needs no JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lantern_jax.io.plugins import Late, Table, at


@dataclass(frozen=True, eq=False)
class CouplingKind(Late):
    """A named coupling; ``make`` takes its options and returns a ``verification.Coupling``."""

    make: Callable[..., Any]


def _own(coupling: Any) -> CouplingKind | None:
    parts = (getattr(coupling, name, None) for name in ("draws", "verify"))
    is_coupling = all(map(callable, parts)) and not isinstance(coupling, type)
    return CouplingKind(lambda *options: coupling) if is_coupling else None


COUPLINGS: Table[CouplingKind] = Table(
    "coupling",
    {
        "gumbel": CouplingKind(at("lantern_jax.decoding.gumbel:Gumbel")),
        "rejection": CouplingKind(at("lantern_jax.decoding.rejection:Rejection")),
        "block": CouplingKind(at("lantern_jax.decoding.block:Block")),
    },
    wrap=_own,
)


def base_of(coupling: Any) -> str:
    """Returns a coupling's name; for an object, that of the class it derives from, or ""."""
    if isinstance(coupling, str):
        return coupling
    made = (name for name, kind in COUPLINGS.items() if isinstance(coupling, kind.make))
    return next(made, "")


def as_coupling(coupling: Any) -> Any:
    """Returns the coupling with this name and default options, or the coupling itself.

    Raises:
        LanternError: an unknown name, or an object that is not a coupling.
    """
    return COUPLINGS.find(coupling).make()
