"""Agreement of drafters on stored features: the printed numbers are those that the losses measure."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from lantern_jax.apps.metrics.agreement import Classifier, DemoClassifier, shipped_classifier, value_counts
from lantern_jax.apps.metrics.landscapes import ATTRIBUTES
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.pipeline.pipeline import Pipeline
from tests.cases import exhaustive
from tests.command import must_not_run
from tests.refused import refused, refused_each
from tests.tiny_checkpoint import SIDE, tiny_checkpoint
from train import agreement, chains, classifier, drafter, evaluate, features, target
from train.claims import claim
from train.feature_store import FeatureStore, write_shard
from train.loop import write_config
from train.losses import match_chance
from train.painter.landscapes import render_batch

from . import test_kinds as kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle3", exhaustive("parallel")])
def test_a_chains_length_follows_from_the_products_of_its_match_chances(name, tmp_path, monkeypatch):
    """Only sampled tokens count: forced ones are always accepted in a chain, and are left out of the match."""
    monkeypatch.setattr(agreement, "BATCH", 2)
    sizes, params = kinds.sizes_and_params(name)
    _, tokens, stored, prefix = kinds.examples()
    parts = (np.swapaxes(np.asarray(part), 0, 1) for part in (stored, prefix))
    write_shard(tmp_path, 0, *parts, np.asarray(tokens))
    head = np.asarray(kinds.target_params()["head"]["kernel"])
    free = np.arange(kinds.SIZES.num_tokens) % 5 != 4
    found = agreement.measure(sizes, params, head, FeatureStore(tmp_path), kinds.DEPTHS, 2.0, free)

    twice = np.broadcast_to(tokens[None], (2, *tokens.shape))
    stored = np.asarray(stored, np.float16).astype(np.float32)[..., -chains.inputs_width(sizes) :]
    _, wanted = chains.drafter_inputs(stored, prefix, twice)
    made = kinds.chain(sizes, params, stored, prefix, tokens)
    true = apply_guidance(wanted[..., -head.shape[0] :] @ head, np.full(kinds.BATCH, 2.0, np.float32))
    scale = np.full(kinds.BATCH, 2.0, np.float32)
    guided = [apply_guidance(np.asarray(predicted.logits), scale) for predicted in made]
    pairs = [(one, true[:, predicted.where]) for one, predicted in zip(guided, made, strict=True)]
    chances = jax.jit(lambda pairs: [match_chance(*pair) for pair in pairs])(pairs)
    # Drafter position FIRST + i predicts token i + 1.
    counts = [free[1 + np.asarray(predicted.where) - kinds.FIRST] for predicted in made]
    assert not all(np.all(each) for each in counts)
    pairs = list(zip(chances, counts, strict=True))
    np.testing.assert_allclose(
        found["match"], [np.mean(chance[:, each]) for chance, each in pairs], atol=1e-3
    )
    # Only roots whose whole chain lies in the picture: they come first at every depth.
    along = np.stack([np.where(each, chance, 1)[:, : chances[-1].shape[1]] for chance, each in pairs])
    expected = 1 + np.cumprod(along, axis=0).mean(axis=(1, 2)).cumsum()
    np.testing.assert_allclose(found["chain"], expected, atol=1e-3)
    assert jax.tree.all(jax.tree.map(lambda value: value >= 0, found))


def test_features_of_other_layers_or_of_another_target_are_refused(tmp_path, monkeypatch):
    """The number of layers is the same: only the note in the features' folder tells which they are."""
    sizes, params = kinds.sizes_and_params("eagle3")
    trained = Checkpoint(
        model="tiny", target_config=kinds.SIZES, target_params={"params": kinds.target_params()},
        drafters={"eagle3": (sizes, {"params": params})},
    )  # fmt: skip
    monkeypatch.setattr(target, "read_target", lambda *_, **__: trained)
    shapes = (8, 2, 19, 3 * kinds.SIZES.dim), (8, 2, 4), (8, 16)
    write_shard(tmp_path, 0, *(np.zeros(shape, np.float32) for shape in shapes))
    made = features.target_claims(kinds.SIZES, trained.target_params, np.float32)
    claim(tmp_path, made | {"taps": "(1, 0, 2)"})

    def trains():
        drafter.train(kinds.config_of("eagle3"), "the target", tmp_path, tmp_path / "run")

    def measures():
        agreement.main(["--target", str(tmp_path), "--features", str(tmp_path)])

    why = "reads layers 0, 1, 2, the features are of 1, 0, 2: extract others, with --taps=0,1,2"
    refused_each({f"this drafter {why}": trains, f", eagle3 {why}": measures})
    for stored in ((0, 1, 2), (1, 0, 1, 2)):
        chains.check_layers(sizes, stored, "this drafter")
    chains.check_layers(kinds.sizes_and_params("medusa")[0], (2,), "these heads")
    trained = dataclasses.replace(
        trained, target_params=jax.tree.map(lambda leaf: leaf + 1, trained.target_params)
    )
    refused_each({"holds features of another target than the target": trains})
    refused_each({f"holds features of another target than {tmp_path}": measures})
    assert not (tmp_path / "run").exists()


