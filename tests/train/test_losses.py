"""Losses of drafters against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import losses


def pair(seed, codes=12, closeness=1.0):
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(3, codes)) * 2
    drafted = target + rng.normal(size=(3, codes)) * closeness
    return jnp.asarray(drafted, jnp.float32), jnp.asarray(target, jnp.float32)


def test_means_are_over_what_counts():
    numbers, none = np.ones((2, 3), np.float32), np.zeros(3, np.float32)
    assert losses.counted_mean(numbers, none) == 0
    assert losses.counted_mean(2 * numbers, none + np.eye(3, dtype=np.float32)[1]) == 2
    logits, target = pair(2)
    found = losses.agreement(logits, target, np.float32([1, 0, 1]))
    each = [
        losses.agreement(logits[row : row + 1], target[row : row + 1], np.ones(1, np.float32))
        for row in (0, 2)
    ]
    for name, value in found.items():
        np.testing.assert_allclose(value, np.mean([one[name] for one in each]), rtol=1e-6)


def test_match_chance_is_the_double_sum():
    match_chance = jax.jit(losses.match_chance)
    for closeness in (0.1, 1.0, 4.0):
        logits, target = pair(0, closeness=closeness)
        q, p = np.asarray(jax.nn.softmax(logits)), np.asarray(jax.nn.softmax(target))
        ratios = np.maximum(p[:, None] / p[:, :, None], q[:, None] / q[:, :, None])
        expected = (1 / ratios.sum(-1)).sum(-1)
        found = match_chance(logits, target)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        variation = np.asarray(losses.total_variation(logits, target))
        assert np.all(found <= 1 - variation + 1e-6)
        assert np.all(found >= (1 - variation) / (1 + variation) - 1e-6)
        np.testing.assert_allclose(match_chance(target, logits), expected, rtol=1e-5)
    np.testing.assert_allclose(match_chance(target, target), np.ones(3), rtol=1e-6)


def test_match_chance_is_how_often_shared_noise_draws_the_same_code():
    count = 100_000
    logits, target = (jnp.broadcast_to(row[:1], (count, row.shape[-1])) for row in pair(1))
    noise = jax.random.gumbel(jax.random.key(0), logits.shape)
    drafted, wanted = jnp.argmax(logits + noise, axis=-1), jnp.argmax(target + noise, axis=-1)
    chance = float(losses.match_chance(logits[0], target[0]))
    np.testing.assert_allclose(jnp.mean(drafted == wanted), chance, atol=6e-3)
    independent = float(jnp.mean(drafted == jnp.roll(wanted, 1)))
    assert abs(independent - chance) > 0.1


@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses_are_least_where_the_drafter_equals_the_target(name):
    loss, key = jax.jit(losses.distribution_loss(name)), jax.random.key(3)
    logits, target = pair(2)
    many = [jnp.broadcast_to(x[:1], (4000, x.shape[-1])) for x in (logits, target)]
    # Sharper or flatter than the target's distribution is worse, too (`coupled` in the mean over its noise).
    at_target, sharper = (loss(many[1] * scale, many[1], key).mean() for scale in (1, 3))
    assert at_target < loss(*many, key).mean()
    assert at_target < sharper
    value = lambda x: loss(x, target, key).sum()  # noqa: E731
    gradient, step = jax.jit(jax.grad(value))(logits), 1e-2
    for row, code in ((0, 1), (1, 5), (2, 11)):
        changed = [value(logits.at[row, code].add(sign * step)) for sign in (1, -1)]
        np.testing.assert_allclose(gradient[row, code], (changed[0] - changed[1]) / (2 * step), atol=3e-3)
    extreme = np.where(np.arange(12) % 2 == 0, np.asarray(logits) * 100, np.float32(-300))
    slope = jax.jit(jax.grad(lambda x, target: loss(x, target, key).sum()))
    for a, b in ((extreme, target), (target, extreme), (-extreme, extreme)):
        assert np.all(np.isfinite(slope(a, b)))


def test_unknown_losses_are_named():
    with pytest.raises(ValueError, match="unknown loss 'kl': choose one of cross_entropy"):
        losses.distribution_loss("kl")
