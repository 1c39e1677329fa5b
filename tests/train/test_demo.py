"""The one command that retrains the demo: its stages, and all of them on tiny models."""

import importlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.apps.metrics.agreement import read_classifier
from lantern_jax.apps.metrics.landscapes import ATTRIBUTES, LANDSCAPES
from lantern_jax.checkpoints import store
from lantern_jax.io.files import write_file
from lantern_jax.pipeline.pipeline import load
from tests.quick_compilation import QUICK_COMPILATION
from tests.refused import refused, refused_each
from train import demo, evaluate
from train.chains import KINDS
from train.claims import claim
from train.feature_store import FeatureStore, count_shards
from train.painter.landscapes import render_batch
from train.picture_losses import picture_psnr

ROOT = Path(__file__).parents[2]


def flags_of(arguments):
    return [tuple(argument.removeprefix("--").split("=", 1)) for argument in arguments[2:]]


@pytest.mark.parametrize("experiment", demo.EXPERIMENTS)
def test_every_stage_reads_what_an_earlier_one_wrote(experiment, tmp_path):
    written = set()
    for name, arguments in demo.stages(experiment, tmp_path):
        flags = flags_of(arguments)
        assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").is_file()
        for flag, value in flags:
            if flag in ("config", "card"):
                assert (ROOT / value).is_file()
            elif value.startswith(str(tmp_path)) and flag not in ("workdir", "out"):
                assert Path(value).relative_to(tmp_path).parts[0] in written
        assert [value for flag, value in flags if flag in ("workdir", "out")] == [str(tmp_path / name)]
        written.add(name)
    assert {drafter_kind(experiment, name) for name in demo.DRAFTERS} == set(KINDS)


def test_a_given_tokenizer_is_not_trained(tmp_path):
    whole, given = dict(demo.stages("tiny", tmp_path)), dict(demo.stages("tiny", tmp_path, None, Path("old")))
    assert [*given] == [*whole][1:]
    for name in given:
        assert given[name] == [
            word.replace(f"--tokenizer={tmp_path / 'tokenizer'}", "--tokenizer=old") for word in whole[name]
        ]
    assert {name for name in given if given[name] != whole[name]} == {"tokens", "classifier", "export"}


def drafter_kind(experiment, name):
    module = importlib.import_module(f"configs.{experiment}_{name}")
    return module.get_config().get("kind", "eagle")


def test_done_stages_are_skipped_and_seconds_add_up_over_calls(tmp_path, monkeypatch):
    clock, calls = iter(range(0, 1000, 10)), []

    def run(command, **_):
        calls.append(command)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_stage", run)
    monkeypatch.setattr(demo.time, "monotonic", lambda: next(clock))
    with pytest.raises(KeyboardInterrupt):
        demo.train("tiny", tmp_path)
    assert json.loads((tmp_path / "seconds.json").read_text()) == {"tokenizer": 10, "tokens": 10}
    demo.train("tiny", tmp_path)
    taken = dict.fromkeys(demo.STAGES, 10) | {"tokens": 20}
    assert json.loads((tmp_path / "seconds.json").read_text()) == taken
    assert [command[2] for command in calls[2:]] == [
        words[1] for _, words in demo.stages("tiny", tmp_path)[1:]
    ]
    (tmp_path / "seconds.json").write_text("[")
    refused_each({"seconds.json cannot be used": lambda: demo.train("tiny", tmp_path)})


def test_a_stage_that_was_done_with_other_values_is_refused(tmp_path, monkeypatch):
    """Even in a moved folder. Stages that read a redone one run again; one from before such notes is taken as it is."""
    ran = []
    monkeypatch.setattr(demo, "run_stage", lambda command, **_: ran.append(command[2]))
    demo.train("tiny", tmp_path / "old", demo.changes_of(["--eagle3.steps=9", "--eagle3.seed=1"]))
    run = (tmp_path / "old").rename(tmp_path / "run")
    (run / "classifier.done").write_text("")
    ran.clear()

    def trained(*words):
        return lambda: demo.train("tiny", run, demo.changes_of(words))

    same = "--eagle3.seed=1", "--eagle3.steps=9", "--classifier.steps=3"
    trained(*same)()
    assert not ran
    refused_each({
        f"drafter was done without --config.steps=4: give the same, remove {run / 'drafter.done'} to": (
            trained(*same, "--drafter.steps=4")
        ),
        "eagle3 was done with --config.steps=9: give": trained("--eagle3.seed=1", "--eagle3.steps=8"),
        "features was done with --samples=64: give": trained(*same, "--features.samples=9"),
    })  # fmt: skip
    assert not ran
    (run / "drafter.done").unlink()
    trained(*same, "--drafter.steps=4")()
    assert ran == ["train.drafter", "train.tree", "train.export"]


