"""Features and drafter training over a mesh: a split target and a split drafter give the numbers of one device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import tiny_drafter, tiny_target
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.devices.partition import device_grid, mesh_of, place, where_on
from lantern_jax.families.registry import family_of
from tests.tiny_checkpoint import random_leaves
from train import drafter, features, sources, target
from train.feature_store import FeatureStore
from train.loop import LoopConfig, restore_latest, run

pytestmark = pytest.mark.slow
SIZES = target.target_config(tiny_target.get_config())
MESH = "data=2,model=2"
PICTURES, SAMPLES = 3, 2


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    params = random_leaves(family_of(SIZES).shapes(SIZES), 0, 0.3)
    folder, made = tmp_path_factory.mktemp("features"), {}
    for name in ("data=1", MESH):
        grid = device_grid(name)
        checkpoint = Checkpoint(
            model="tiny", target_config=SIZES, target_params=place(params, where_on(grid)), vocabulary=LANDSCAPES,
            defaults={"guidance": 2.0},
        )  # fmt: skip
        if name == MESH:
            kernel = checkpoint.target_params["params"]["transformer"]["layer_0"]["qkv"]["kernel"]
            assert kernel.addressable_shards[0].data.nbytes == kernel.nbytes // 2
        rows = np.zeros((PICTURES, 16), np.int16), np.zeros((PICTURES, LANDSCAPES.num_attributes), np.int32)
        given = sources.landscapes(checkpoint, *rows, SAMPLES, seed=0)
        features.extract(checkpoint, given, folder / name, batch_size=4, mesh=mesh_of(grid))
        made[name] = FeatureStore(folder / name)
    return params, made


def test_features_are_those_of_one_device(stores):
    one, several = (store.read(range(PICTURES + SAMPLES)) for store in stores[1].values())
    np.testing.assert_array_equal(one[2], several[2])
    np.testing.assert_allclose(one[0].astype(np.float32), several[0].astype(np.float32), atol=2e-3)


@pytest.mark.usefixtures("optax_promotion")
def test_a_drafter_trains_split_and_continues_on_other_devices(stores, tmp_path):
    params, made = stores
    config = tiny_drafter.get_config()
    config.batch_size, sizes = 4, drafter.drafter_config(config, SIZES)
    head = np.asarray(family_of(SIZES).head(params), np.float32)
    task = drafter.make_task(config, sizes, head, made["data=1"])
    one = run(task, LoopConfig(2, 4), tmp_path / "one", devices="data=1")
    several = run(task, LoopConfig(1, 4), tmp_path / "several", devices=MESH)
    kernel = several.params["transformer"]["layer_0"]["qkv"]["kernel"]
    for leaf in (kernel, several.average["transformer"]["layer_0"]["qkv"]["kernel"]):
        *outer, heads, width = kernel.shape
        assert leaf.addressable_shards[0].data.shape == (*outer, heads // 2, width)
    moments = [leaf for leaf in jax.tree.leaves(several.optimizer) if leaf.shape == kernel.shape]
    assert moments and all(leaf.sharding == kernel.sharding for leaf in moments)
    # The second step runs on other devices than the first.
    both = run(task, LoopConfig(2, 4), tmp_path / "several", devices="data=1,model=2")
    close = partial(np.testing.assert_allclose, atol=1e-4)
    jax.tree.map(close, one.params, both.params)
    assert int(both.step) == 2 and jnp.isfinite(both.params["fc"]["kernel"]).all()
    _, kept = restore_latest(tmp_path / "several", jax.eval_shape(lambda state: state, both))
    jax.tree.map(np.testing.assert_array_equal, kept.params, both.params)
