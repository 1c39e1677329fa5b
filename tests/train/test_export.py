"""Drafters of several runs go into one checkpoint, one per kind."""

import dataclasses

import jax
import ml_collections
import numpy as np
import pytest

from lantern_jax.checkpoints.checkpoint import TOKENS_PER_PASS
from lantern_jax.checkpoints.store import load, save
from lantern_jax.drafters.medusa import MedusaConfig, medusa_shapes
from tests.refused import refused
from tests.tiny_checkpoint import CODES, DRAFTER, SIDE, TARGET, VQ, nearest, tiny_checkpoint
from train import export
from train.encode import Tokenizer

MEDUSA = MedusaConfig(TARGET.dim, CODES, CODES, heads=2)


@pytest.fixture
def runs(monkeypatch):
    heads = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), medusa_shapes(MEDUSA)["params"])
    eagle = jax.tree.map(lambda leaf: 2 * leaf, tiny_checkpoint().drafters["eagle"][1]["params"])
    made = {"eagle": (DRAFTER, eagle), "heads": (MEDUSA, heads), "more heads": (MEDUSA, heads)}
    monkeypatch.setattr(export.drafter, "export", lambda folder, checkpoint: made[folder])
    monkeypatch.setattr(export, "read_config", lambda folder: ml_collections.ConfigDict({"steps": 3}))
    return made


def test_a_drafter_replaces_the_one_of_its_kind(runs, tmp_path):
    old = save(tmp_path / "old", tiny_checkpoint(), dtype="float16")
    checkpoint = export.with_drafters(old, ["heads"])
    assert list(checkpoint.drafters) == ["eagle", "medusa"]
    np.testing.assert_array_equal(
        checkpoint.drafters["eagle"][1]["params"]["fc"]["kernel"],
        load(old, None).drafters["eagle"][1]["params"]["fc"]["kernel"],
    )
    new = save(tmp_path / "new", checkpoint)
    back = export.with_drafters(new, ["eagle", "heads"])
    kernel = back.drafters["eagle"][1]["params"]["fc"]["kernel"]
    np.testing.assert_array_equal(kernel, runs["eagle"][1]["fc"]["kernel"].astype(np.float16))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(back.drafters["medusa"][1])} == {"float16"}
    assert back.metadata["drafters"] == {"eagle": {"steps": 3}, "medusa": {"steps": 3}}


def test_what_was_measured_with_a_drafter_is_dropped_with_it(runs, tmp_path):
    """The first kind leads windows: none of these measurements were made with heads beside it."""
    fitted = {"sharpness": 1.41, "mixture": [0.5, 0.5] * 4}
    tokens = {"jacobi:nodes=16": 2.289, "led:nodes=16,refine=3": 2.048}
    made = tiny_checkpoint()
    made = dataclasses.replace(
        made, defaults=made.defaults | fitted, metadata=made.metadata | {TOKENS_PER_PASS: tokens}
    )
    old = save(tmp_path / "old", made, dtype="float16")
    kept, replaced = (export.with_drafters(old, [name]) for name in ("heads", "eagle"))
    assert kept.defaults == made.defaults and kept.metadata[TOKENS_PER_PASS] == tokens
    assert replaced.defaults == tiny_checkpoint().defaults
    assert replaced.metadata[TOKENS_PER_PASS] == {"jacobi:nodes=16": 2.289}


def test_each_kind_has_one_drafter(runs):
    with pytest.raises(ValueError, match="more heads is a second drafter of the kind medusa"):
        export.read_drafters(["heads", "more heads"], tiny_checkpoint())


def test_a_code_of_zeros_has_neighbours(monkeypatch):
    """As `lantern convert` finds them for such a codebook."""
    checkpoint, params = tiny_checkpoint(), dict(tiny_checkpoint().tokenizer_params["params"])
    params["codebook"] = params["codebook"].copy()
    params["codebook"][3] = 0
    monkeypatch.setattr(export, "read_tokenizer", lambda folder: Tokenizer(VQ, params, 0, SIDE))
    monkeypatch.setattr(export.target, "read_target", lambda folder: checkpoint)
    found = export.build("tokenizer", "target", [], model="m", defaults={}, metadata={}).codebook
    codes = params["codebook"]
    codes = codes / np.maximum(np.linalg.norm(codes, axis=-1, keepdims=True), 1e-12)
    np.testing.assert_allclose(found.codes, codes, rtol=1e-6)
    # All others are as far from it as they are long, 1 up to rounding.
    assert sorted(found.neighbours[3].tolist()) == [*range(3), *range(4, CODES)]
    others = np.delete(np.arange(CODES), 3)
    np.testing.assert_array_equal(found.neighbours[others], nearest(codes, CODES - 1)[others])


def test_exporting_a_checkpoint_with_fit_is_refused(runs, tmp_path):
    old = save(tmp_path / "old", tiny_checkpoint(), dtype="float16")
    words = [f"--checkpoint={old}", f"--drafter={tmp_path}", "--fit=4", f"--out={tmp_path / 'new'}"]
    with refused("--fit is not for --checkpoint.*train.fit"):
        export.main(words)
    assert not (tmp_path / "new").exists()
