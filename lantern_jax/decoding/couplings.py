"""The couplings by name."""

from collections.abc import Mapping

from lantern_jax.decoding.block import Block
from lantern_jax.decoding.gumbel import Gumbel
from lantern_jax.decoding.rejection import Rejection
from lantern_jax.decoding.verification import Coupling
from lantern_jax.io import errors

COUPLINGS: Mapping[str, type] = {"gumbel": Gumbel, "rejection": Rejection, "block": Block}


def as_coupling(coupling: Coupling | str) -> Coupling:
    """Returns a coupling, or makes it from its name; raises LanternError for an unknown name."""
    if not isinstance(coupling, str):
        return coupling
    if coupling not in COUPLINGS:
        raise errors.unknown("coupling", coupling, COUPLINGS)
    return COUPLINGS[coupling]()
