"""Rules that are given as objects instead of names, and tried before anything is computed with them.

Axes: V codes.
"""

import jax
import jax.numpy as jnp

from lantern_jax.decoding import contracts
from lantern_jax.decoding.acceptance import Codebook, Rule
from lantern_jax.decoding.protocols import Draft
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.decoding.verification import Coupling, verify_tree
from lantern_jax.io.errors import LanternError


def try_rule(rule: Rule, coupling: Coupling, codebook: Codebook | None, vocab_size: int) -> None:
    """Raises a one-line LanternError if a rule does not work with a coupling, a codebook and V codes."""
    name, sampling = f"rule {type(rule).__name__}", SamplingParams.create()
    if jax.tree_util.all_leaves([rule]):
        raise LanternError(f"{name} is no pytree: put @flax.struct.dataclass above its class")
    contracts.check_arrays(rule, name)

    def verify(rule: Rule, codebook: Codebook | None):
        zero, one = jnp.zeros(1, jnp.int32), jax.random.split(jax.random.key(0), 1)
        draws = coupling.draws(one, zero, zero, 2, vocab_size, sampling)
        rows = jnp.zeros((1, 2, vocab_size), jnp.float32)
        draft = Draft(jnp.zeros((1, 2), jnp.int32), DraftTree.chain(1), rows[:, :1])
        book = None if codebook is None else codebook.measured()
        return verify_tree(draft, rows, draws, coupling=coupling, rule=rule, codebook=book)

    contracts.run(name, jax.eval_shape, verify, rule, codebook)
