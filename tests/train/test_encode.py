"""Landscapes as tokens: what is encoded, where a killed encoding resumes, and what is trained on it."""

import argparse
from functools import partial

import jax
import numpy as np
import pytest

from configs import demo_classifier, demo_target, demo_tokenizer, tiny_target
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from tests.refused import refused_each
from tests.tiny_checkpoint import SIDE, tiny_checkpoint
from train import classifier, encode, features, loop, target


def small_target():
    """A target that compiles sooner than the tiny one."""
    config = tiny_target.get_config()
    config.model.update({"dim": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 64, "grid": 4})
    config.update({"steps": 2, "batch_size": 8, "warmup": 1, "save_every": 2, "log_every": 1})
    return config


def random_tokens(folder, counts=(16, 16)):
    """Random tokens of the first scenes, as `train.encode` writes them."""
    for name, count in zip(("train", "validation"), counts, strict=True):
        tokens = np.random.default_rng(0).integers(64, size=(count, 16)).astype(np.int16)
        encode.write_tokens(folder / f"{name}.npz", tokens, classifier.attributes_of(0, count))
    return folder


def test_landscapes_are_encoded_with_their_attributes(tmp_path):
    checkpoint = tiny_checkpoint()
    vq = checkpoint.tokenizer_config, checkpoint.tokenizer_params["params"]
    tokens, attributes = encode.encode_landscapes(encode.Tokenizer(*vq, 0, SIDE), 5, range(3))
    assert tokens.shape == (3, checkpoint.target_config.num_tokens)
    np.testing.assert_array_equal(attributes, classifier.attributes_of(5, 3))
    encode.write_tokens(tmp_path / "train.npz", tokens, attributes)
    for part, expected in zip(target.read_tokens(tmp_path, "train"), (tokens, attributes), strict=True):
        np.testing.assert_array_equal(part, expected)
    # With four attributes, as in the first demo.
    encode.write_tokens(tmp_path / "train.npz", tokens, attributes[:, :4])
    refused_each(
        {
            r"train.npz cannot be used .attributes: got shape \(3, 4\)": lambda: target.read_tokens(
                tmp_path, "train"
            )
        }
    )


def test_a_killed_encoding_resumes_after_its_last_part(tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "PART", 2)
    checkpoint, calls = tiny_checkpoint(), []
    vq = checkpoint.tokenizer_config, checkpoint.tokenizer_params["params"]
    given, work = (encode.Tokenizer(*vq, 0, SIDE), 5, 5), encode.encode_landscapes

    def killed(*arguments):
        calls.append(arguments[2])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return work(*arguments)

    monkeypatch.setattr(encode, "encode_landscapes", killed)
    with pytest.raises(KeyboardInterrupt):
        encode.encode_set(*given, tmp_path / "train.npz")
    encode.encode_set(*given, tmp_path / "train.npz")
    assert calls == [range(2), range(2, 4), range(2, 4), range(4, 5)]
    assert [path.name for path in tmp_path.iterdir()] == ["train.npz"]
    found = target.read_tokens(tmp_path, "train")
    for part, expected in zip(found, work(*given[:2], range(5)), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_tokens_of_another_tokenizer_or_other_settings_are_not_continued(tmp_path, tiny_folder, monkeypatch):
    trained = encode.read_tokenizer(tiny_folder)

    def run(tokenizer=trained, pictures=3, validation=3):
        monkeypatch.setattr(encode, "read_tokenizer", lambda folder: tokenizer)
        counts = f"--pictures={pictures}", f"--validation={validation}"
        encode.main([f"--tokenizer={tiny_folder}", f"--workdir={tmp_path}", *counts])

    other = trained._replace(params=jax.tree.map(lambda leaf: leaf + 1e-3, trained.params))
    others = {
        "tokenizer": lambda: run(other), "seed": lambda: run(trained._replace(seed=7)),
        "side": lambda: run(trained._replace(side=32)), "pictures": lambda: run(pictures=4),
        "validation": lambda: run(validation=4),
    }  # fmt: skip
    others = {f"holds work on another {name}: name another --workdir": call for name, call in others.items()}
    run()
    refused_each(others)
    assert len(target.read_tokens(tmp_path, "train")[0]) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("optax_promotion")
def test_a_target_takes_the_labels_of_landscapes(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "run", partial(loop.run, devices=jax.devices()[:1]))
    tokens, run = random_tokens(tmp_path / "tokens"), tmp_path / "run"
    target.train(small_target(), tokens, run)
    trained = target.read_target(run)
    assert trained.vocabulary == LANDSCAPES
    assert trained.target_config.unconditional_labels == tuple(LANDSCAPES.null_labels().tolist())
    options = argparse.Namespace(target=run, tokens=tokens, pictures=4, samples=3, seed=0)
    pictures, samples = features.sources_of(options, trained, (), np.float32)
    assert pictures.conditioning(np.arange(2)).shape == samples.conditioning(np.arange(2)).shape == (2, 8)


def test_the_demos_sizes_fit_together():
    vq, model = demo_tokenizer.get_config(), demo_target.get_config().model
    assert vq.size == demo_classifier.get_config().size == model.grid * 16
    assert vq.model.codebook_size == model.vocab_size
