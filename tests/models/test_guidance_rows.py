"""Negative prompts take the place of the unconditional row that targets add; golden cases hold their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import Prefix, Target, TokenConditioning
from lantern_jax.decoding.protocols import GuidedTokens
from lantern_jax.draftings import drafter_from_target
from lantern_jax.families.llamagen.model import CaptionConditioning, LlamaGenConfig
from lantern_jax.families.llamagen.weights import gpt_shapes
from lantern_jax.families.registry import target_of
from tests.tiny_checkpoint import random_leaves

BATCH = 3
# Words are labels in several slots; a class would be one in a single slot.
CONFIGS = {
    "words": LlamaGenConfig(
        16, 2, 2, vocab_size=24, grid=3, hidden_dim=32, num_labels=7, label_slots=2, null_labels=(3, 6), qk_norm="rms"
    ),
    "caption": LlamaGenConfig(
        16, 2, 2, vocab_size=24, grid=3, hidden_dim=32, caption_dim=12, caption_length=5
    ),
}  # fmt: skip


def conditioning_of(config):
    generator = np.random.default_rng(0)
    if config.num_labels:
        return generator.integers(0, config.num_labels - 1, (BATCH, config.label_slots)).astype(np.int32)
    mask = np.arange(5)[None] >= np.array([[0], [3], [1]])
    features = generator.normal(size=(BATCH, 5, 12)).astype(np.float32) * mask[..., None]
    return CaptionConditioning(features, mask)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_negative_prompt_is_the_unconditional_row(name):
    """Guided logits are those of both prompts run alone; without guidance it changes nothing."""
    config = CONFIGS[name]
    conditioning, target = conditioning_of(config), target_of(config)
    params = random_leaves(gpt_shapes(config), 0, 0.5)
    other = jax.tree.map(lambda leaf: leaf[::-1], conditioning)
    if config.num_labels:
        both = np.stack([conditioning, other], axis=1)
    else:
        both = conditioning.replace(negative=other.features, negative_mask=other.mask)
    scale, prefill = jnp.array([1.0, 2.5, 4.0]), jax.jit(target.prefill, static_argnums=3)
    _, wanted, _ = prefill(params, conditioning, None, 4)
    _, against, _ = prefill(params, other, None, 4)
    _, guided, prefix = prefill(params, both, scale, 4)
    expected = against + scale[:, None] * (wanted - against)
    np.testing.assert_allclose(guided, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(wanted - against).max() > 0.01 and prefix.features.shape[:2] == (2, BATCH)
    np.testing.assert_array_equal(prefill(params, both, None, 4)[1], wanted)
    target.check(both)


@pytest.mark.parametrize("guided", [True, False])
def test_a_drafter_made_from_a_target_is_guided_by_the_targets_own_row(guided):
    """It gets both rows with their masks, or the prompt alone."""
    tokens = np.arange(2 * BATCH * 4).reshape(2, BATCH, 4)[: 1 + guided]
    mask, given = tokens % 4 >= np.arange(BATCH)[:, None], []

    def prefill(params, conditioning, guidance, slots):
        given.append((conditioning, guidance))
        return (), None, None

    small = Target(prefill, None, None, vocab_size=8, num_tokens=4, first_code=0)
    guidance = np.full(BATCH, 2.0) if guided else None
    prefix = Prefix(np.zeros((*tokens.shape, 1)), tokens, mask, tokens, guidance)
    drafter_from_target(small).init(None, prefix, 8, 2, 4)
    ((found, scale),) = given
    assert type(found) is (GuidedTokens if guided else TokenConditioning) and scale is guidance
    rows = [(found.tokens, found.mask)]
    rows += [(found.unconditional, found.unconditional_mask)] if guided else []
    np.testing.assert_array_equal([row for row, _ in rows], tokens)
    np.testing.assert_array_equal([seen for _, seen in rows], mask)
