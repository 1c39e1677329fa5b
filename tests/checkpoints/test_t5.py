"""The converter of T5 encoders: two names of one table, and settings that shapes do not tell."""

import dataclasses

import jax
import numpy as np
import pytest

from lantern_jax.families.t5_weights import TOKENS, convert_t5, t5_table
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


def test_the_embedding_table_goes_by_two_names():
    tensors = {
        name: StoredTensor(array.shape, array.dtype, lambda array=array: array)
        for name, array in tensors_of().items()
    }
    expected = convert_t5(tensors, PUBLISHED, np.float16)
    assert expected[0] == TINY
    both = tensors | {TOKENS[1]: tensors[TOKENS[0]]}
    other = {name: both[name] for name in both if name != TOKENS[0]}
    for published in (both, other):
        jax.tree.map(
            np.testing.assert_array_equal, convert_t5(published, PUBLISHED, np.float16)[1], expected[1]
        )


def test_what_shapes_do_not_tell():
    settings = PUBLISHED | {"relative_attention_max_distance": 64, "layer_norm_epsilon": 1e-5}
    config, _ = convert_t5(tensors_of(), settings)
    assert config == dataclasses.replace(TINY, max_distance=64, norm_eps=1e-5)
    assert convert_t5(tensors_of(), TINY)[0] is TINY
    with pytest.raises(ValueError, match="num_buckets 8 with max_distance 2"):
        dataclasses.replace(TINY, max_distance=2)
