"""A call checks its prompts when it is settled and encodes captions once, when it needs them."""

import dataclasses

import numpy as np
import pytest

from lantern_jax.families.llamagen import prompts
from lantern_jax.families.llamagen.prompts import CaptionEncoder
from lantern_jax.models.t5 import T5Config
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.packed import PackedRows
from tests.tiny_checkpoint import TARGET, altered_pipeline

FEATURES = PackedRows(np.zeros((3, 6), np.float32), np.arange(9) >= np.array([[7], [8]]))


class Letters:
    def encode(self, text):
        return [2 + ord(letter) % 30 for letter in text]


def test_captions_are_encoded_once_when_they_are_needed(monkeypatch):
    """A plan checks them, and reads no text encoder."""
    config = dataclasses.replace(TARGET, num_labels=0, null_labels=None, caption_dim=6, caption_length=9)
    pipeline, encoded = altered_pipeline(target_config=config, vocabulary=None), []
    parts = PromptParts(
        config, text_encoder=T5Config(6, 1, 2, 4, 16, 40, 8, 20), read_text_encoder=lambda dtype: {}
    )
    vars(parts)["tokenizer"] = Letters()
    pipeline._encoder = CaptionEncoder(parts)
    monkeypatch.setattr(prompts, "encode_captions", lambda *given, **how: encoded.append(given) or FEATURES)
    plan = pipeline.plan(["a lake", "fog"], method="jacobi:nodes=4")
    assert not encoded
    assert plan.conditioning.features is plan.conditioning.features is FEATURES
    assert len(encoded) == 1
    with pytest.raises(ValueError, match="no words"):
        pipeline.plan("<b>", method="jacobi:nodes=4")
