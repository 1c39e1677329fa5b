"""The tokenizer's training: codebook averages and restarts, losses, and that it learns."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import tiny_tokenizer
from lantern_jax.models.vq import VQModel
from tests.refused import refused
from tests.tiny_checkpoint import random_parameters
from train import codebook as cb
from train.discriminator import PatchDiscriminator, feature_matching, hinge_loss
from train.painter.landscapes import render_batch
from train.picture_losses import LossConfig, picture_psnr, prominence, reconstruction_loss, salience
from train.rendered import rendered_landscapes
from train.tokenizer import begun_from, make_task, vq_config


def get_config():
    """Returns a config with one level of 16 cells, no attention and one scale of the loss, which compiles faster."""
    config = tiny_tokenizer.get_config()
    config.size = 16
    config.model.update({"ch_mult": (1,), "mid_attention": False})
    config.loss.pyramid_levels = 1
    return config


def drawn(config, seed=0):
    """Returns parameters of these sizes, made without compiling."""
    example = jnp.zeros((1, config.size, config.size, 3))
    return random_parameters(VQModel(vq_config(config)), seed, 0.2, example)["params"]


def test_average_follows_the_vectors_that_chose_a_code():
    average = cb.start_average(jnp.eye(3, 2))
    vectors = jnp.array([[0.0, 4.0], [0.0, 2.0], [3.0, 0.0]])
    average = cb.update_average(average, vectors, jnp.array([1, 1, 0]), decay=0.5)
    np.testing.assert_allclose(average.count, [1.0, 1.5, 0.5])
    np.testing.assert_allclose(average.total, [[2.0, 0.0], [0.0, 3.5], [0.0, 0.0]])
    np.testing.assert_allclose(cb.codes_of(average, l2_norm=False), [[2, 0], [0, 3.5 / 1.5], [0, 0]])
    np.testing.assert_allclose(cb.codes_of(average, l2_norm=True)[:2], [[1, 0], [0, 1]], rtol=1e-6)


def test_only_dead_codes_restart_and_on_vectors_of_the_batch():
    count = jnp.array([2.0, 0.001, 1.0, 0.0])
    average = cb.CodebookAverage(count=count, total=jnp.full((4, 2), 7.0))
    vectors = jnp.array([[0.6, 0.8], [-0.6, 0.8]])
    np.testing.assert_array_equal(cb.dead_codes(average, threshold=0.1), [False, True, False, True])
    restarted = cb.restart_dead(average, vectors, jax.random.key(0), threshold=0.1)
    np.testing.assert_array_equal(restarted.total[jnp.array([0, 2])], jnp.full((2, 2), 7.0))
    np.testing.assert_array_equal(restarted.count[jnp.array([0, 2])], [2.0, 1.0])
    codes = np.asarray(cb.codes_of(restarted, l2_norm=True))
    for code in (1, 3):
        assert min(np.abs(codes[code] - v).max() for v in np.asarray(vectors)) < 1e-6
        assert not cb.dead_codes(restarted, threshold=0.1)[code]


def test_perplexity_and_psnr_of_known_numbers():
    assert cb.usage_perplexity(jnp.array([2.0, 2.0, 0.0, 2.0])) == pytest.approx(3.0, rel=1e-5)
    real = jnp.zeros((1, 8, 8, 3))
    assert picture_psnr(real, real + 0.2) == pytest.approx(20.0, abs=1e-3)


def test_reconstruction_loss_is_zero_only_for_the_picture_and_sees_detail():
    picture = jax.random.uniform(jax.random.key(0), (2, 16, 16, 3), minval=-1.0, maxval=1.0)
    loss = LossConfig(pyramid_levels=2)
    lost = jax.jit(lambda one, other: reconstruction_loss(one, other, loss))
    assert lost(picture, picture) == 0.0
    checks = np.where((np.arange(16)[:, None] + np.arange(16)[None]) % 2 == 0, 0.1, -0.1)[None, :, :, None]
    fine = lost(picture, picture + np.broadcast_to(checks.astype(np.float32), picture.shape))
    flat = lost(picture, picture + 0.1)
    assert fine == pytest.approx(0.1 + 0.01 + 0.1, rel=5e-3)
    assert flat == pytest.approx(0.1 + 0.01, rel=1e-3)


def test_dots_that_are_not_in_the_picture_are_specks_and_edges_are_not():
    picture = np.zeros((1, 16, 16, 3), np.float32)
    picture[:, :, 9:] = 0.5
    picture[:, 4] = 0.7
    assert not prominence(picture)[:, 2:-2, 2:-2].any(), "an edge and a line"
    dotted = picture.copy()
    dotted[:, 10:12, 4:6] = -0.3
    expected = np.zeros_like(picture)
    expected[:, 10:12, 4:6] = 0.3
    np.testing.assert_allclose(prominence(dotted), expected, atol=1e-6)
    loss = LossConfig(pyramid=0.0, pyramid_levels=0, specks=2.0)
    plain = LossConfig(pyramid=0.0, pyramid_levels=0)
    added = reconstruction_loss(picture, dotted, loss) - reconstruction_loss(picture, dotted, plain)
    assert added == pytest.approx(2.0 * expected.mean(), rel=1e-4)
    lost = reconstruction_loss(dotted, picture, loss) - reconstruction_loss(dotted, picture, plain)
    assert lost == pytest.approx(0.0, abs=1e-7), "a dot that is missing is no speck"


def test_errors_in_faint_parts_of_a_picture_cost_more():
    """The left half of a picture has a tenth of the contrast of the right one."""
    noise = np.random.default_rng(0).normal(size=(1, 128, 128, 3)).astype(np.float32)
    picture = 0.3 * noise * np.where(np.arange(128) < 64, 0.1, 1.0)[:, None].astype(np.float32)
    weight = np.asarray(salience(picture, 0.1))
    assert weight.shape == (1, 128, 128, 1) and weight.mean() == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(weight[:, :, :40].mean() / weight[:, :, 88:].mean(), 0.4 / 0.13, rtol=0.02)
    loss = LossConfig(pyramid_levels=0, contrast=0.1)
    left = 0.01 * (np.arange(128) < 64)[:, None].astype(np.float32)
    lost, other = (reconstruction_loss(picture, picture + part, loss) for part in (left, left[::-1]))
    assert lost > 2.5 * other > 0.0


def test_critic_losses():
    assert hinge_loss(jnp.full((1, 2, 2), 2.0), jnp.full((1, 2, 2), -2.0)) == 0.0
    assert hinge_loss(jnp.zeros((1, 2, 2)), jnp.zeros((1, 2, 2))) == 1.0
    critic = PatchDiscriminator(ch=4)
    pictures = jnp.ones((2, 16, 16, 3))
    variables = random_parameters(critic, 0, 0.2, pictures)
    scores, features = jax.jit(critic.apply)(variables, pictures)
    assert scores.shape == (2, 2, 2)
    assert feature_matching(features, features) == 0.0
    deeper = PatchDiscriminator(ch=4, halvings=2)
    (scores, features), _ = jax.eval_shape(deeper.init_with_output, jax.random.key(0), pictures)
    assert [part.shape[1:] for part in features] == [(4, 4, 4), (2, 2, 8), (1, 1, 16), (1, 1, 16)]
    assert scores.shape == (2, 1, 1)


def test_landscapes_are_rendered_once(tmp_path, monkeypatch):
    pictures = rendered_landscapes(tmp_path / "pictures", 3, 4, 16)
    np.testing.assert_array_equal(pictures, render_batch(3, range(4), 16)[0])
    monkeypatch.setattr("train.rendered.render_batch", None)
    np.testing.assert_array_equal(rendered_landscapes(tmp_path / "pictures", 3, 4, 16), pictures)


@pytest.mark.exhaustive
def test_frozen_parts_keep_their_bits():
    config = get_config()
    config.frozen = ("encoder", "quant_conv", "codebook")
    pictures = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), np.uint8)
    start = drawn(config, 7)
    with jax.numpy_dtype_promotion("standard"):
        task = make_task(config, pictures, start)
        state = jax.jit(task.init)(jax.random.key(0))
        jax.tree.map(np.testing.assert_array_equal, state.params, start)
        update = jax.jit(task.update)
        for step in range(3):
            state, _ = update(state, task.batch(step), jax.random.key(step))
    for name in config.frozen:
        jax.tree.map(np.testing.assert_array_equal, state.params[name], start[name])
    left, right = (params["decoder"]["conv_out"]["kernel"] for params in (state.params, start))
    assert not np.array_equal(left, right)


@pytest.mark.slow
def test_a_deeper_decoder_starts_with_the_output_of_the_shallower_one():
    config = get_config()
    config.model.level_attention = True
    tokens, first = np.arange(32, dtype=np.int32).reshape(2, 16), drawn(config)
    model = VQModel(vq_config(config))
    config.model.decoder_blocks += 2
    deeper, begun = VQModel(vq_config(config)), begun_from(first, drawn(config, 1))
    assert len(jax.tree.leaves(begun)) > len(jax.tree.leaves(first))
    before, after = (
        jax.jit(partial(one.apply, method="decode"))({"params": params}, tokens)
        for one, params in ((model, first), (deeper, begun))
    )
    np.testing.assert_array_equal(after, before)
    config.model.decoder_blocks -= 2
    config.model.decoder_ch = 2 * model.config.decoder_width
    with refused(r"start_from.*decoder\..*change --config\.model"):
        begun_from(first, drawn(config))
