"""In bfloat16 strict decoding is plain decoding up to near-ties: a wide pass and narrow ones round differently.

Where tokens part for the first time, the context before is the same. Plain decoding prefers y by its own scores n, the
wide pass x by its scores w, so n(y) - n(x) <= (n(y) - w(y)) + (w(x) - n(x)) <= 2 E, where no logit differs by more than
E between the two (both share the noise, and log-softmax takes the same from x as from y; temperature is 1). E is
measured: the largest difference, over these very streams, between passes of one token and a pass of them all. The
loop's own passes have other widths, so E is an estimate of theirs.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.bfloat16 import first_differences, gaps, narrow_logits, wide_logits
from lantern_jax import LlamaGen, LlamaGenConfig, eagle, gumbel_noise, llamagen_target, speculative_decode
from lantern_jax.decoding.drafting.plain import PLAIN

from . import toy_models as toys

BATCH, GUIDANCE = 32, 2.5
CONFIG = LlamaGenConfig(64, 1, 2, vocab_size=256, grid=6, hidden_dim=128, num_labels=6)
TARGET = llamagen_target(CONFIG, jnp.bfloat16)


@cache
def params():
    """Makes random bfloat16 parameters, scaled up so that the distribution is neither flat nor a point."""
    labels, tokens = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, CONFIG.num_tokens), jnp.int32)
    made = jax.jit(LlamaGen(CONFIG).init)(jax.random.key(7), labels, tokens)
    scaled = jax.tree.map(lambda leaf: leaf * jnp.float32(5) if leaf.ndim > 1 else leaf, made)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), scaled)


def decode(drafting):
    conditioning = toys.conditioning(BATCH)
    return speculative_decode(
        TARGET, params(), conditioning, toys.sequence_keys(0, BATCH), drafting=drafting,
        drafting_params=toys.noisy_params(params(), conditioning, 0.4), guidance=jnp.full(BATCH, GUIDANCE),
    )  # fmt: skip


@pytest.mark.parametrize("tree", ["chain", pytest.param("mc_sim_7b_63", marks=pytest.mark.exhaustive)])
def test_tokens_part_at_near_ties_alone(tree):
    length = CONFIG.num_tokens
    expected, decoded = np.asarray(decode(PLAIN).tokens), decode(eagle(toys.noisy_drafter(TARGET), tree))
    tokens = np.asarray(decoded.tokens)
    assert int(decoded.accepted[:, 1:].sum()) > 0
    given = TARGET, params(), toys.conditioning(BATCH), jnp.full(BATCH, GUIDANCE), jnp.asarray(expected)
    narrow, wide = np.asarray(narrow_logits(*given)), np.asarray(wide_logits(*given))
    places = jnp.tile(jnp.arange(length, dtype=jnp.int32)[None], (BATCH, 1))
    noise = np.asarray(gumbel_noise(toys.sequence_keys(0, BATCH), places, CONFIG.vocab_size))
    found, bound = gaps(expected, tokens, narrow + noise), 2 * float(np.abs(narrow - wide).max())
    share = int(first_differences(expected, tokens).sum()) / (BATCH * length)
    print(f"{tree}: equal up to the first difference {share:.3f}, {len(found)} of {BATCH} sequences part, largest gap "
          f"{max(found, default=0.0):.4f}, bound {bound:.4f}")  # fmt: skip
    assert bound > 0, "wide and narrow passes agree bit for bit: the test shows nothing"
    assert max(found, default=0.0) <= bound
    # Near-ties are rare: a wrong method would part almost at once.
    assert share > 0.5
