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


def test_drafter_takes_heads_and_grid_from_its_target():
    tensors = tensors_of(drafter_table(DRAFTER))
    assert "layers.0.input_layernorm.weight" not in tensors
    config, params = convert_drafter(tensors, target=CAPTION)
    assert config == DRAFTER
    assert shapes(params) == shapes(drafter_shapes(DRAFTER))
    other, _ = convert_drafter(tensors, {"model_type": "llama", "num_attention_heads": 4}, target=CAPTION)
    assert other.num_heads == 4
