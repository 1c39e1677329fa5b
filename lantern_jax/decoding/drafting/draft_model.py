"""A small model that drafts for a large one (speculative sampling, arXiv 2302.01318), on any tree.

Axes: G guidance rows, B batch, P prefix, S positions, M nodes of a level, X expanded nodes of a round at most, V codes.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.decoding.protocols import MOST_RECORDS, GuidedTokens, Prefix, Target, TokenConditioning


@flax.struct.dataclass
class DraftModelState:
    """The nodes expanded in a round.

    Attributes:
        cache: the small model's: all that is committed, and the token after it.
        tokens: int32 [B, X], the nodes; only the first ``expanded`` are in use.
        ancestors: bool [B, 1 + X, X], the nodes above a node, itself included; row 0 is the root, which has none.
        expanded: int32 [].
    """

    cache: Any
    tokens: Int[Array, "B X"]
    ancestors: Bool[Array, "B places X"]
    expanded: Int[Array, ""]


def drafter_from_target(small: Target, conditioning: Callable[[Any, Prefix], Any] | None = None) -> Drafter:
    """Makes a drafter from a small model: ``eagle(drafter_from_target(small), tree)`` drafts with it.

    It shares the large model's guidance. It keeps no keys of uncommitted nodes, so each level scores the earlier ones
    again: use a model much smaller than the target, and shallow trees.

    Args:
        small: the model; its parameters are the drafting's, and its codes are the target's.
        conditioning: (parameters, prefix of the large model) -> conditioning of the small one, leaves [B, ...]. None
            passes on the prefix's tokens [B, P] and, to a model with one vocabulary (``first_code``), their mask and
            the tokens and mask of the unconditional row. A LlamaGen's prefix holds no tokens, all are 0: give this
            function, and the labels or captions along with the parameters.

    Example:
        >>> from lantern_jax.families.llamagen.model import published_config
        >>> from lantern_jax.families.registry import target_of
        >>> small = target_of(published_config("B"))
        >>> def labels(params, prefix):  # drafting_params are the small model's, and {"prompt": {"labels": [B, 1]}}
        ...     return params["prompt"]["labels"]
        >>> drafter = lantern_jax.draftings.drafter_from_target(small, labels)
        >>> lantern_jax.draftings.eagle(drafter, lantern_jax.DraftTree.chain(4)).max_depth
        4
    """
    return _drafter_of(small, conditioning)


@lru_cache(MOST_RECORDS)
def _drafter_of(small: Target, conditioning: Callable[[Any, Prefix], Any] | None) -> Drafter:
    def given(params, prefix: Prefix):
        if conditioning is not None:
            return conditioning(params, prefix)
        if small.first_code is None:
            return prefix.tokens[0]
        rows = [leaf for row in zip(prefix.tokens, prefix.mask, strict=True) for leaf in row]
        return TokenConditioning(*rows) if prefix.guidance is None else GuidedTokens(*rows)

    def init(params, prefix: Prefix, slots: int, span: int, nodes: int) -> DraftModelState:
        batch = prefix.tokens.shape[1]
        cache, _, _ = small.prefill(params, given(params, prefix), prefix.guidance, slots)
        tokens, ancestors = jnp.zeros((batch, nodes), jnp.int32), jnp.zeros((batch, 1 + nodes, nodes), bool)
        return DraftModelState(cache, tokens, ancestors, jnp.int32(0))

    def absorb(params, state: DraftModelState, features, tokens, count):
        length = tokens.shape[1]
        causal = np.tril(np.ones((length, length), bool))
        logits, _, block = small.score(params, state.cache, tokens, np.arange(length), causal)
        path = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], tokens.shape)
        last = jnp.maximum(count - 1, 0)[:, None]
        logits = jnp.take_along_axis(logits, last[..., None], axis=1)[:, 0]
        cache = small.commit(state.cache, block, path, count)
        return state.replace(cache=cache, expanded=jnp.zeros_like(state.expanded)), logits

    def expand(params, state: DraftModelState, tokens, parents):
        batch, new = tokens.shape
        seen = jnp.take_along_axis(state.ancestors, parents[:, :, None], axis=1)
        itself = jnp.broadcast_to(jnp.eye(new, dtype=bool)[None], (batch, new, new))

        def write(places, values, axis, offset=0):
            return lax.dynamic_update_slice_in_dim(places, values, state.expanded + offset, axis)

        ancestors = write(state.ancestors, write(seen, itself, 2), 1, 1)
        drafted = write(state.tokens, tokens, 1)
        mask = ancestors[:, 1:] | np.eye(drafted.shape[1], dtype=bool)[None]
        depth = jnp.sum(mask, axis=-1, dtype=jnp.int32) - 1
        logits, _, _ = small.score(params, state.cache, drafted, depth, mask)
        logits = lax.dynamic_slice_in_dim(logits, state.expanded, new, axis=1)
        return DraftModelState(state.cache, drafted, ancestors, state.expanded + new), logits

    def refine(params, state: DraftModelState, root, tokens, stale, predicted):
        (batch, length), places = tokens.shape, state.tokens.shape[1]
        seen = jnp.take_along_axis(state.ancestors, root[:, None, None], axis=1)
        seen = jnp.broadcast_to(seen, (batch, length, places))
        causal = jnp.broadcast_to(jnp.asarray(np.tri(length, dtype=bool))[None], (batch, length, length))
        mask = jnp.concatenate([seen, causal], axis=2)
        expanded = state.ancestors[:, 1:] | np.eye(places, dtype=bool)[None]
        mask = jnp.concatenate([jnp.pad(expanded, ((0, 0), (0, 0), (0, length))), mask], axis=1)
        depth = jnp.sum(mask, axis=-1, dtype=jnp.int32) - 1
        drafted = jnp.concatenate([state.tokens, tokens], axis=1)
        logits, _, _ = small.score(params, state.cache, drafted, depth, mask)
        return logits[:, places:], predicted

    return Drafter(init, absorb, expand, refine)
