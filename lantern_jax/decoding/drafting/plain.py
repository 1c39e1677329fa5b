"""Drafting nothing: a round is one step of plain decoding."""

from dataclasses import dataclass

from lantern_jax.decoding.drafting.guessing import Guessing, ModelParts
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


@dataclass(frozen=True)
class Plain(Guessing):
    """Guesses nothing: each pass gives one token.

    Example:
        >>> lantern_jax.draftings.Plain().tree.max_depth
        0
    """

    def make(self, parts: ModelParts) -> Drafting:
        return PLAIN
