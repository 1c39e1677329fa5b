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
    gpt_config_from_shapes,
    gpt_shapes,
    gpt_table,
)
from lantern_jax.models.drafter import DrafterConfig, drafter_shapes
from lantern_jax.models.llamagen import SIZES, LlamaGenConfig, published_config
from tests.golden_cases import golden_weight

CLASS = LlamaGenConfig(dim=32, num_layers=2, num_heads=2, vocab_size=24, grid=4, hidden_dim=48, num_labels=6)
CAPTION = dataclasses.replace(CLASS, num_labels=0, caption_dim=10, caption_length=7)
DRAFTER = DrafterConfig(dim=32, num_heads=2, hidden_dim=40, vocab_size=24, grid=4, prefix_length=7)
SETTINGS = {"num_heads": 2, "grid": 4}


class Shaped:
    """A tensor's shape without its values."""

    def __init__(self, shape):
        self.shape = shape


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
    found, params = convert_gpt(tensors, SETTINGS)
    assert found == config
    assert shapes(params) == shapes(gpt_shapes(config))
    again, other = convert_gpt(hugging_face(tensors, config), SETTINGS)
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


@pytest.mark.parametrize("names", [ORIGINAL_NAMES, HUGGING_FACE_NAMES], ids=["original", "hugging_face"])
@pytest.mark.parametrize("conditioning", ["class", "caption"])
@pytest.mark.parametrize("size", SIZES)
def test_published_sizes_are_found_from_shapes(size, conditioning, names):
    config = published_config(size, conditioning)
    table = gpt_table(config, names)
    abstract = {name: Shaped(entry.shape) for name, entry in table.items()}
    found = gpt_config_from_shapes(abstract)
    assert found == dataclasses.replace(config, hidden_dim=config.transformer.hidden_dim)
    assert gpt_config_from_shapes(abstract, {"grid": 24}).grid == 24


@pytest.mark.parametrize(
    ("size", "millions"),
    [("B", 111), ("L", 343), ("XL", 775), ("XXL", 1400), ("3B", 3100), ("7B", 6600)],
)
def test_published_parameter_counts(size, millions):
    entries = gpt_table(published_config(size), ORIGINAL_NAMES).values()
    count = sum(np.prod(entry.shape, dtype=np.int64) for entry in entries) / 1e6
    assert abs(count - millions) < 0.02 * millions


def test_abstract_parameters_of_a_published_size():
    """The table covers the very parameters that the module makes."""
    config = published_config("XL", "caption")
    made = {
        "/".join(key.key for key in path): leaf.size
        for path, leaf in jax.tree_util.tree_flatten_with_path(gpt_shapes(config)["params"])[0]
    }
    covered: dict[str, int] = {}
    for entry in gpt_table(config, HUGGING_FACE_NAMES).values():
        name = "/".join(entry.path[:-1] if entry.path[-2] == "kernel" else entry.path)
        covered[name] = covered.get(name, 0) + int(np.prod(entry.shape, dtype=np.int64))
    assert covered == made


def test_heads_that_shapes_do_not_tell():
    tensors = tensors_of(gpt_table(CLASS, ORIGINAL_NAMES))
    with pytest.raises(ValueError, match="number of heads") as error:
        convert_gpt(tensors)
    assert "\n" not in str(error.value) and "num_heads" in str(error.value)


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


@pytest.mark.parametrize("layout", ["original", "hugging_face"])
def test_every_wrong_tensor_is_listed(layout):
    tensors = tensors_of(gpt_table(CLASS, ORIGINAL_NAMES))
    names = ORIGINAL_NAMES
    if layout == "hugging_face":
        tensors, names = hugging_face(tensors, CLASS), HUGGING_FACE_NAMES
    missing = [names["out"].format(i=0), names["norm"]]
    for name in missing:
        del tensors[name]
    tensors |= {"layers.9.extra": np.zeros(3), "vision.weight": np.zeros((2, 2))}
    misshapen = names["down"].format(i=1)
    tensors[misshapen] = tensors[misshapen].T
    with pytest.raises(ValueError, match=r"2 missing.*2 unexpected.*1 misshapen") as error:
        convert_gpt(tensors, SETTINGS)
    message = str(error.value)
    assert "\n" not in message
    for name in (*missing, "layers.9.extra", "vision.weight", f"{misshapen} is [48, 32], expected [32, 48]"):
        assert name in message


def test_grouped_queries_are_refused():
    tensors = tensors_of(gpt_table(CLASS, ORIGINAL_NAMES))
    name = ORIGINAL_NAMES["qkv"].format(i=0)
    tensors[name] = tensors[name][:64]
    with pytest.raises(ValueError, match=r"wqkv\.weight is \[64, 32\], expected \[96, 32\]"):
        convert_gpt(tensors, SETTINGS)


def test_recomputed_tables_are_ignored():
    tensors = tensors_of(gpt_table(CLASS, ORIGINAL_NAMES))
    tensors |= {
        "freqs_cis": np.zeros((17, 8, 2)),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8),
    }
    convert_gpt(tensors, SETTINGS)


def test_something_else_entirely():
    for convert in (convert_gpt, convert_drafter):
        with pytest.raises(ValueError, match="missing or misshapen") as error:
            convert({"conv1.weight": np.zeros((3, 3))}, {"num_heads": 2})
        assert "\n" not in str(error.value)


def test_dtype():
    tensors = tensors_of(gpt_table(CLASS, ORIGINAL_NAMES))
    _, params = convert_gpt(tensors, SETTINGS, np.float16)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float16)}


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


def test_drafter_with_wrong_tensors():
    tensors = tensors_of(drafter_table(DRAFTER))
    tensors["lm_head.weight"] = np.zeros((24, 32))
    del tensors["fc.bias"]
    with pytest.raises(ValueError, match=r"1 missing: fc\.bias; 1 unexpected: lm_head\.weight"):
        convert_drafter(tensors, target=CAPTION)
