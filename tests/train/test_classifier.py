"""The training of the demo's classifier: what it sees, what it is told, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.demo_classifier import get_config
from lantern_jax.apps.metrics.agreement import (
    Classifier,
    DemoClassifier,
    classifier_arrays,
    read_classifier,
    shipped_classifier,
    value_counts,
)
from lantern_jax.apps.metrics.landscapes import ATTRIBUTES
from tests.refused import refused_each
from tests.tiny_checkpoint import SIDE
from train import classifier, encode


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


def test_the_loss_is_the_mean_over_all_attributes():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(5, 16)).astype(np.float32)
    attributes = generator.integers(4, size=(5, 4)).astype(np.int32)
    attributes[:3] = scores[:3].reshape(3, -1, 4).argmax(-1)
    loss, right = classifier.loss_and_right(jnp.asarray(scores), jnp.asarray(attributes), (4, 4, 4, 4))
    parts = scores.reshape(5, 4, 4).astype(np.float64)
    wanted = np.take_along_axis(parts, attributes[..., None], -1)[..., 0]
    assert loss == pytest.approx(np.mean(np.log(np.exp(parts).sum(-1)) - wanted), rel=1e-5)
    np.testing.assert_allclose(right, (parts.argmax(-1) == attributes).mean(0), rtol=1e-6)


def test_a_file_says_what_its_classifier_reads(tmp_path):
    shape = jax.eval_shape(
        DemoClassifier(value_counts(ATTRIBUTES)).init, jax.random.key(0), jnp.zeros((1, 32, 32, 3))
    )["params"]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shape)
    arrays, path = classifier_arrays(Classifier(params, ATTRIBUTES, 32)), tmp_path / "classifier.npz"
    np.savez(path, **arrays)
    read = read_classifier(path)
    assert (read.attributes, read.side, sum(read.model.counts)) == (ATTRIBUTES, 32, 36)
    pictures = np.zeros((classifier.CHUNK, 32, 32, 3), np.uint8)
    told = classifier.accuracy(read, pictures, np.zeros((classifier.CHUNK, 8), np.int32))
    assert told == dict.fromkeys(ATTRIBUTES, 1.0), "even scores take the first value"
    assert shipped_classifier().attributes == ATTRIBUTES and shipped_classifier().side == 256

    def refused_with(reads):
        np.savez(path, **arrays | {"reads": reads})
        read_classifier(path)

    text = str(arrays["reads"])
    for reads in (np.ones(3), np.array("{"), np.array("[3]"), np.array("{}"), np.array(text.replace("32", "48")),
                  np.array(text.replace('"noon", ', "")), np.array(text.replace('"side"', '"edge"'))):  # fmt: skip
        refused_each({"is not the demo's classifier": lambda reads=reads: refused_with(reads)})


def test_pictures_are_reconstructed_once_and_whole(tmp_path, tiny_folder, monkeypatch):
    pictures = np.random.default_rng(0).integers(256, size=(5, SIDE, SIDE, 3), dtype=np.uint8)
    given = tmp_path / "rebuilt.npy", pictures, encode.read_tokenizer(tiny_folder)
    made = classifier.reconstructed(*given)
    assert made.shape == pictures.shape and made.dtype == np.uint8 and not np.array_equal(made, pictures)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["rebuilt.npy"]
    monkeypatch.setattr(classifier, "reconstruct", None)
    again = classifier.reconstructed(*given)
    np.testing.assert_array_equal(again, made)


@pytest.mark.exhaustive
def test_it_learns(optax_promotion):
    config = get_config()
    config.update({"batch_size": 8, "warmup": 2, "steps": 12})
    attributes = np.random.default_rng(0).integers(2, size=(64, len(ATTRIBUTES))).astype(np.int32)
    colours = (attributes[:, :3] * 200).astype(np.uint8)
    pictures = np.broadcast_to(colours[:, None, None], (64, 32, 32, 3))
    task = classifier.make_task(config, pictures, pictures, attributes)
    state, update, losses = jax.jit(task.init)(jax.random.key(0)), jax.jit(task.update), []
    for step in range(12):
        state, metrics = update(state, task.batch(step), jax.random.key(step))
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    assert set(ATTRIBUTES) <= metrics.keys()
