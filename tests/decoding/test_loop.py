"""The loop: devices, batches, forced tokens, what is compiled, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding import loop
from lantern_jax.decoding.acceptance import Codebook, LanternPlusPlus
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.sampling import SamplingParams, gumbel_noise
from lantern_jax.decoding.tree import DraftTree, named_tree

from . import toy_models as toys


def options(batch, guided, temperature, **more):
    guidance = jnp.full(batch, 2.5) if guided else None
    return {"guidance": guidance, "sampling": SamplingParams.create(temperature), **more}


def decode(tree, batch, guided, temperature, quality, **more):
    target, params = toys.llamagen(), toys.target_params()
    conditioning = toys.conditioning(batch)
    if quality == "random":
        drafter, drafter_params = toys.random_drafter()
    else:
        drafter, drafter_params = toys.noisy_drafter(target), toys.noisy_params(params, conditioning, 0.6)
    return speculative_decode(
        target, params, conditioning, toys.sequence_keys(0, batch), drafter=drafter,
        drafter_params=drafter_params, tree=tree, **options(batch, guided, temperature, **more),
    )  # fmt: skip


def plain(batch, guided, temperature):
    conditioning = toys.conditioning(batch)
    return autoregressive_decode(
        toys.llamagen(), toys.target_params(), conditioning, toys.sequence_keys(0, batch),
        **options(batch, guided, temperature),
    )  # fmt: skip


def test_a_good_drafter_on_eight_devices_paces_each_sequence_alone():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    alone = decode(DraftTree.chain(3), 8, False, 1.0, "random")
    sharded = decode(DraftTree.chain(3), 8, False, 1.0, "random", mesh=mesh)
    np.testing.assert_array_equal(sharded.rounds, alone.rounds)
    assert len(set(np.asarray(alone.rounds).tolist())) > 1, "all sequences took the same number of rounds"


def test_a_batch_that_does_not_divide_is_an_error():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with pytest.raises(ValueError, match="batch 5 does not divide over 8 devices"):
        decode(DraftTree.chain(2), 5, False, 1.0, "random", mesh=mesh)


def test_a_tree_without_a_drafter_is_an_error():
    with pytest.raises(ValueError, match="needs a drafter"):
        speculative_decode(
            toys.llamagen(), toys.target_params(), toys.conditioning(1), toys.sequence_keys(0, 1),
            tree=DraftTree.chain(2), **options(1, False, 1.0),
        )  # fmt: skip


def test_a_sequence_does_not_depend_on_its_batch():
    together = plain(5, True, 1.0)
    target, params = toys.llamagen(), toys.target_params()
    for i in (0, 3):
        conditioning = toys.conditioning(5)[i : i + 1]
        alone = autoregressive_decode(
            target, params, conditioning, toys.sequence_keys(0, 5)[i : i + 1], **options(1, True, 1.0)
        )
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[i])


def test_a_sweep_compiles_once():
    before = loop._decode_jit._cache_size()
    neighbours = jnp.broadcast_to(jnp.arange(1, 5, dtype=jnp.int32)[None], (toys.VOCAB, 4))
    codebook = Codebook(neighbours, jnp.ones((toys.VOCAB, 2)))
    drafter, drafter_params = toys.random_drafter()
    for temperature, guidance, top_k, lam in [(1.0, 2.0, 0, 2.0), (0.0, 3.0, 5, 1.0), (0.7, 1.5, 9, 4.0)]:
        speculative_decode(
            toys.llamagen(), toys.target_params(), toys.conditioning(2), toys.sequence_keys(0, 2),
            drafter=drafter, drafter_params=drafter_params, guidance=jnp.full(2, guidance),
            sampling=SamplingParams.create(temperature, top_k), tree=DraftTree.chain(2),
            rule=LanternPlusPlus(jnp.float32(lam), 4), codebook=codebook,
        )  # fmt: skip
    assert loop._decode_jit._cache_size() == before + 1


def forced_pattern(length, row):
    """Every row ends in a forced id, the second row in two; the stream ends forced."""
    forced = [9 if i % row == row - 1 else -1 for i in range(length)]
    forced[2 * row - 2] = 8
    return tuple(forced)


@pytest.mark.parametrize("quality", [0.0, 0.5, 3.0])
@pytest.mark.parametrize(
    "tree",
    [DraftTree.empty(), DraftTree.chain(4), named_tree("mc_sim_7b_63")],
    ids=lambda tree: f"{tree.num_nodes}_nodes",
)
def test_forced_tokens_cost_no_pass_and_change_nothing(tree, quality):
    vocab, length, batch = 10, 17, 6
    forced = forced_pattern(length, 5)
    target, params = toys.markov_target(vocab, length, forced), toys.markov_params(vocab)
    keys, conditioning = toys.sequence_keys(1, batch), jnp.zeros((batch, 1))
    drafter = toys.noisy_drafter(target)
    decoded = speculative_decode(
        target, params, conditioning, keys, drafter=drafter,
        drafter_params=toys.noisy_params(params, conditioning, quality), tree=tree, **options(batch, False, 1.0),
    )  # fmt: skip
    noise = gumbel_noise(keys, jnp.tile(jnp.arange(length)[None], (batch, 1)), vocab, SamplingParams.create())
    expected = np.zeros((batch, length), np.int32)
    log_probs = np.asarray(jax.nn.log_softmax(params, axis=-1))
    for b in range(batch):
        last = vocab
        for i in range(length):
            last = forced[i] if forced[i] >= 0 else int(np.argmax(log_probs[last] + np.asarray(noise[b, i])))
            expected[b, i] = last
    np.testing.assert_array_equal(decoded.tokens, expected)
    free = sum(token < 0 for token in forced)
    sampled = np.asarray(decoded.accepted) @ (1 + np.arange(tree.max_depth + 1))
    np.testing.assert_array_equal(sampled, free - 1)
    if tree.max_depth and quality == 0.0:
        assert decoded.rounds.max() < free - 1


def test_round_of_token_and_rounds_agree():
    decoded = decode(DraftTree.chain(4), 5, False, 1.0, "good")
    last = np.asarray(decoded.round_of_token)
    assert (np.diff(last, axis=1) >= 0).all() and (last[:, 0] == 0).all()
    np.testing.assert_array_equal(last[:, -1], decoded.rounds)
