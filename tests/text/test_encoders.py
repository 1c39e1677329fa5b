"""Prompt encoders: rows on the host, the text encoder read once and kept on request, files of both kinds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.families.llamagen.model import LlamaGenConfig
from lantern_jax.families.llamagen.prompts import CaptionEncoder, LabelEncoder
from lantern_jax.io import errors
from lantern_jax.models.t5 import T5Config, t5_shapes
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.packed import PackedRows
from tests.refused import refused
from tests.tiny_checkpoint import random_leaves

T5 = T5Config(12, 1, 2, 4, 16, 40, 8, 20)
CAPTIONS = LlamaGenConfig(16, 1, 2, vocab_size=8, grid=2, hidden_dim=16, caption_dim=12, caption_length=20)
WORDS = LlamaGenConfig(
    16, 1, 2, vocab_size=8, num_labels=LANDSCAPES.num_labels, label_slots=LANDSCAPES.num_attributes
)

pytestmark = pytest.mark.filterwarnings("ignore::lantern_jax.IgnoredWords")


def words_encoder() -> LabelEncoder:
    null = tuple(LANDSCAPES.null_labels().tolist())
    return LabelEncoder(PromptParts(replace(WORDS, null_labels=null), LANDSCAPES))


class Letters:
    def encode(self, text):
        return [2 + ord(letter) % 30 for letter in text]


@pytest.fixture
def captions():
    """A caption encoder, and the dtypes that its text encoder was read in."""
    params, read = random_leaves(t5_shapes(T5), 0, 0.3), []

    def read_text_encoder(dtype):
        read.append(np.dtype(dtype).name)
        return jax.tree.map(lambda leaf: leaf.astype(dtype), params)

    parts = PromptParts(CAPTIONS, text_encoder=T5, read_text_encoder=read_text_encoder)
    parts.__dict__["tokenizer"] = Letters()
    return CaptionEncoder(parts), read


def test_features_stay_in_their_dtype_without_padding(captions):
    encoder, _ = captions
    prompts = ["a lake", "x", "a very long caption indeed"]
    made = encoder.encode(prompts, jnp.bfloat16)
    assert isinstance(made.features, PackedRows) and made.features.dtype == jnp.bfloat16
    assert made.features.shape == (3, 20, 12) and made.mask.sum(axis=1).tolist() == [7, 2, 20]
    assert made.features.values.nbytes == (7 + 2 + 20) * 12 * 2
    batch = jax.tree.map(lambda leaf: leaf[np.array([2, 0])], made)
    assert batch.features.shape == (2, 20, 12) and not batch.features[1, :13].any()
    again = encoder.from_encoded(encoder.to_encoded(prompts, made))
    np.testing.assert_array_equal(np.asarray(again.features), np.asarray(made.features))


def test_the_text_encoder_is_read_once_per_call_and_once_while_it_is_kept(captions):
    encoder, read = captions
    encoder.encode([f"caption {i}" for i in range(20)])
    assert read == ["float32"]
    with encoder.kept():
        first, second = (encoder.encode(["a lake"]) for _ in range(2))
        encoder.encode(["a lake"], jnp.bfloat16)
        with encoder.kept():
            encoder.encode(["a lake"])
    assert read == ["float32"] * 2 + ["bfloat16"]
    np.testing.assert_array_equal(np.asarray(first.features), np.asarray(second.features))
    encoder.encode(["a lake"])
    assert read == ["float32"] * 2 + ["bfloat16", "float32"], "kept longer than asked"
    for prompt, negative in (("<b>", None), ("a lake", ["<b>"])):
        with pytest.raises(ValueError, match="no words"), encoder.kept():
            encoder.encode([prompt], negative=negative)
    assert len(read) == 4, "read for prompts that cannot be encoded"


def test_labels_are_conditional_rows_with_the_vocabularys_null_labels():
    with pytest.raises(ValueError, match="null_labels None are not the vocabulary's"):
        LabelEncoder(PromptParts(WORDS, LANDSCAPES))
    made = words_encoder().encode(["a foggy forest", "a lake"])
    assert made.shape == (2, LANDSCAPES.num_attributes) and made.dtype == np.int32
    usual = LANDSCAPES.label_ids(LANDSCAPES.completed(LANDSCAPES.parse("a lake")))
    assert made[1].tolist() == usual.tolist()


def test_text_that_is_not_utf8_is_refused(captions):
    """Such as a shell passes on for text in Latin-1: no file could be written with it."""
    half, said = "a lake caf\udce9", r"prompt 'a lake caf\\udce9' is not text in UTF-8: leave out '\\udce9'"
    for encoder in (words_encoder(), captions[0]):
        for prompts in ({"prompts": [half]}, {"prompts": ["a lake"], "negative": [half]}):
            with refused(said):
                encoder.prepare(**prompts)


def test_errors_in_negative_prompts_say_so(captions):
    for encoder in (words_encoder(), captions[0]):
        for prompts, said in (
            (("", "a lake"), "empty prompt"), (("a lake", ""), "negative_prompt: empty prompt"),
            (("a lake", "#"), "negative_prompt: "),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=f"^{said}"):
                encoder.prepare([prompts[0]], negative=[prompts[1]])


def test_what_is_ignored_is_told_of_prompts_and_of_negative_ones(captions):
    long = "a castle by the lake"
    assert captions[0].prepare([long[1:], "x"], negative=["x"])[1] == ()
    _, told = captions[0].prepare([long, "x", long], negative=[long, "fog " * 40])
    assert told == (
        "ignored, after 20 tokens: the end of 'a castle by the lake' (21 tokens)",
        "negative_prompt: ignored, after 20 tokens: the end of 'a castle by the lake' (21 tokens), "
        f"{repr('fog ' * 40)[:50]}... (160 tokens)",
    )
    _, told = words_encoder().prepare(["a lake \U0001f332", "a castle by a lake"], negative=["fog, frog"] * 2)
    names = "'\U0001f332', 'castle'", "'frog' (did you mean fog?)"
    assert told[0] == f"ignored, the model does not know: {names[0]}" and told[1].startswith(
        "negative_prompt: ig"
    )
    assert words_encoder().prepare(["a lake"], negative=["fog"])[1] == ()
    with pytest.warns(errors.IgnoredWords, match="negative_prompt: ignored, after 20 tokens"):
        captions[0].prepare(["x"], negative=[long])
    with refused("^negative_prompt: 'no' before 'fog' is not understood"):
        words_encoder().prepare(["a lake"], negative=["no fog"])


def test_negative_captions_are_encoded_once_each(captions):
    encoder, read = captions
    prompts, negative = ["a lake", "x", "fog"], ["bad", "bad", "worse"]
    made = encoder.encode(prompts, negative=negative)
    alone = encoder.encode(negative)
    assert read == ["float32"] * 2
    with encoder.kept():
        encoder.encode(prompts, negative=negative), encoder.encode(prompts, negative=negative)
    assert len(read) == 3, "read again while it is kept"
    np.testing.assert_array_equal(np.asarray(made.negative), np.asarray(alone.features))
    np.testing.assert_array_equal(made.negative_mask, alone.mask)
    again = encoder.from_encoded(encoder.to_encoded(prompts, made))
    assert jax.tree.map(np.shape, again) == jax.tree.map(np.shape, made)
