"""CLIP against transformers' on the same small random weights, through both published layouts."""

import functools

import jax
import numpy as np
import pytest

from lantern_jax.apps.metrics.clip import Clip
from lantern_jax.apps.metrics.clip_files import convert_clip
from tests.metrics.tiny_clip import to_openai

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, CONTEXT, SIDE = 30, 11, 12
# (width, heads, feed-forward width) of the towers; heads of ViT-H's vision tower are 80 wide.
SIZES = {"B": ((24, 3, 40), (16, 2, 20)), "H": ((160, 2, 100), (48, 3, 64))}


@functools.cache
def reference(size="B", activation="quick_gelu"):
    """Returns transformers' model with random weights and biases, those of the norms included."""
    vision, text = (
        {
            "hidden_size": width, "num_attention_heads": heads, "intermediate_size": hidden,
            "num_hidden_layers": 2, "hidden_act": activation, "attn_implementation": "eager",
        }
        for width, heads, hidden in SIZES[size]
    )  # fmt: skip
    marks = {"bos_token_id": VOCAB - 2, "eos_token_id": VOCAB - 1, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config={**text, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, **marks},
        vision_config={**vision, "image_size": SIDE, "patch_size": 4},
        projection_dim=10,
    )
    model = transformers.CLIPModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                weight.copy_(1 + 0.3 * noise)
            elif weight.ndim < 2 or "embedding" in name:
                weight.copy_(0.5 * noise)
            else:
                weight.copy_(noise / np.prod(weight.shape[1:]) ** 0.5)
    return model


def told(size, activation):
    return {
        "activation": activation, "vision_heads": SIZES[size][0][1], "text_heads": SIZES[size][1][1],
    }  # fmt: skip


def tensors_of(model):
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def inputs():
    """Returns pictures, and ids with the end token at several places, twice in one row, and other ids after it."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, VOCAB - 2, (4, CONTEXT)).astype(np.int32)
    ids[:, 0] = VOCAB - 2
    for row, end in zip(ids, (CONTEXT - 1, 3, 1, 6), strict=True):
        row[end] = VOCAB - 1
    ids[1, 7] = VOCAB - 1
    return rng.normal(size=(3, SIDE, SIDE, 3)).astype(np.float32), ids


@functools.cache
def expected(size, activation):
    model, (pictures, ids) = reference(size, activation), inputs()
    with torch.no_grad():
        seen = model.vision_model(pixel_values=torch.tensor(pictures.transpose(0, 3, 1, 2)))
        read = model.text_model(input_ids=torch.tensor(ids.astype(np.int64)))
        seen, read = model.visual_projection(seen.pooler_output), model.text_projection(read.pooler_output)
        return seen.numpy(), read.numpy()


@pytest.mark.parametrize(("size", "activation"), [("B", "quick_gelu"), ("H", "gelu")])
def test_embeddings_match_transformers(assert_close, size, activation):
    config, params = convert_clip(tensors_of(reference(size, activation)), told(size, activation))
    assert (config.side, config.patch, config.embedding) == (SIDE, 4, 10)
    assert (config.vocab_size, config.context, config.text.layers) == (VOCAB, CONTEXT, 2)
    wanted = expected(size, activation)
    # Values of order one, so that the absolute tolerance means something.
    assert all(np.abs(part).mean() > 0.3 for part in wanted)
    assert_close(jax.jit(Clip(config).apply)(params, *inputs()), wanted)


def test_both_layouts_give_the_same_model():
    tensors = tensors_of(reference())
    first = convert_clip(tensors, told("B", "gelu"))
    positions = {f"{tower}_model.embeddings.position_ids": np.arange(9)[None] for tower in ("vision", "text")}
    for same in (to_openai(tensors), tensors | positions):
        config, params = convert_clip(same, told("B", "gelu"))
        assert config == first[0]
        jax.tree.map(np.testing.assert_array_equal, params, first[1])
