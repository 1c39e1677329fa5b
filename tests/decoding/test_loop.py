"""The loop: strict gumbel decoding is plain decoding, token for token, whatever helps it along."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree, named_tree, tree_names

from . import toy_models as toys

TREES = {name: named_tree(name) for name in tree_names()}


def options(batch, guided, temperature, **more):
    guidance = jnp.full(batch, 2.5 if guided else 1.0)
    return {"guidance": guidance, "sampling": SamplingParams.create(temperature), **more}


def decode(tree, batch, guided, temperature, quality, **more):
    target, params = toys.llamagen(), toys.target_params()
    conditioning = toys.conditioning(batch, guided)
    if quality == "random":
        drafter, drafter_params = toys.random_drafter()
    else:
        drafter = toys.noisy_drafter(target, 0.6)
        drafter_params = {"target": params, "conditioning": conditioning}
    return speculative_decode(
        target, params, conditioning, toys.sequence_keys(0, batch), drafter=drafter,
        drafter_params=drafter_params, tree=tree, **options(batch, guided, temperature, **more),
    )  # fmt: skip


def plain(batch, guided, temperature):
    conditioning = toys.conditioning(batch, guided)
    return autoregressive_decode(
        toys.llamagen(), toys.target_params(), conditioning, toys.sequence_keys(0, batch),
        **options(batch, guided, temperature),
    )  # fmt: skip


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", TREES)
def test_strict_gumbel_repeats_plain_decoding(name, batch, guided):
    for temperature in (0.0, 1.0):
        expected = plain(batch, guided, temperature)
        for quality in ("random", "good"):
            actual = decode(TREES[name], batch, guided, temperature, quality)
            np.testing.assert_array_equal(actual.tokens, expected.tokens)
            assert int(actual.substituted.sum()) == 0
            made = np.sum(np.asarray(actual.accepted) * (1 + np.arange(actual.accepted.shape[1])), axis=1)
            np.testing.assert_array_equal(made, toys.CONFIG.num_tokens - 1)
            np.testing.assert_array_equal(actual.accepted.sum(axis=1), actual.rounds)


def test_every_accepted_length_occurs():
    tree = named_tree("naive_extend_57")
    accepted = decode(tree, 8, True, 1.0, "good").accepted.sum(axis=0)
    assert accepted.shape == (tree.max_depth + 1,)
    assert (np.asarray(accepted) > 0).all(), accepted
    bad = decode(tree, 8, True, 1.0, "random").accepted.sum(axis=0)
    assert int(bad[0]) > int(accepted[0])
