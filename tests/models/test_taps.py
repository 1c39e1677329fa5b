"""Targets return the states that enter any of their layers; everything else about them stays the same."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.protocols import GuidedTokens
from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.llamagen.model import LlamaGenConfig
from lantern_jax.families.llamagen.weights import gpt_shapes
from lantern_jax.families.registry import target_of
from lantern_jax.families.token_weights import token_shapes
from lantern_jax.models.positions import line_rotary
from lantern_jax.models.tokens import TokenModel
from lantern_jax.models.transformer import Transformer
from tests.cases import slow
from tests.tiny_checkpoint import random_leaves, random_parameters

BATCH, GUIDANCE = 2, jnp.full(2, 2.0)
LLAMAGEN = LlamaGenConfig(16, 3, 2, vocab_size=24, grid=3, hidden_dim=32, num_labels=7)
CHAMELEON = ChameleonConfig(16, 3, 2, 32, vocab_size=40, num_codes=24, grid=3, layout="lumina")
TOKENS, MASK = [[3, 30, 31, 32, 33], [0, 5, 31, 32, 33]], [[True] * 5, [False] + [True] * 4]
MODELS = {
    "llamagen": (LLAMAGEN, target_of, gpt_shapes, jnp.asarray([[1], [4]], jnp.int32)),
    "chameleon": (
        CHAMELEON, target_of, partial(token_shapes, TokenModel),
        GuidedTokens(*2 * (jnp.asarray(TOKENS, jnp.int32), jnp.asarray(MASK))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["llamagen", *(slow(name) for name in MODELS if name != "llamagen")])
def test_taps_are_the_states_that_enter_layers(name):
    config, make, shapes, conditioning = MODELS[name]
    params = jax.tree.map(jnp.asarray, random_leaves(shapes(config), 0, 0.5))
    plain, tapped = make(config), make(config, taps=[0, 1, 2, 3])
    assert make(config, taps=(0, 1, 2, 3)) is tapped and make(config, jnp.float32, ()) is plain
    tokens, depth = jnp.asarray([[2, 7], [9, 1]], jnp.int32), np.arange(2, dtype=np.int32)
    causal = np.tril(np.ones((2, 2), bool))
    found = []
    for target in (plain, tapped):
        prefill = jax.jit(target.prefill, static_argnums=3)
        cache, logits, prefix = prefill(params, conditioning, GUIDANCE, 8)
        score = jax.jit(lambda *given, target=target: target.score(*given, depth, causal))
        after, features, _ = score(params, cache, tokens)
        found.append((logits, prefix.features, after, features))
    for at in (0, 2):
        np.testing.assert_array_equal(found[0][at], found[1][at])
    for at in (1, 3):
        assert found[1][at].shape[-1] == 4 * config.dim
        np.testing.assert_array_equal(found[1][at][..., 3 * config.dim :], found[0][at])
    first, second, third, _ = np.split(np.asarray(found[1][3]), 4, axis=-1)
    np.testing.assert_array_equal(first[0], params["params"]["tokens"]["embedding"][tokens])
    assert not np.allclose(second, third, atol=1e-3)


def test_a_tap_is_the_output_of_a_shallower_stack():
    config = dataclasses.replace(LLAMAGEN.transformer, final_norm=False, num_layers=2)
    x = np.random.default_rng(1).normal(size=(BATCH, 4, 16)).astype(np.float32)
    rotary = line_rotary(jnp.arange(4, dtype=jnp.int32), config.head_dim)[None]
    mask = jnp.tril(jnp.ones((1, 4, 4), bool))
    params = random_parameters(Transformer(config), 0, 0.3, x, rotary, mask)
    states, _ = jax.jit(Transformer(config, taps=(0, 1)).apply)(params, x, rotary, mask)
    for layers, state in enumerate(np.split(np.asarray(states), 3, axis=-1)):
        if not layers:
            np.testing.assert_array_equal(state, x)
            continue
        shallow = Transformer(dataclasses.replace(config, num_layers=layers))
        np.testing.assert_allclose(state, jax.jit(shallow.apply)(params, x, rotary, mask)[0], atol=1e-6)


def test_taps_that_are_not_layers_are_refused():
    with pytest.raises(ValueError, match=r"taps \(1, 4\): expected layers from 0 to 3"):
        target_of(LLAMAGEN, taps=(1, 4))
