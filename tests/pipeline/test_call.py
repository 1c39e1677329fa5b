"""A call is settled once: its options, its numbers and its prompts, whatever the model takes."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from lantern_jax.families.llamagen import prompts
from lantern_jax.families.llamagen.prompts import CaptionEncoder, LabelEncoder
from lantern_jax.models.t5 import T5Config
from lantern_jax.pipeline import pipeline as pipelines
from lantern_jax.settings import recipe
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.packed import PackedRows
from tests.tiny_checkpoint import TARGET, altered_pipeline, tiny_pipeline


def counting(calls: Counter, home, name: str):
    function = getattr(home, name)

    def counted(*given, **more):
        calls[name] += 1
        return function(*given, **more)

    return counted


@pytest.fixture
def counted(monkeypatch) -> Counter:
    """How often each function was called, by its name."""
    calls: Counter = Counter()
    for home, name in (
        (recipe.Recipe, "settings"), (recipe, "resolve_settings"), (pipelines, "check_numbers"),
        (LabelEncoder, "encode"),
    ):  # fmt: skip
        monkeypatch.setattr(home, name, counting(calls, home, name))
    return calls


def test_a_call_settles_its_options_and_encodes_its_prompts_once(counted):
    made = tiny_pipeline().generate(["a lake", "fog"], seed=3, method="ar")
    assert len(made.tokens) == 2
    assert counted == {"settings": 1, "resolve_settings": 1, "check_numbers": 1, "encode": 1}


FEATURES = PackedRows(np.zeros((3, 6), np.float32), np.arange(9) >= np.array([[7], [8]]))


class Letters:
    def encode(self, text):
        return [2 + ord(letter) % 30 for letter in text]


def test_captions_are_encoded_once_when_they_are_needed(counted, monkeypatch):
    """A plan checks them, and reads no text encoder."""
    config = dataclasses.replace(TARGET, num_labels=0, null_labels=None, caption_dim=6, caption_length=9)
    pipeline = altered_pipeline(target_config=config, vocabulary=None)
    parts = PromptParts(
        config, text_encoder=T5Config(6, 1, 2, 4, 16, 40, 8, 20), read_text_encoder=lambda dtype: {}
    )
    vars(parts)["tokenizer"] = Letters()
    pipeline._encoder = CaptionEncoder(parts)
    monkeypatch.setattr(
        prompts, "encode_captions", lambda *given, **how: counted.update(["features"]) or FEATURES
    )
    plan = pipeline.plan(["a lake", "fog"], method="jacobi:nodes=4")
    once = {"settings": 1, "resolve_settings": 1, "check_numbers": 1}
    assert counted == once
    assert plan.conditioning.features is plan.conditioning.features is FEATURES
    assert counted == once | {"features": 1}
    with pytest.raises(ValueError, match="no words"):
        pipeline.plan("<b>", method="jacobi:nodes=4")
    assert counted["features"] == 1
