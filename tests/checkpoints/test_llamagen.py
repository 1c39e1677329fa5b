"""Converters of published GPTs and drafters: layouts, published sizes, strictness."""

import dataclasses

import jax
import numpy as np
import pytest

from lantern_jax.families.drafter_weights import convert_drafter, drafter_table
from lantern_jax.families.llamagen_weights import (
    HUGGING_FACE_NAMES,
    ORIGINAL_NAMES,
    convert_gpt,
    gpt_shapes,
    gpt_table,
)
from lantern_jax.models.drafter import DrafterConfig, drafter_shapes
from lantern_jax.models.llamagen import LlamaGenConfig
from tests.golden_cases import golden_weight

CLASS = LlamaGenConfig(dim=32, num_layers=2, num_heads=2, vocab_size=24, grid=4, hidden_dim=48, num_labels=6)
CAPTION = dataclasses.replace(CLASS, num_labels=0, caption_dim=10, caption_length=7)
DRAFTER = DrafterConfig(dim=32, num_heads=2, hidden_dim=40, vocab_size=24, grid=4, prefix_length=7)
SETTINGS = {"num_heads": 2, "grid": 4}


def tensors_of(table, seed=0):
    return {name: golden_weight(name, entry.shape, seed) for name, entry in table.items()}


def hugging_face(tensors, config):
    """The same weights under the Hugging Face-style names, taken apart."""
    moved = {}
    for part, name in ORIGINAL_NAMES.items():
        for i in range(config.num_layers):
            tensor = tensors.get(name.format(i=i))
            if part == "qkv":
                pieces = dict(zip("qkv", np.split(tensor, 3), strict=True))
            else:
                pieces = {} if tensor is None else {part: tensor}
            moved |= {HUGGING_FACE_NAMES[piece].format(i=i): value for piece, value in pieces.items()}
    return moved


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def shapes(tree):
    return jax.tree.map(lambda leaf: tuple(leaf.shape), tree)


@pytest.mark.parametrize("config", [CLASS, CAPTION], ids=["class", "caption"])
def test_both_layouts_give_the_same_parameters(config):
    tensors = tensors_of(gpt_table(config, ORIGINAL_NAMES))
    found, params = convert_gpt(tensors | {"freqs_cis": np.zeros((17, 8, 2))}, SETTINGS)
    assert found == config
    assert shapes(params) == shapes(gpt_shapes(config))
    recomputed = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8)}
    again, other = convert_gpt(hugging_face(tensors, config) | recomputed, SETTINGS)
    assert again == config
    same(params, other)


def test_rotary_pairs_are_reordered():
    """Elements 2i and 2i + 1 of a head of width E become i and i + E/2; values keep their order."""
    tensors = tensors_of(gpt_table(CLASS, ORIGINAL_NAMES))
    name = ORIGINAL_NAMES["qkv"].format(i=1)
    tensors[name] = np.repeat(np.arange(96, dtype=np.float32)[:, None], 32, axis=1)
    kernel = convert_gpt(tensors, SETTINGS)[1]["params"]["transformer"]["layer_1"]["qkv"]["kernel"]
    head = [*range(0, 16, 2), *range(1, 16, 2)]
    query = [*head, *(16 + e for e in head)]
    expected = [*query, *(32 + e for e in query), *range(64, 96)]
    assert kernel.shape == (32, 3, 2, 16)
    np.testing.assert_array_equal(kernel.reshape(32, 96), np.tile(np.array(expected, np.float32), (32, 1)))


def test_settings_of_a_hugging_face_config():
    tensors = hugging_face(tensors_of(gpt_table(CAPTION, ORIGINAL_NAMES)), CAPTION)
    settings = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_attention_heads": 2,
        "block_size": 16,
        "rms_norm_eps": 1e-6,
        "use_cache": True,
    }
    config, _ = convert_gpt(tensors, settings)
    assert (config.num_heads, config.grid, config.norm_eps) == (2, 4, 1e-6)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (None, "number of heads.*num_heads"),
        ({"heads": 2}, "unknown setting heads"),
        ({"num_heads": 2, "dim": 64}, "dim is 64 in the config and 32 in the tensors"),
        ({"num_heads": 3}, "dim 32 with 3 heads"),
    ],
)
def test_wrong_settings(settings, match):
    tensors = tensors_of(gpt_table(CLASS, ORIGINAL_NAMES))
    with pytest.raises(ValueError, match=match) as error:
        convert_gpt(tensors, settings)
    assert "\n" not in str(error.value)


def test_drafter_takes_heads_and_grid_from_its_target():
    tensors = tensors_of(drafter_table(DRAFTER))
    assert "layers.0.input_layernorm.weight" not in tensors
    config, params = convert_drafter(tensors, target=CAPTION)
    assert config == DRAFTER
    assert shapes(params) == shapes(drafter_shapes(DRAFTER))
    other, _ = convert_drafter(tensors, {"model_type": "llama", "num_attention_heads": 4}, target=CAPTION)
    assert other.num_heads == 4


@pytest.mark.parametrize(
    ("target", "match"),
    [
        (dataclasses.replace(CAPTION, vocab_size=48), "vocab_size is 24, the target's 48"),
        (dataclasses.replace(CAPTION, dim=64, num_heads=4), "dim is 32, the target's 64"),
    ],
)
def test_drafter_of_another_target(target, match):
    with pytest.raises(ValueError, match=match) as error:
        convert_drafter(tensors_of(drafter_table(DRAFTER)), {"num_heads": 2}, target=target)
    assert "\n" not in str(error.value)
