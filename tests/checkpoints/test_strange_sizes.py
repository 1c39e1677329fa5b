"""Names and shapes of a stranger's tensors: sizes that they claim are looked at before anything is made of them."""

import numpy as np
import pytest

from lantern_jax.families.chameleon_vq_weights import convert_vqgan
from lantern_jax.families.llamagen_vq_weights import convert_vq
from lantern_jax.families.llamagen_weights import convert_gpt
from lantern_jax.families.medusa_weights import convert_medusa
from lantern_jax.families.t5_weights import convert_t5
from lantern_jax.models.llamagen import LlamaGenConfig
from lantern_jax.tensors.matching import describe_mismatch


class Claimed:
    """A tensor of which nothing but the shape is there."""

    def __init__(self, *shape):
        self.shape = shape

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("it was read")


GPT = {
    "tok_embeddings.weight": Claimed(8, 4),
    "cls_embedding.embedding_table.weight": Claimed(3, 4),
    "layers.0.feed_forward.w1.weight": Claimed(8, 4),
}
T5 = {
    "shared.weight": Claimed(8, 4),
    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": Claimed(4, 2),
    "encoder.block.0.layer.0.SelfAttention.q.weight": Claimed(4, 4),
    "encoder.block.0.layer.1.DenseReluDense.wi_0.weight": Claimed(8, 4),
}


@pytest.mark.parametrize("number", ["1000", "999999999", "9" * 5000])
def test_layers_without_end(number):
    for convert, tensors, name in (
        (convert_gpt, GPT, f"layers.{number}.attention_norm.weight"),
        (convert_t5, T5, f"encoder.block.{number}.layer.0.layer_norm.weight"),
        (convert_vq, {}, f"encoder.conv_blocks.{number}.res.0.conv1.weight"),
        (convert_vqgan, {}, f"encoder.down.{number}.block.0.conv1.weight"),
    ):
        with pytest.raises(ValueError, match=r"these tensors name a part .*, expected less than") as error:
            convert(tensors | {name: Claimed(4)})
        assert len(str(error.value)) < 200
    target = LlamaGenConfig(dim=8, num_layers=1, num_heads=2, vocab_size=8, num_labels=3)
    for name in (f"{number}.0.linear.weight", f"0.{number}.linear.weight"):
        with pytest.raises(ValueError, match="these tensors name a part"):
            convert_medusa({name: Claimed(4)}, target=target)


def test_sizes_of_zero():
    bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    with pytest.raises(ValueError, match=f"missing or misshapen: {bias}"):
        convert_t5(T5 | {bias: Claimed(4, 0)})
    with pytest.raises(ValueError, match=r"missing or misshapen: tok_embeddings\.weight"):
        convert_gpt(GPT | {"tok_embeddings.weight": Claimed(0, 0)})


def test_a_mismatch_of_many_tensors_is_one_short_line():
    found = {"n" * 10_000: (3,)} | {f"tensor {i}": (i,) for i in range(5000)}
    text = describe_mismatch(found, {"weight": (2,)})
    assert "1 missing: weight; 5001 unexpected: nnn" in text and "and 4981 more" in text and len(text) < 1000
    assert describe_mismatch({"a": np.zeros(2).shape}, {"a": (2,)}) == ""