def test_a_run_is_tied_to_its_features_and_its_target(tmp_path, monkeypatch):
    """A run from before such notes gets them, and a target exported in half precision counts as the same target."""
    trained = Checkpoint(
        model="tiny", target_config=kinds.SIZES, target_params={"params": kinds.target_params()}
    )
    half = jax.tree.map(lambda leaf: leaf.astype(np.float16), trained.target_params)
    exported = dataclasses.replace(trained, target_params=half)
    other = dataclasses.replace(trained, target_params=jax.tree.map(lambda leaf: leaf + 1, half))
    monkeypatch.setattr(target, "read_target", lambda *_, **__: trained)
    monkeypatch.setattr(drafter, "run", lambda *_, **__: None)
    monkeypatch.setattr(drafter, "restore_parameters", lambda *_: {})
    shapes = (8, 2, 19, kinds.SIZES.dim), (8, 2, 4), (8, 16)
    made = features.target_claims(kinds.SIZES, trained.target_params, np.float32)
    for name in ("a", "b"):
        write_shard(tmp_path / name, 0, *(np.zeros(shape, np.float32) for shape in shapes))
        claim(tmp_path / name, made | {"pictures": name})

    def trains(name, **changes):
        config = kinds.config_of("eagle", **changes)
        drafter.train(config, "the target", tmp_path / name, tmp_path / "run", "data=1")

    write_config(kinds.config_of("eagle"), tmp_path / "run")
    drafter.export(tmp_path / "run", other)
    for _ in range(2):
        trains("a")
    drafter.export(tmp_path / "run", exported)
    refused_each({
        "run holds work on another pictures: name another --workdir": lambda: trains("b"),
        "run holds a drafter for a target of other weights": lambda: drafter.export(tmp_path / "run", other),
        "unknown part in --config.frozen 'tokenz'": lambda: trains("a", frozen=("tokenz",)),
    })  # fmt: skip


@pytest.mark.slow
def test_a_checkpoint_of_landscapes_is_measured(monkeypatch):
    monkeypatch.setattr(evaluate, "DEPTHS", 2)
    found = evaluate.evaluate(tiny_checkpoint(), evaluate.BATCH)
    assert found["pictures"] == evaluate.BATCH and found["psnr_db"] > 0
    assert min(found["nats_a_token"], found["guidance_1/target_entropy"]) > 0
    shares = [value for name, value in found.items() if name.endswith(("top1", "overlap"))]
    assert len(shares) == 2 * (2 * evaluate.DEPTHS + 1) and all(0 <= share <= 1 for share in shares)


def test_a_checkpoint_without_a_drafter_is_refused_before_any_work(monkeypatch):
    bare = dataclasses.replace(tiny_checkpoint(), drafters={})
    monkeypatch.setattr(evaluate, "load", lambda directory: bare)
    for name in ("render_batch", "told"):
        monkeypatch.setattr(evaluate, name, must_not_run)
    for call in (lambda: evaluate.main([]), lambda: evaluate.evaluate(bare, evaluate.BATCH)):
        with refused("expected a tokenizer and a drafter"):
            call()


@pytest.mark.slow
def test_a_classifier_tells_how_often_pictures_show_what_was_asked_for(monkeypatch):
    """A classifier that always answers with the first values is right as often as those were asked for."""
    monkeypatch.setattr(evaluate, "CHUNK", 8)
    monkeypatch.setattr(classifier, "CHUNK", 8)
    # Plain decoding on one device compiles sooner.
    monkeypatch.setattr(evaluate, "Pipeline", partial(Pipeline, devices=jax.devices()[:1]))
    checkpoint = dataclasses.replace(tiny_checkpoint(), defaults={"method": "ar"})
    counts = value_counts(ATTRIBUTES)
    model, example = DemoClassifier(counts), np.zeros((1, SIDE, SIDE, 3), np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), example)["params"]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    params["values"]["bias"] = -np.concatenate([np.arange(count, dtype=np.float32) for count in counts])
    shares = evaluate.told(checkpoint, Classifier(params, ATTRIBUTES, SIDE), 17)
    scenes = render_batch(evaluate.SEED, range(16), SIDE)[1]
    wanted = dict(zip(ATTRIBUTES, (scenes == 0).mean(axis=0), strict=True))
    sets = ("painted", "rebuilt", "generated")
    assert [shares[name].pop("frechet") for name in sets] == [0.0, 0.0, 0.0], "it sees nothing anywhere"
    assert shares == dict.fromkeys(sets, wanted) and any(wanted.values())
    with refused("the classifier tells time, .* of 256 pixels: expected"):
        evaluate.told(checkpoint, shipped_classifier(), 16)
