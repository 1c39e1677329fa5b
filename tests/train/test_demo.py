"""The one command that retrains the demo: its stages, and all of them on tiny models."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.checkpoints import store
from lantern_jax.pipeline.pipeline import load
from tests.quick_compilation import QUICK_COMPILATION
from train import demo, evaluate
from train.feature_store import FeatureStore, count_shards

ROOT = Path(__file__).parents[2]


def test_every_stage_reads_what_an_earlier_one_wrote(tmp_path):
    written = set()
    for name, arguments in demo.stages("demo", tmp_path):
        flags = dict(argument.removeprefix("--").split("=", 1) for argument in arguments[2:])
        assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").is_file()
        for flag, value in flags.items():
            if flag == "config":
                assert (ROOT / value).is_file()
            elif value.startswith(str(tmp_path)) and flag not in ("workdir", "out"):
                assert Path(value).relative_to(tmp_path).parts[0] in written
        assert flags.get("workdir", flags.get("out")) == str(tmp_path / name)
        written.add(name)
    with pytest.raises(ValueError, match="unknown experiment 'huge': choose one of demo, tiny"):
        demo.stages("huge", tmp_path)


def test_done_stages_are_skipped_and_a_failed_one_stops(tmp_path, monkeypatch):
    names = [name for name, _ in demo.stages("tiny", tmp_path)]
    ran = []

    def run(command, **_):
        ran.append(command[2])
        if len(ran) == 2:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(demo, "run_stage", run)
    with pytest.raises(subprocess.CalledProcessError):
        demo.train("tiny", tmp_path)
    assert ran == ["train.tokenizer", "train.encode"]
    demo.train("tiny", tmp_path)
    assert ran[2:] == [arguments[1] for _, arguments in demo.stages("tiny", tmp_path)[1:]]
    assert all((tmp_path / f"{name}.done").exists() for name in names)


@pytest.mark.slow
def test_the_whole_chain_makes_a_checkpoint_that_draws(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", " ".join(QUICK_COMPILATION))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    # A few pictures, models that compile sooner, and a tokenizer trained just past its critic's start are enough.
    count = demo.EXPERIMENTS["tiny"] | {"tokens": {"pictures": 128, "validation": 16}}
    monkeypatch.setitem(demo.EXPERIMENTS, "tiny", count)

    shorter_stages = {
        "train.tokenizer": [
            "--config.steps=110", "--config.model.mid_attention=False", "--config.loss.pyramid_levels=1",
        ],
        "train.target": ["--config.model.num_layers=1"],
    }  # fmt: skip

    def shorter(command, **options):
        more = shorter_stages.get(command[2], [])
        ran = subprocess.run([*command, *more], capture_output=True, text=True, timeout=900, **options)
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]

    monkeypatch.setattr(demo, "run_stage", shorter)
    demo.train("tiny", tmp_path / "run")
    assert count_shards(tmp_path / "run" / "features") == 2
    assert len(FeatureStore(tmp_path / "run" / "features")) == 128
    lines = (tmp_path / "run" / "drafter" / "metrics.jsonl").read_text().splitlines()
    first, last = (json.loads(line) for line in (lines[0], lines[-1]))
    assert last["loss"] < 0.8 * first["loss"] and last["overlap_1"] > first["overlap_1"] + 0.1

    directory = tmp_path / "run" / "export"
    lantern = load(directory, mesh="data=1")
    drawn = lantern.generate("a foggy forest at dawn", seed=1, compare=True)
    np.testing.assert_array_equal(drawn.tokens, drawn.plain.tokens)
    assert drawn.pictures.shape == (1, 32, 32, 3)
    assert drawn.pictures.std() > 5
    metrics = evaluate.evaluate(store.load(directory), evaluate.BATCH)
    # Even tiny models learn: better than the mean colour, than a uniform guess, than an untrained drafter.
    assert metrics["psnr_db"] > 17
    assert metrics["nats_a_token"] < 0.8 * np.log(lantern.checkpoint.target_config.vocab_size)
    assert metrics["guidance_2/depth_0/overlap"] > 0.6
