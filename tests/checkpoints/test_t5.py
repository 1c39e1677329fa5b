"""The converter of T5 encoders: sizes from shapes, what is left out, strictness."""

import dataclasses

import jax
import numpy as np
import pytest

from lantern_jax.families.t5_weights import (
    RELATIVE_BIAS,
    TOKENS,
    convert_t5,
    t5_config_from_shapes,
    t5_shapes,
    t5_table,
)
from lantern_jax.models.t5 import T5Config
from lantern_jax.tensors.tensor_files import StoredTensor
from tests.golden_cases import golden_weight

TINY = T5Config(16, 2, 3, 4, 20, 30, 8, 20)
# What a file says of itself beside the weights.
PUBLISHED = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 20,
    "num_layers": 2, "num_heads": 3, "num_decoder_layers": 2, "vocab_size": 30, "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "feed_forward_proj": "gated-gelu",
}  # fmt: skip


def tensors_of(config=TINY):
    return {name: golden_weight(name, entry.shape, 0) for name, entry in t5_table(config).items()}


def test_the_table_covers_the_module():
    config, params = convert_t5(tensors_of(), PUBLISHED, np.float16)
    assert config == TINY
    shapes = jax.tree.map(lambda leaf: leaf.shape, params)
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, t5_shapes(TINY))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float16)}


def test_published_size():
    config = T5Config()
    abstract = {
        name: jax.ShapeDtypeStruct(entry.shape, np.float32) for name, entry in t5_table(config).items()
    }
    assert t5_config_from_shapes(abstract) == config
    count = sum(np.prod(entry.shape, dtype=np.int64) for entry in t5_table(config).values())
    assert abs(count - 1.223e9) < 2e6


def test_the_embedding_table_goes_by_two_names():
    tensors = {
        name: StoredTensor(array.shape, array.dtype, lambda array=array: array)
        for name, array in tensors_of().items()
    }
    expected = convert_t5(tensors)[1]
    both = tensors | {TOKENS[1]: tensors[TOKENS[0]]}
    other = {name: both[name] for name in both if name != TOKENS[0]}
    for published in (both, other):
        jax.tree.map(np.testing.assert_array_equal, convert_t5(published)[1], expected)


def test_decoder_and_head_are_left_out():
    extra = {
        "decoder.block.0.layer.0.SelfAttention.q.weight": np.zeros((2, 2)),
        "lm_head.weight": np.zeros((30, 16)),
    }
    convert_t5(tensors_of() | extra)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"encoder.final_layer_norm.weight": None}, r"1 missing: encoder\.final_layer_norm\.weight"),
        ({"encoder.extra.weight": np.zeros(3)}, r"1 unexpected: encoder\.extra\.weight"),
        (
            {"encoder.block.1.layer.1.layer_norm.weight": np.ones(7)},
            r"layer_norm\.weight is \[7\], expected \[16\]",
        ),
        ({RELATIVE_BIAS: None}, "missing or misshapen: encoder.block.0.*relative_attention_bias"),
        ({"shared.weight": None}, "missing or misshapen: shared.weight"),
    ],
)
def test_wrong_tensors(change, match):
    tensors = tensors_of() | change
    with pytest.raises(ValueError, match=match) as error:
        convert_t5({name: tensor for name, tensor in tensors.items() if tensor is not None})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (PUBLISHED | {"d_model": 32}, "dim is 32 in the config and 16 in the tensors"),
        (PUBLISHED | {"feed_forward_proj": "relu"}, "feed_forward_proj is 'relu'"),
        ({"heads": 3}, "unknown setting heads"),
    ],
)
def test_wrong_settings(settings, match):
    with pytest.raises(ValueError, match=match) as error:
        convert_t5(tensors_of(), settings)
    assert "\n" not in str(error.value)


def test_what_shapes_do_not_tell():
    settings = PUBLISHED | {"relative_attention_max_distance": 64, "layer_norm_epsilon": 1e-5}
    config, _ = convert_t5(tensors_of(), settings)
    assert config == dataclasses.replace(TINY, max_distance=64, norm_eps=1e-5)
    assert convert_t5(tensors_of(), TINY)[0] is TINY
    with pytest.raises(ValueError, match="num_buckets 8 with max_distance 2"):
        dataclasses.replace(TINY, max_distance=2)
