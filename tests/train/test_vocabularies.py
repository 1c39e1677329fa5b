"""The vocabulary that travels with the data: into token files, labels, prompts and checkpoints."""

import argparse
import dataclasses

import jax
import numpy as np
import pytest

from configs import demo256_classifier, demo256_target, demo256_tokenizer, tiny_target
from lantern_jax.checkpoints.store import save
from lantern_jax.families.registry import family_of
from lantern_jax.text.landscapes import LANDSCAPES as RELEASED
from lantern_jax.text.landscapes import UNSPECIFIED
from tests.refused import refused_each
from tests.tiny_checkpoint import SIDE, tiny_checkpoint
from train import classifier, encode, features, sources, target
from train.painter.scenes import sample_scene
from train.painter.vocabulary import LANDSCAPES as PAINTER
from train.painter.vocabulary import check
from train.vocabularies import VOCABULARIES, name_of, vocabulary_named

FOREIGN = dataclasses.replace(RELEASED, attributes={**RELEASED.attributes, "mood": ("calm", "wild")})


def painter_target():
    """A tiny target of the painter's labels."""
    config = tiny_target.get_config()
    config.model.update(demo256_target.get_config().model)
    config.model.update({"dim": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 64, "grid": 4})
    config.update({"steps": 2, "batch_size": 8, "warmup": 1, "save_every": 2, "log_every": 1})
    return config


def painter_tokens(folder, counts=(16, 16), vocabulary="painter"):
    """Random tokens of the first scenes, as `train.encode` writes them."""
    words = VOCABULARIES[vocabulary].attributes
    for name, count in zip(("train", "validation"), counts, strict=True):
        attributes = classifier.attributes_of(0, count, words)
        tokens = np.random.default_rng(0).integers(64, size=(count, 16)).astype(np.int16)
        encode.write_tokens(folder / f"{name}.npz", tokens, attributes, vocabulary)
    return folder


def test_a_vocabulary_is_known_by_its_attributes():
    assert {name: name_of(words) for name, words in VOCABULARIES.items()} == {
        name: name for name in VOCABULARIES
    }
    assert name_of(dataclasses.replace(PAINTER, words=RELEASED.words, usual={})) == "painter"
    turned = dataclasses.replace(RELEASED, attributes=dict(reversed(RELEASED.attributes.items())))
    refused_each({
        "unknown vocabulary 'fauna': choose one of released, painter": lambda: vocabulary_named("fauna"),
        "the checkpoint's vocabulary is none: expected that of landscapes": lambda: name_of(None),
        "the checkpoint's vocabulary is one of time, terrain, weather, water, mood": lambda: name_of(FOREIGN),
        "the checkpoint's vocabulary is one of water": lambda: name_of(turned),
    })  # fmt: skip


def test_landscapes_are_encoded_in_the_tokenizers_vocabulary(tmp_path):
    checkpoint = tiny_checkpoint()
    vq = checkpoint.tokenizer_config, checkpoint.tokenizer_params["params"]
    tokens, attributes = encode.encode_landscapes(encode.Tokenizer(*vq, 0, SIDE, "painter"), 5, range(3))
    assert tokens.shape == (3, checkpoint.target_config.num_tokens)
    np.testing.assert_array_equal(attributes, classifier.attributes_of(5, 3, PAINTER.attributes))
    encode.write_tokens(tmp_path / "train.npz", tokens, attributes, "painter")
    found = target.read_tokens(tmp_path, "train")
    assert found[2] == "painter"
    np.testing.assert_array_equal(found[1], attributes)
    # As the released demo's files are.
    np.savez(tmp_path / "validation.npz", tokens=tokens, attributes=attributes[:, :4])
    assert target.read_tokens(tmp_path, "validation")[2] == "released"
    encode.write_tokens(tmp_path / "train.npz", tokens, attributes, "fauna")
    refused_each(
        {
            "train.npz cannot be used .unknown vocabulary 'fauna'": lambda: target.read_tokens(
                tmp_path, "train"
            )
        }
    )


