"""The couplings by name. Needs no JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lantern_jax.io.plugins import Late, Table, at

if TYPE_CHECKING:
    from lantern_jax.decoding.verification import Coupling


@dataclass(frozen=True, eq=False)
class CouplingKind(Late):
    """A coupling that has a name; ``make`` takes its options."""

    make: Callable[..., "Coupling"]


COUPLINGS: Table[CouplingKind] = Table(
    "coupling",
    {
        "gumbel": CouplingKind(at("lantern_jax.decoding.gumbel:Gumbel")),
        "rejection": CouplingKind(at("lantern_jax.decoding.rejection:Rejection")),
        "block": CouplingKind(at("lantern_jax.decoding.block:Block")),
    },
)


def as_coupling(coupling: "Coupling | str") -> "Coupling":
    """Returns the coupling of a name, with its default options, or the coupling itself.

    Raises:
        LanternError: an unknown name.
    """
    return COUPLINGS.find(coupling).make() if isinstance(coupling, str) else coupling
