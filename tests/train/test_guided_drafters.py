"""Drafters of Janus-Pro and similar families: features, training and export on tiny data, and the resulting drafter."""

import json

import jax
import numpy as np
import pytest

from configs import emu3_drafter, janus_drafter, liquid_drafter, lumina2_drafter
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.families.janus.model import janus_config
from lantern_jax.families.registry import FAMILIES
from lantern_jax.pipeline.pipeline import Pipeline
from tests.fixtures.guided_layouts import TINY_JANUS
from tests.refused import refused
from tests.train.families import PROMPTS, config_of
from train import agreement, drafter, export, target
from train.feature_store import FeatureStore

pytest.importorskip("torch")
pytest.importorskip("tokenizers")


@pytest.mark.slow
@pytest.mark.usefixtures("optax_promotion")
def test_a_drafter_is_trained_exported_and_drafts(extracted, tmp_path, monkeypatch):
    """The loss falls, the drafter guesses some target tokens, and strict decoding gives the target's own samples."""
    model, workdir = extracted("janus")
    config, run = config_of("janus"), tmp_path / "run"
    config.passes = 1
    drafter.train(config, model, workdir, run, mesh="data=2")
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.9 * losses[0]
    made = export.with_drafters(model, [run])
    checkpoint = target.read_target(model)
    sizes, params = drafter.export(run, checkpoint)
    monkeypatch.setattr(agreement, "BATCH", 4)
    head = drafter.read_head(checkpoint)
    free = drafter.free_positions(checkpoint.target_config)
    found = agreement.measure(sizes, params, head, FeatureStore(workdir), 1, 2.0, free)
    assert 0 < found["match"][0] <= 1
    pipeline = Pipeline(made, devices=jax.devices()[:1])
    record, both = pipeline.recipe.target(), {"drafter": made.drafters["eagle"][1], "head": head}
    settings = pipeline.settings({"method": "gumbel:tree=0.0+1"})
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(1), row))(np.arange(2))
    drafted = speculative_decode(
        record, made.target_params, pipeline._encoder.encode(PROMPTS, np.float32), keys,
        drafting=pipeline.recipe.job(settings).program.drafting, drafting_params=both,
        guidance=np.full(2, settings.guidance, np.float32), sampling=settings.sampling(),
    )  # fmt: skip
    # After the features of five pictures come those of samples, which were decoded plainly.
    np.testing.assert_array_equal(drafted.tokens, FeatureStore(workdir).read([5, 6])[2])
    assert drafted.rounds.sum() < 2 * (np.sum(record.forced < 0) - 1)


def test_own_heads_cannot_start_from_a_target_head_of_two_layers():
    config = config_of("janus")
    config.kind = "medusa"
    config.model = {"heads": 2}
    with refused("which has two layers here: give --config.model.shared_head=True"):
        sizes = drafter.drafter_config(config, TINY_JANUS)
        drafter.start_modules(config, sizes, FAMILIES["janus"].shapes(TINY_JANUS))


@pytest.mark.parametrize(("config", "sizes"), [
    (janus_drafter.get_config(), janus_config("7B")), (janus_drafter.get_config("1B"), janus_config("1B")),
    (emu3_drafter.get_config(), FAMILIES["emu3"].config()), (liquid_drafter.get_config(), FAMILIES["liquid"].config()),
    (lumina2_drafter.get_config(), FAMILIES["lumina2"].config()),
])  # fmt: skip
def test_full_size_drafters_have_the_sizes_of_their_target(config, sizes):
    made = drafter.drafter_config(config, sizes)
    assert (made.dim, made.vocab_size, made.rotary) == (sizes.dim, sizes.vocab_size, "line")
    assert made.rope_base == sizes.rope_base and made.transformer.head_dim == 128
