"""Converters of published tensors: layouts of the same weights, row orders, and what configs add to shapes."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from lantern_jax.apps.foreign.tensor_files import StoredTensor
from lantern_jax.drafters.eagle import drafter_shapes
from lantern_jax.drafters.eagle_weights import convert_drafter
from lantern_jax.families.chameleon.weights import chameleon_config_from_shapes, convert_chameleon
from lantern_jax.families.llamagen.t5_weights import TOKENS, convert_t5
from lantern_jax.families.llamagen.weights import HUGGING_FACE_NAMES, ORIGINAL_NAMES, convert_gpt, gpt_shapes
from lantern_jax.models.t5 import T5Config
from tests.fixtures import published_layouts as layouts
from tests.fixtures import published_shapes as published
from tests.golden_cases import golden_weight

CLASS, CAPTION, CHAMELEON = layouts.TINY_CLASS, layouts.TINY_CAPTION, layouts.TINY_CHAMELEON
SETTINGS = {"num_heads": 2, "grid": 4}
ORDER = np.random.default_rng(0).permutation(CHAMELEON.vocab_size)
T5 = T5Config(24, 2, 2, 8, 40, 384, 32, 128)
# Flan-T5's config.json.
T5_SETTINGS = layouts.TINY_T5 | {"model_type": "t5", "feed_forward_proj": "gated-gelu"}
T5_SETTINGS["layer_norm_epsilon"] = 1e-6


def tensors_of(shapes):
    return {name: golden_weight(name, shape, 0) for name, shape in shapes.items()}


def hugging_face(tensors, config):
    """Returns the same weights under Hugging Face-style names, the fused projections split."""
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


def of_shapes(params, expected) -> bool:
    return jax.tree.map(np.shape, params) == jax.tree.map(np.shape, expected)


@pytest.mark.parametrize("config", [CLASS, CAPTION], ids=["class", "caption"])
def test_both_layouts_of_llamagen_give_the_same_parameters(config):
    tensors = tensors_of(published.original_gpt_shapes(config))
    found, params = convert_gpt(tensors | {"freqs_cis": np.zeros((17, 8, 2))}, SETTINGS)
    assert found == config and of_shapes(params, gpt_shapes(config))
    recomputed = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8)}
    settings = {
        "model_type": "llama", "hidden_size": 32, "num_attention_heads": 2, "block_size": 16, "rms_norm_eps": 1e-6,
        "use_cache": True,
    }  # fmt: skip
    again, other = convert_gpt(hugging_face(tensors, config) | recomputed, settings)
    assert again == dataclasses.replace(config, norm_eps=1e-6)
    same(params, other)


def test_a_drafter_takes_heads_and_grid_from_its_target():
    drafter = layouts.drafter_of(CAPTION)
    tensors = tensors_of(published.drafter_shapes(drafter))
    config, params = convert_drafter(tensors, target=CAPTION)
    assert config == drafter and of_shapes(params, drafter_shapes(drafter))
    other, _ = convert_drafter(tensors, {"model_type": "llama", "num_attention_heads": 4}, target=CAPTION)
    assert other.num_heads == 4


def chameleon(tensors):
    config = chameleon_config_from_shapes(tensors, {"grid": 4, "num_codes": CHAMELEON.num_codes})
    return convert_chameleon(tensors, config, order=ORDER)


def test_chameleons_rows_follow_stream_ids_and_its_head_has_only_codes():
    tensors = tensors_of(published.chameleon_shapes(CHAMELEON, layouts.TINY_VQGAN))
    config, params = chameleon(tensors)
    assert config == CHAMELEON
    same(params["params"]["tokens"]["embedding"], tensors["model.embed_tokens.weight"][ORDER])
    codes = tensors["lm_head.weight"][ORDER[: CHAMELEON.num_codes]]
    same(params["params"]["head"]["kernel"], codes.T)


def test_heads_may_share_query_and_key_norms():
    """Lumina-mGPT stores one row for all heads."""
    drafter = layouts.drafter_of(CHAMELEON)
    convert_one = partial(convert_drafter, target=CHAMELEON, order=ORDER)
    for convert, wanted, published_shapes in (
        (chameleon, CHAMELEON, published.chameleon_shapes(CHAMELEON, layouts.TINY_VQGAN)),
        (convert_one, drafter, published.drafter_shapes(drafter)),
    ):
        tensors = tensors_of(published_shapes)
        shared = {name: rows[:1] for name, rows in tensors.items() if "q_norm" in name or "k_norm" in name}
        each = {name: np.repeat(row, CHAMELEON.num_heads, axis=0) for name, row in shared.items()}
        ours, theirs = convert(tensors | shared), convert(tensors | each)
        assert ours[0] == theirs[0] == wanted
        same(ours[1], theirs[1])


def test_t5s_embedding_table_goes_by_two_names():
    tensors = {
        name: StoredTensor(array.shape, array.dtype, lambda array=array: array)
        for name, array in tensors_of(published.t5_shapes(layouts.TINY_T5, decoder=False)).items()
    }
    expected = convert_t5(tensors, T5_SETTINGS, dtype=np.float16)
    assert expected[0] == T5
    both = tensors | {TOKENS[1]: tensors[TOKENS[0]]}
    other = {name: both[name] for name in both if name != TOKENS[0]}
    for given in (both, other):
        same(convert_t5(given, T5_SETTINGS, dtype=np.float16)[1], expected[1])


def test_a_t5s_config_tells_what_its_shapes_do_not():
    tensors = tensors_of(published.t5_shapes(layouts.TINY_T5, decoder=True))
    settings = T5_SETTINGS | {"relative_attention_max_distance": 64, "layer_norm_epsilon": 1e-5}
    assert convert_t5(tensors, settings)[0] == dataclasses.replace(T5, max_distance=64, norm_eps=1e-5)
    assert convert_t5(tensors, T5)[0] is T5
    with pytest.raises(ValueError, match="num_buckets 32 with max_distance 2"):
        dataclasses.replace(T5, max_distance=2)