def test_a_killed_encoding_goes_on_after_its_last_part(tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "PART", 2)
    checkpoint, calls = tiny_checkpoint(), []
    vq = checkpoint.tokenizer_config, checkpoint.tokenizer_params["params"]
    given, work = (encode.Tokenizer(*vq, 0, SIDE, "painter"), 5, 5), encode.encode_landscapes

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
    for part, expected in zip(found, (*work(*given[:2], range(5)), "painter"), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_tokens_that_anything_else_decided_are_not_gone_on_with(tmp_path, tiny_folder, monkeypatch):
    """Neither where a call was killed nor where one is done."""
    monkeypatch.setattr(encode, "PART", 2)
    trained, work, calls = encode.read_tokenizer(tiny_folder), encode.encode_landscapes, []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return work(*arguments)

    def run(tokenizer=trained, pictures=3, validation=3):
        monkeypatch.setattr(encode, "read_tokenizer", lambda folder: tokenizer)
        counts = f"--pictures={pictures}", f"--validation={validation}"
        encode.main([f"--tokenizer={tiny_folder}", f"--workdir={tmp_path}", *counts])

    other = trained._replace(params=jax.tree.map(lambda leaf: leaf + 1e-3, trained.params))
    others = {
        "tokenizer": lambda: run(other), "seed": lambda: run(trained._replace(seed=7)),
        "side": lambda: run(trained._replace(side=32)), "pictures": lambda: run(pictures=4),
        "vocabulary": lambda: run(trained._replace(vocabulary="painter")), "validation": lambda: run(validation=4),
    }  # fmt: skip
    others = {f"holds work on another {name}: name another --workdir": call for name, call in others.items()}
    monkeypatch.setattr(encode, "encode_landscapes", killed)
    with pytest.raises(KeyboardInterrupt):
        run()
    refused_each(others)
    run()
    run()
    refused_each(others)
    assert len(calls) == 5 and len(target.read_tokens(tmp_path, "train")[0]) == 3


def test_a_checkpoints_tokenizer_is_for_its_own_vocabulary(tmp_path):
    for name, words in (("released", RELEASED), ("painter", PAINTER)):
        labels = words.num_labels, words.num_attributes, tuple(words.null_labels().tolist())
        sizes = dict(zip(("num_labels", "label_slots", "null_labels"), labels, strict=True))
        old = tiny_checkpoint()
        config = dataclasses.replace(old.target_config, **sizes)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), family_of(config).shapes(config))
        changed = {"target_config": config, "target_params": zeros, "vocabulary": words, "drafters": {}}
        save(tmp_path / name, dataclasses.replace(old, **changed))
        assert encode.read_tokenizer(tmp_path / name).vocabulary == name


@pytest.mark.parametrize("words", VOCABULARIES.values(), ids=VOCABULARIES)
def test_random_prompts_are_possible_scenes_with_words_left_out(words):
    labels = sources.random_labels(words, np.random.default_rng(3), 400)
    assert labels.shape == (400, words.num_attributes) and labels.dtype == np.int32
    indices = np.where(labels == words.null_labels(), UNSPECIFIED, labels - words.offsets())
    for row in indices:
        check(words.labels(row))
    np.testing.assert_array_equal(words.label_ids(indices), labels)
    np.testing.assert_allclose(np.mean(indices == UNSPECIFIED), 0.15, atol=0.03)
    for column, values in enumerate(words.attributes.values()):
        assert set(range(len(values))) <= set(indices[:, column].tolist())
    other = sources.random_labels(words, np.random.default_rng(4), 400)
    assert (other != labels).any(axis=1).mean() > 0.9
    whole = sources.random_labels(words, np.random.default_rng(3), 5, drop_one=0)
    assert not (whole == words.null_labels()).any()
    # Not the scenes of a data set's seed, which the target was trained on.
    first = [sample_scene(3, i, words.attributes).indices(words.attributes) for i in range(5)]
    assert (whole != words.label_ids(first)).any()
    refused_each(
        {"vocabulary is one of": lambda: sources.random_labels(FOREIGN, np.random.default_rng(0), 1)}
    )


@pytest.mark.usefixtures("optax_promotion")
def test_a_target_takes_the_vocabulary_of_its_tokens(tmp_path):
    tokens, run = painter_tokens(tmp_path / "tokens"), tmp_path / "run"
    target.train(painter_target(), tokens, run)
    trained = target.read_target(run)
    assert trained.vocabulary == PAINTER
    assert trained.target_config.unconditional_labels == tuple(PAINTER.null_labels().tolist())
    given = trained, *target.read_tokens(tokens, "train")[:2]
    pictures, samples = sources.landscapes(*given, samples=3, seed=0)
    assert pictures.conditioning(np.arange(2)).shape == samples.conditioning(np.arange(2)).shape == (2, 8)
    other = painter_tokens(tmp_path / "other", vocabulary="released")
    options = argparse.Namespace(target=run, tokens=other, pictures=4, samples=2, seed=0)
    refused_each({
        "holds landscapes of the vocabulary released, the target .* takes the painter one": (
            lambda: features.sources_of(options, trained, (), np.float32)
        ),
        "tokens of the vocabulary released have 20 labels of 4 attributes, not 44 of 8; change": (
            lambda: target.train(painter_target(), other, tmp_path / "new")
        ),
        "tokens of the vocabulary painter have 44 labels of 8 attributes, not 20 of 4; change": (
            lambda: target.train(tiny_target.get_config(), tokens, tmp_path / "new")
        ),
    })  # fmt: skip
    assert not (tmp_path / "new").exists()


def test_the_next_demos_sizes_follow_from_one_another():
    vq, model = demo256_tokenizer.get_config(), demo256_target.get_config().model
    assert vq.vocabulary == demo256_classifier.get_config().vocabulary == "painter"
    assert vq.size == demo256_classifier.get_config().size == model.grid * 16
    assert vq.model.codebook_size == model.vocab_size
    assert (model.num_labels, model.label_slots) == (PAINTER.num_labels, PAINTER.num_attributes)
