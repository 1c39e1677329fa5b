"""Couplings: how draft and target share randomness, and what follows for a guess that is refused."""

from lantern_jax.decoding.block import Block
from lantern_jax.decoding.gumbel import Greedy, Gumbel
from lantern_jax.decoding.rejection import Rejection
from lantern_jax.decoding.verification import Coupling

__all__ = ["Block", "Coupling", "Greedy", "Gumbel", "Rejection"]
