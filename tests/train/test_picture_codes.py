"""Training a drafter on pictures whose features are computed in every step."""

import json

import jax
import numpy as np
import pytest

from lantern_jax.families.registry import family_of
from tests.command import files
from tests.refused import refused
from tests.train.families import FLOAT32
from train import drafter, target
from train.feature_store import FeatureStore
from train.picture_codes import PictureCodes, pictures_of

pytest.importorskip("torch")


def test_features_are_those_of_a_store(extracted, pictures, tmp_path):
    model, workdir = extracted("c2i")
    checkpoint = target.read_target(model)
    config = checkpoint.target_config
    source = pictures_of(checkpoint, tmp_path, folder=pictures("c2i"))
    codes = PictureCodes(family_of(config).target(config, FLOAT32), source)
    batch = codes.read(np.array([0, 3]))
    made = jax.jit(codes.with_features)(checkpoint.target_params, batch)
    features, prefix, tokens = FeatureStore(workdir).read([0, 3])
    assert len(codes) == 5
    np.testing.assert_allclose(made["features"], features, atol=3e-3)
    np.testing.assert_array_equal(made["prefix"], prefix)
    np.testing.assert_array_equal(made["tokens"], tokens)


@pytest.mark.parametrize("option", ["--pictures=9", "--dtype=bfloat16"])
def test_what_stored_features_fix_is_not_asked_for(option, tmp_path):
    folders = [f"--{name}={tmp_path}" for name in ("target", "features", "workdir")]
    with refused(f"{option.partition('=')[0]} is for --folder and --tokens"):
        drafter.main(["--config=configs/demo_drafter.py", *folders, option])


@pytest.mark.slow
@pytest.mark.usefixtures("optax_promotion")
def test_a_drafter_learns_from_a_folder_without_a_store(converted, pictures, tmp_path):
    drafter.main([
        "--config", "configs/llamagen_c2i_drafter.py:L", "--config.steps=20", "--config.batch_size=4",
        "--config.log_every=5", "--config.save_every=20", "--config.warmup=2", "--config.passes=1",
        "--config.adam_rate=3e-3", "--config.model.num_heads=2", "--config.model.hidden_dim=48", "--target",
        str(converted("c2i")), "--folder", str(pictures("c2i")), "--workdir", str(tmp_path), "--mesh", "data=2",
    ])  # fmt: skip
    losses = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.95 * losses[0]
    assert not any("features" in name for name in files(tmp_path)) and list(tmp_path.glob("codes/*.npy"))