def test_stages_that_read_a_redone_stage_begin_anew(tmp_path, monkeypatch):
    """Once it ends well. Other stages' folders stay, and so do those that the user put there or a link leads to."""
    fails = []

    def run(command, **_):
        flags = dict(flags_of(command[1:]))
        name = Path(flags.get("workdir", flags.get("out"))).name
        if name in fails:
            raise subprocess.CalledProcessError(1, command)
        made = [(tmp_path / part / "made").read_text() for part in demo.STAGES[name][1]]
        if name not in ("trees", "export"):
            claim(tmp_path / name, {"read": " ".join(made)})
        values = [flags.get(value, "") for value in ("pictures", "samples", "config.steps")]
        write_file(tmp_path / name / "made", " ".join([name, *values, *made]), parents=True)

    def trained(*words):
        demo.train("tiny", tmp_path, demo.changes_of(words))
        assert {path.stem for path in tmp_path.glob("*.done")} == {*demo.STAGES}

    monkeypatch.setattr(demo, "run_stage", run)
    write_file(tmp_path / "eagle3" / "given", "", parents=True)
    trained()
    assert (tmp_path / "eagle3" / "given").exists()
    before = {name: (tmp_path / name / "made").read_text() for name in demo.STAGES}
    (tmp_path / "features.done").unlink()
    fails.append("features")
    with pytest.raises(subprocess.CalledProcessError):
        trained("--features.samples=9")
    assert {name: (tmp_path / name / "made").read_text() for name in demo.STAGES} == before
    assert len(list(tmp_path.glob("*.done"))) == len(demo.STAGES) - 1
    fails.clear()
    trained("--features.samples=9")
    changed = {name for name in demo.STAGES if (tmp_path / name / "made").read_text() != before[name]}
    assert changed == {"features", *demo.DRAFTERS, "trees", "export"}
    (tmp_path / "tokens.done").unlink()
    trained("--features.samples=9", "--tokens.pictures=9")

    moved = (tmp_path / "classifier").rename(tmp_path / "elsewhere")
    (tmp_path / "classifier").symlink_to(moved)
    (tmp_path / "tokenizer.done").unlink()
    with refused("classifier holds work on another read"):
        trained("--features.samples=9", "--tokens.pictures=9", "--tokenizer.steps=400")
    assert (moved / "made").exists()


@pytest.mark.slow
def test_the_whole_chain_makes_a_checkpoint_that_draws(tmp_path, monkeypatch):
    # Only for the stages' processes: this one has several devices.
    quick = {
        "XLA_FLAGS": " ".join(QUICK_COMPILATION),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
    }

    # A few pictures, models that compile sooner, and a tokenizer trained some way past its critic's start are enough.
    changes = demo.changes_of([
        "--tokenizer.steps=200", "--tokenizer.model.mid_attention=False", "--tokenizer.loss.pyramid_levels=1",
        "--tokenizer.loss.restart_until=150", "--tokens.pictures=512", "--tokens.validation=16",
        "--target.model.num_layers=1", "--target.steps=240", "--features.taps=0,1", "--drafter.steps=320",
        "--eagle3.model.taps=(0,)", "--eagle3.steps=4",
        "--medusa.steps=4", "--parallel.steps=4", "--classifier.steps=4",
        "--classifier.warmup=1", "--classifier.pictures=32", "--classifier.batch_size=8", "--parallel.passes=2",
    ])  # fmt: skip

    def heard(command, env, **options):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env | quick, **options)
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]

    monkeypatch.setattr(demo, "run_stage", heard)
    demo.train("tiny", tmp_path / "run", changes)
    assert count_shards(tmp_path / "run" / "features") == 2
    assert len(FeatureStore(tmp_path / "run" / "features")) == 128
    lines = (tmp_path / "run" / "drafter" / "metrics.jsonl").read_text().splitlines()
    first, last = (json.loads(line) for line in (lines[0], lines[-1]))
    assert last["loss"] < 0.8 * first["loss"] and last["overlap_1"] > first["overlap_1"] + 0.1

    directory = tmp_path / "run" / "export"
    lantern = load(directory, mesh="data=1")
    assert set(lantern.checkpoint.drafters) == set(KINDS)
    assert lantern.checkpoint.vocabulary == LANDSCAPES
    assert read_classifier(tmp_path / "run" / "classifier" / "demo_classifier.npz").attributes == ATTRIBUTES
    drawn = lantern.generate("a stormy town with boats at dawn", seed=1, compare=True)
    np.testing.assert_array_equal(drawn.tokens, drawn.plain.tokens)
    assert drawn.pictures.shape == (1, 32, 32, 3)
    assert drawn.pictures.std() > 5
    metrics = evaluate.evaluate(store.load(directory), evaluate.BATCH)
    print(metrics, (tmp_path / "run" / "seconds.json").read_text(), first, last)
    # Even tiny models learn: better than the mean colour, than a uniform guess, than an untrained drafter.
    real = render_batch(evaluate.SEED, range(evaluate.BATCH), 32)[0] / np.float32(127.5) - 1
    assert metrics["psnr_db"] > picture_psnr(real, real.mean(axis=(1, 2), keepdims=True))
    assert metrics["nats_a_token"] < 0.8 * np.log(lantern.checkpoint.target_config.vocab_size)
    assert metrics["guidance_3/depth_0/overlap"] > 0.6
