"""Captions to features: cleaning, the end token, padding on the left, chunks."""

import jax
import numpy as np
import pytest

from lantern_jax.models.t5 import T5Config, T5Encoder, t5_shapes
from lantern_jax.text import t5
from lantern_jax.text.t5 import CHUNK, END, caption_tokens, encode_captions
from tests.refused import refused
from tests.tiny_checkpoint import random_leaves

CONFIG = T5Config(16, 2, 2, 8, 24, 40, 8, 20)
LENGTH = 12


class Letters:
    """A stand-in for T5's tokenizer: one id per letter."""

    def encode(self, text):
        return [2 + ord(letter) % 30 for letter in text]


@pytest.fixture(scope="module")
def params():
    return random_leaves(t5_shapes(CONFIG), 0, 0.3)


def encode(params, captions, **options):
    """Returns features [n, P, D] and their mask."""
    packed = encode_captions(params, CONFIG, *caption_tokens(Letters(), captions, LENGTH), **options)
    assert len(packed.values) == packed.mask.sum()
    return np.asarray(packed), packed.mask


def test_captions_are_cleaned_cut_and_ended():
    tokens, mask = caption_tokens(Letters(), ["AB <b>", "ab", "a" * 50], LENGTH)
    assert tokens[0].tolist() == [2 + 97 % 30, 2 + 98 % 30, END, *[0] * 9]
    assert (tokens[0] == tokens[1]).all()
    assert mask.sum(axis=1).tolist() == [3, 3, LENGTH]
    assert tokens[2].tolist() == [2 + 97 % 30] * (LENGTH - 1) + [END]


def test_features_are_padded_on_the_left(params, assert_close):
    captions = ["a lake", "x", "a very long caption"]
    features, mask = encode(params, captions)
    apply = jax.jit(T5Encoder(CONFIG).apply)
    assert features.shape == (3, LENGTH, CONFIG.dim) and features.dtype == np.float32 and mask.dtype == bool
    for row, valid, caption in zip(features, mask, captions, strict=True):
        count = min(len(caption) + 1, LENGTH)
        assert valid.tolist() == [False] * (LENGTH - count) + [True] * count
        assert not row[: LENGTH - count].any()
        # In the order of the text, as if it had been encoded without padding.
        ids = np.array([[*Letters().encode(caption)[: LENGTH - 1], END]], np.int32)
        assert_close(row[-count:], apply(params, ids, np.ones(ids.shape, bool))[0])


def test_chunks_change_nothing(params, assert_close, monkeypatch):
    captions = [f"caption {i}" for i in range(5)]
    features, mask = encode(params, captions)
    shapes = []
    inner = t5._encode
    monkeypatch.setattr(t5, "CHUNK", 2)
    monkeypatch.setattr(t5, "_encode", lambda *args: shapes.append(args[3].shape) or inner(*args))
    chunked, chunked_mask = encode(params, captions)
    assert_close(chunked, features, 1e-5)
    np.testing.assert_array_equal(chunked_mask, mask)
    assert shapes == [(2, LENGTH)] * 3 and CHUNK > 2


def test_empty_captions_are_refused(params):
    for captions in (["a", "<b> </b>"], ["~"]):
        with refused("holds no words"):
            encode(params, captions)
