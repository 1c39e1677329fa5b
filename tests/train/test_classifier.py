"""The training of the demo's classifier: what it sees, what it is told, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.demo_classifier import get_config
from lantern_jax.text.landscapes import ATTRIBUTES
from tests.tiny_checkpoint import SIDE
from train import classifier


def test_pictures_are_mirrored_and_moved_within_bounds():
    pictures = np.arange(64 * 64, dtype=np.uint16).astype(np.uint8).reshape(1, 64, 64, 1).repeat(200, 0)
    pictures = np.concatenate([pictures, np.roll(pictures, 7, axis=1), pictures // 2], axis=-1)
    made = classifier.moved(pictures, 2, np.random.default_rng(0))
    assert made.shape == pictures.shape and made.dtype == np.uint8
    padded = np.pad(pictures[0], ((2, 2), (2, 2), (0, 0)), mode="edge")
    places = [padded[i : i + 64, j : j + 64] for i in range(5) for j in range(5)]
    known = {place[:, ::step].tobytes() for place in places for step in (1, -1)}
    assert {picture.tobytes() for picture in made} <= known
    assert len({picture.tobytes() for picture in made}) > 40
    again = classifier.moved(pictures, 2, np.random.default_rng(0))
    np.testing.assert_array_equal(made, again)


def test_the_loss_is_that_of_every_attribute():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(5, 16)).astype(np.float32)
    attributes = generator.integers(4, size=(5, len(ATTRIBUTES))).astype(np.int32)
    attributes[:3] = scores[:3].reshape(3, -1, 4).argmax(-1)
    loss, right = classifier.loss_and_right(jnp.asarray(scores), jnp.asarray(attributes), (4, 4, 4, 4))
    parts = scores.reshape(5, len(ATTRIBUTES), 4).astype(np.float64)
    wanted = np.take_along_axis(parts, attributes[..., None], -1)[..., 0]
    assert loss == pytest.approx(np.mean(np.log(np.exp(parts).sum(-1)) - wanted), rel=1e-5)
    np.testing.assert_allclose(right, (parts.argmax(-1) == attributes).mean(0), rtol=1e-6)


def test_pictures_are_reconstructed_once_and_whole(tmp_path, tiny_folder, monkeypatch):
    pictures = np.random.default_rng(0).integers(256, size=(5, SIDE, SIDE, 3), dtype=np.uint8)
    made = classifier.reconstructed(tmp_path / "rebuilt.npy", pictures, str(tiny_folder))
    assert made.shape == pictures.shape and made.dtype == np.uint8 and not np.array_equal(made, pictures)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["rebuilt.npy"]
    monkeypatch.setattr(classifier, "read_tokenizer", None)
    again = classifier.reconstructed(tmp_path / "rebuilt.npy", pictures, str(tiny_folder))
    np.testing.assert_array_equal(again, made)


def test_it_learns(optax_promotion):
    config = get_config()
    config.update({"batch_size": 8, "warmup": 2, "steps": 20})
    attributes = np.random.default_rng(0).integers(4, size=(64, 4)).astype(np.int32)
    colours = (attributes[:, :3] * 80).astype(np.uint8)
    pictures = np.broadcast_to(colours[:, None, None], (64, 32, 32, 3))
    task = classifier.make_task(config, pictures, pictures, attributes)
    state, update, losses = jax.jit(task.init)(jax.random.key(0)), jax.jit(task.update), []
    for step in range(20):
        state, metrics = update(state, task.batch(step), jax.random.key(step))
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    assert set(ATTRIBUTES) <= metrics.keys()
