"""Chameleon's published tensors: the order of rows, norms that heads share, and what is wrong in one line."""

import jax
import numpy as np

from lantern_jax.families.chameleon_weights import chameleon_shapes, convert_chameleon
from lantern_jax.families.drafter_weights import convert_drafter
from tests.fixtures.published_layouts import TINY_CHAMELEON, TINY_VQGAN, drafter_of
from tests.fixtures.published_shapes import chameleon_shapes as published_shapes
from tests.fixtures.published_shapes import drafter_shapes as published_drafter_shapes
from tests.golden_cases import golden_weight

CONFIG = TINY_CHAMELEON
ORDER = np.random.default_rng(0).permutation(CONFIG.vocab_size)
SETTINGS = {"grid": CONFIG.grid}


def tensors_of(shapes):
    return {name: golden_weight(name, shape, 0) for name, shape in shapes.items()}


def convert(tensors):
    return convert_chameleon(tensors, SETTINGS, order=ORDER, num_codes=CONFIG.num_codes)


def shared_norms(tensors):
    """(one row for all heads, the same written out for each head)."""
    norms = {name: rows[:1] for name, rows in tensors.items() if "q_norm" in name or "k_norm" in name}
    return tensors | norms, tensors | {
        name: np.repeat(row, CONFIG.num_heads, axis=0) for name, row in norms.items()
    }


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_rows_are_stream_ids_and_the_head_has_the_codes_only():
    tensors = tensors_of(published_shapes(CONFIG, TINY_VQGAN))
    config, params = convert(tensors)
    assert config == CONFIG
    shapes = jax.tree.map(lambda leaf: leaf.shape, params)
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, chameleon_shapes(CONFIG))
    same(params["params"]["tokens"]["embedding"], tensors["model.embed_tokens.weight"][ORDER])
    codes = tensors["lm_head.weight"][ORDER[: CONFIG.num_codes]]
    same(params["params"]["head"]["kernel"], codes.T)


def test_heads_may_share_the_norms_of_queries_and_keys():
    """Lumina-mGPT stores one row for all heads."""
    shared, each = shared_norms(tensors_of(published_shapes(CONFIG, TINY_VQGAN)))
    assert shared["model.layers.0.self_attn.q_norm.weight"].shape == (1, 16)
    ours, theirs = convert(shared), convert(each)
    assert ours[0] == theirs[0] == CONFIG
    same(ours[1], theirs[1])
    drafter = drafter_of(CONFIG)
    shared, each = shared_norms(tensors_of(published_drafter_shapes(drafter)))
    ours, theirs = (convert_drafter(given, target=CONFIG, order=ORDER) for given in (shared, each))
    assert ours[0] == theirs[0] == drafter
    same(ours[1], theirs[1])
