"""Logits of given streams, scored one token a pass, as plain decoding does, or all in one pass.

Axes: B batch, T stream tokens, V codes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@partial(jax.jit, static_argnums=0)
def _narrow(target, params, conditioning, guidance, tokens):
    cache, first, _ = target.prefill(params, conditioning, guidance, target.num_tokens + 1)

    def step(cache, token):
        root, itself = np.zeros(1, np.int32), np.ones((1, 1), bool)
        logits, _, block = target.score(params, cache, token[:, None], root, itself)
        path, count = jnp.zeros((len(token), 1), jnp.int32), jnp.ones(len(token), jnp.int32)
        return target.commit(cache, block, path, count), logits[:, 0]

    _, rest = lax.scan(step, cache, tokens.T[:-1])
    return jnp.concatenate([first[:, None], jnp.moveaxis(rest, 0, 1)], axis=1)


@partial(jax.jit, static_argnums=0)
def _wide(target, params, conditioning, guidance, tokens):
    cache, first, _ = target.prefill(params, conditioning, guidance, target.num_tokens + 1)
    length = target.num_tokens - 1
    causal = np.tril(np.ones((length, length), bool))
    logits, _, _ = target.score(params, cache, tokens[:, :-1], np.arange(length, dtype=np.int32), causal)
    return jnp.concatenate([first[:, None], logits], axis=1)


def narrow_logits(target, params, conditioning, guidance, tokens) -> np.ndarray:
    """float32 [B, T, V]: what plain decoding sees when it makes ``tokens`` [B, T]."""
    return np.asarray(_narrow(target, params, conditioning, guidance, jnp.asarray(tokens)))


def wide_logits(target, params, conditioning, guidance, tokens) -> np.ndarray:
    """float32 [B, T, V]: the same contexts scored in one pass."""
    return np.asarray(_wide(target, params, conditioning, guidance, jnp.asarray(tokens)))


def first_differences(expected, tokens) -> np.ndarray:
    """int [B]: where two streams [B, T] part, T where they do not."""
    different = np.asarray(expected) != np.asarray(tokens)
    return np.where(different.any(axis=1), different.argmax(axis=1), different.shape[1])
