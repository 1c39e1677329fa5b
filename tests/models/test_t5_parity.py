"""The T5 encoder against transformers' on the same small random weights, through the converter."""

import functools

import jax
import numpy as np
import pytest

from lantern_jax.families.llamagen.t5_weights import convert_t5
from lantern_jax.models.t5 import T5Config, T5Encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = dict(
    d_model=24, d_kv=8, d_ff=40, num_layers=3, num_heads=4, vocab_size=50, relative_attention_num_buckets=8,
    relative_attention_max_distance=20, feed_forward_proj="gated-gelu", dropout_rate=0.0,
)  # fmt: skip
LENGTHS = (30, 17, 1)


@functools.cache
def reference():
    """Makes transformers' model with weights that all differ from zero and one, as large as training makes them."""
    model = transformers.T5EncoderModel(transformers.T5Config(**SIZES)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_table = "relative" in name or "shared" in name
            scaled = noise if is_table else 0.6 * noise / weight.shape[-1] ** 0.5
            weight.copy_(1 + 0.2 * noise if weight.ndim == 1 else scaled)
    return model


def inputs():
    mask = np.arange(max(LENGTHS))[None] < np.array(LENGTHS)[:, None]
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], mask.shape).astype(np.int32)
    return np.where(mask, tokens, 0), mask


def test_features_with_padding(assert_close):
    """Every weight is random and takes part in them."""
    tokens, mask = inputs()
    with torch.no_grad():
        made = reference()(torch.tensor(tokens), attention_mask=torch.tensor(mask))
    expected = made.last_hidden_state.numpy()
    tensors = {name: tensor.numpy() for name, tensor in reference().state_dict().items()}
    config, params = convert_t5(tensors, reference().config.to_dict())
    assert config == T5Config(24, 3, 4, 8, 40, 50, 8, 20)
    features = jax.jit(T5Encoder(config).apply)(params, tokens, mask)
    # Values of order one, so that the absolute tolerance means something.
    assert np.abs(expected[mask]).mean() > 0.3
    assert_close(np.asarray(features)[mask], expected[mask])
