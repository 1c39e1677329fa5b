"""Chameleon against transformers' on the same small random weights, through the converter; and against itself.

The transformers model masks image tokens out of its logits, so ours are compared with hidden states × lm_head.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.protocols import TokenConditioning
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.families.chameleon.model import Chameleon, ChameleonConfig, chameleon_target
from lantern_jax.families.chameleon.prompts import ChameleonVocabulary, SpecialTokens
from lantern_jax.families.chameleon.weights import (
    chameleon_config_from_shapes,
    chameleon_shapes,
    convert_chameleon,
)
from tests.tiny_checkpoint import random_leaves

CODES, VOCAB, GRID = 12, 40, 3
# Image tokens that are not in the codebook's order, as in a made-up vocabulary file.
PUBLISHED_CODES = (20, 7, 19, 8, 18, 9, 17, 10, 16, 11, 15, 12)
VOCABULARY = ChameleonVocabulary(PUBLISHED_CODES, VOCAB, SpecialTokens(0, 1, 4, 3, 30, 5, 31))
LENGTHS = (9, 4, 1, 7)


@functools.cache
def reference():
    """Makes transformers' model, with every weight and bias random, the norms' too."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.ChameleonConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, rms_norm_eps=1e-5, rope_theta=10000.0, attn_implementation="eager",
        bos_token_id=0, eos_token_id=2, pad_token_id=1,
        vocabulary_map={"<image>": 6, **{f"IMGIMG{chr(65 + i)}Z": 7 + i for i in range(5)}},
        vq_config={"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "embed_dim": 4,
                   "latent_channels": 4, "num_embeddings": CODES, "resolution": 16},
    )  # fmt: skip
    model = transformers.ChameleonForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith(("norm.weight", ".bias")):
                weight.copy_(name.endswith("norm.weight") + 0.3 * noise)
            else:
                weight.copy_(noise if "embed_tokens" in name else noise / np.prod(weight.shape[1:]) ** 0.5)
    return model


def prompts():
    """Makes published ids and the mask of left-padded rows of unequal lengths."""
    mask = np.arange(max(LENGTHS))[None] >= max(LENGTHS) - np.array(LENGTHS)[:, None]
    tokens = np.random.default_rng(0).integers(0, VOCAB, mask.shape)
    return np.where(mask, tokens, VOCABULARY.special.padding), mask


def test_hidden_states_and_logits(assert_close):
    """With left padding, each row counting positions from its first token; every weight is random and takes part."""
    torch = pytest.importorskip("torch")
    tokens, mask = prompts()
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    given = {"input_ids": tokens, "attention_mask": mask.astype(np.int64), "position_ids": positions}
    given = {name: torch.tensor(value) for name, value in given.items()}
    with torch.no_grad():
        hidden = reference().model(**given, use_cache=False).last_hidden_state
        logits = reference().lm_head(hidden).numpy()[..., list(PUBLISHED_CODES)]
    hidden = hidden.numpy()
    tensors = {name: tensor.numpy() for name, tensor in reference().state_dict().items()}
    config = chameleon_config_from_shapes(tensors, {"grid": GRID, "num_codes": CODES})
    _, params = convert_chameleon(tensors, config, order=VOCABULARY.order)
    ours = jax.jit(Chameleon(config).apply)(params, TokenConditioning(VOCABULARY.to_stream(tokens), mask))
    assert ours[1].shape == (*mask.shape, CODES)
    assert np.abs(hidden[mask]).mean() > 0.3 and np.abs(logits[mask]).mean() > 0.3
    assert_close([np.asarray(part)[mask] for part in ours], [hidden[mask], logits[mask]])


@functools.cache
def random_model(layout):
    """Makes a model of our own, so that the rest runs without torch."""
    config = ChameleonConfig(32, 2, 4, 48, VOCAB, CODES, GRID, layout=layout)
    return config, random_leaves(chameleon_shapes(config), 1, 0.2)


@pytest.mark.parametrize("layout", ["anole", "lumina"])
def test_the_unconditional_row_is_that_of_training_bit_for_bit(layout):
    """The row as the published code writes it, padded, gives the same features and logits as the one that the
    target makes from the conditional row."""
    config, params = random_model(layout)
    special, length = VOCABULARY.special, 9
    if layout == "anole":
        image, unconditional = [special.image_start], [special.begin, special.image_start]
    else:
        image = unconditional = [special.image_start, special.size + 2, special.size + 2]
    prompts = [[special.begin, *words, special.separator, *image] for words in ([21, 22, 23], [24])]
    published = np.full((2, 2, length), special.padding)
    mask = np.zeros(published.shape, bool)
    for b, prompt in enumerate(prompts):
        for g, row in enumerate((prompt, unconditional)):
            published[g, b, length - len(row) :] = row
            mask[g, b, length - len(row) :] = True
    tokens = VOCABULARY.to_stream(published)
    model, target = Chameleon(config), chameleon_target(config)

    @jax.jit
    def whole(conditioning):
        features, _, _, _, positions = model.apply(params, conditioning, method="run")
        return features, positions, model.apply(params, features[:, :, -1], method="logits")

    expected, positions, logits = whole(TokenConditioning(tokens, mask))
    conditioning = TokenConditioning(tokens[0], mask[0])
    _, guided, prefix = jax.jit(target.prefill, static_argnums=3)(params, conditioning, jnp.full(2, 3.0), 4)
    np.testing.assert_array_equal(prefix.mask, mask)
    found = prefix.features, prefix.positions, prefix.tokens
    for ours, wanted in zip(found, (expected, positions, tokens), strict=True):
        np.testing.assert_array_equal(np.asarray(ours)[mask], np.asarray(wanted)[mask])
    np.testing.assert_array_equal(guided, jax.jit(apply_guidance)(logits, jnp.full(2, 3.0)))
    _, alone, prefix = jax.jit(target.prefill, static_argnums=3)(params, conditioning, None, 4)
    assert prefix.features.shape[0] == 1 and prefix.guidance is None
    np.testing.assert_allclose(alone, logits[0], rtol=1e-5, atol=1e-5)
