"""Chameleon against transformers' on the same small random weights, through the converter.

The transformers model masks image tokens out of its logits, so ours are compared with hidden states × lm_head.
"""

import functools

import jax
import numpy as np
import pytest

from lantern_jax.decoding.protocols import TokenConditioning
from lantern_jax.families.chameleon.prompts import SPECIAL_NAMES, ChameleonVocabulary
from lantern_jax.families.chameleon.weights import (
    chameleon_config_from_shapes,
    convert_chameleon,
)
from lantern_jax.models.tokens import TokenModel

CODES, VOCAB, GRID = 12, 40, 3
# Image tokens that are not in the codebook's order, as in a made-up vocabulary file.
PUBLISHED_CODES = (20, 7, 19, 8, 18, 9, 17, 10, 16, 11, 15, 12)
VOCABULARY = ChameleonVocabulary(
    PUBLISHED_CODES, VOCAB, dict(zip(SPECIAL_NAMES, (0, 1, 4, 3, 30, 5, 31), strict=True))
)
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
    return np.where(mask, tokens, VOCABULARY.special["padding"]), mask


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
    ours = jax.jit(TokenModel(config).apply)(params, TokenConditioning(VOCABULARY.to_stream(tokens), mask))
    assert ours[1].shape == (*mask.shape, CODES)
    assert np.abs(hidden[mask]).mean() > 0.3 and np.abs(logits[mask]).mean() > 0.3
    assert_close([np.asarray(part)[mask] for part in ours], [hidden[mask], logits[mask]])
