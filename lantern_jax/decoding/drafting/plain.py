"""Drafting nothing: a round is one step of plain decoding."""

from lantern_jax.decoding.protocols import Draft, Drafting
from lantern_jax.decoding.tree import DraftTree

_ROOT = DraftTree.empty()


def _propose(params, state, pending, draws, sampling):
    return Draft(pending.tokens[:, -1:], _ROOT), state


# The drafting of plain decoding; it has neither parameters nor state.
PLAIN = Drafting(
    init=lambda params, prefix, slots, span: (),
    propose=_propose,
    observe=lambda params, state, outcome: state,
    max_depth=0,
)
