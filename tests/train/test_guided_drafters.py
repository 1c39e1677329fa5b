"""Drafters of Janus-Pro and its like: features, training and export on tiny data, and the drafter that comes out."""

import json

import numpy as np
import pytest

import lantern_jax
from configs import emu3_drafter, janus_drafter, liquid_drafter, lumina2_drafter
from lantern_jax.checkpoints.store import save
from lantern_jax.families.registry import FAMILIES
from lantern_jax.models.janus import janus_config
from tests.refused import refused
from tests.train.families import PROMPTS, config_of, families
from train import agreement, drafter, export, target
from train.feature_store import FeatureStore

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

GUIDED = ("janus", "emu3", "liquid", "lumina2")


def only(*few):
    """Returns the guided families as a parameter, exhaustive unless named."""
    cases = [case for case in families(*few).args[1] if case.values[0] in GUIDED]
    return pytest.mark.parametrize("name", cases)


@only("janus")
@pytest.mark.usefixtures("optax_promotion")
def test_a_drafter_is_trained_exported_and_drafts(name, extracted, tmp_path, monkeypatch):
    """The loss falls, the drafter guesses some of the target's tokens, and strict decoding is plain decoding's."""
    model, workdir = extracted(name)
    config, run = config_of(name), tmp_path / "run"
    drafter.train(config, model, workdir, run, mesh="data=2,model=2")
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.9 * losses[0]
    made = export.with_drafters(model, [run])
    checkpoint = target.read_target(model)
    sizes, params = drafter.export(run, checkpoint)
    monkeypatch.setattr(agreement, "BATCH", 4)
    head = drafter.read_head(checkpoint)
    found = agreement.measure(sizes, params, head, FeatureStore(workdir), 2, 2.0)
    assert 0 < found["match"][0] <= 1
    with_drafter = save(tmp_path / "out", made)
    pipeline = lantern_jax.load(with_drafter, mesh="data=1")
    knobs = {"temperature": 4.0, "guidance": 2.0, "seed": 5}
    drafted, plain = (pipeline.generate(PROMPTS, method=method, **knobs) for method in ("gumbel", "ar"))
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    assert drafted.statistics.rounds < plain.statistics.rounds


def test_heads_of_their_own_are_not_started_from_two_layers(extracted, tmp_path):
    model, workdir = extracted("janus")
    config = config_of("janus")
    config.kind = "medusa"
    config.model = {"heads": 2}
    with refused("which has two layers here: give --config.model.shared_head=True"):
        drafter.train(config, model, workdir, tmp_path / "run", mesh="data=1")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("config", "sizes"), [
    (janus_drafter.get_config(), janus_config("7B")), (janus_drafter.get_config("1B"), janus_config("1B")),
    (emu3_drafter.get_config(), FAMILIES["emu3"].config()), (liquid_drafter.get_config(), FAMILIES["liquid"].config()),
    (lumina2_drafter.get_config(), FAMILIES["lumina2"].config()),
])  # fmt: skip
def test_full_sizes(config, sizes):
    made = drafter.drafter_config(config, sizes)
    assert (made.dim, made.vocab_size, made.rotary) == (sizes.dim, sizes.vocab_size, "line")
    assert made.rope_base == sizes.rope_base and made.transformer.head_dim == 128
