"""A generation's three records: what is compiled, what it reads, and its state.

Axes: B batch, T stream tokens.
"""

from typing import Any, NamedTuple

from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.decoding.acceptance import Codebook, Rule
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.gumbel import Gumbel
from lantern_jax.decoding.protocols import Drafting, Target
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.stream import Decoded
from lantern_jax.decoding.verification import Coupling
from lantern_jax.decoding.zipar import Rows


class Program(NamedTuple):
    """The static half of a generation, which decides what is compiled; fields as in ``speculative_decode``."""

    target: Target
    drafting: Drafting = PLAIN
    coupling: Coupling = Gumbel()
    rows: Rows | None = None


class Inputs(Record):
    """The traced half of a generation, which can be swept without recompiling; fields as in ``speculative_decode``."""

    target_params: Any
    drafting_params: Any
    conditioning: Any
    keys: Key[Array, " B"]
    guidance: Float[Array, " B"] | None
    active: Bool[Array, " B"]
    sampling: SamplingParams
    rule: Rule
    codebook: Codebook | None


class State(Record):
    """A generation's state between two rounds.

    Attributes:
        decoded: the results so far.
        length: int32 [B], stream tokens known; T for a sequence that is finished, or was not active.
        pending: int32 [B], the known tokens that are not in the cache yet.
        cache, drafting: the target's and the drafting's own states.
        noise: float32 [B, T + L, V], the shared noise of whole sequences, where it is small; else None.
    """

    decoded: Decoded
    length: Int[Array, " B"]
    pending: Int[Array, " B"]
    cache: Any
    drafting: Any
    noise: Float[Array, "B T+L V"] | None = None


def input_specs(mesh_axis: str) -> Inputs:
    """Returns the layout of inputs over a mesh: sequences along one axis, the rest everywhere."""
    whole, rows = PartitionSpec(), PartitionSpec(mesh_axis)
    return Inputs(whole, whole, rows, rows, rows, rows, whole, whole, whole)
