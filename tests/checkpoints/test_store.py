"""Checkpoint directories: round trips, sizes, and a one-line error for everything that can be wrong with one."""

import dataclasses
import json
import shutil
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from lantern_jax.apps.commands.report import describe
from lantern_jax.checkpoints import arrays, store
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import demo_directory, load, load_drafter, load_shapes, save
from lantern_jax.devices.partition import sharding_at, where_on
from lantern_jax.devices.platform import DTYPES
from lantern_jax.engine.parameters import read_parameters
from lantern_jax.io.errors import LanternError
from lantern_jax.tensors.safetensors_files import open_safetensors
from tests.refused import refused
from tests.tiny_checkpoint import DRAFTER, TARGET, VQ, tiny_checkpoint


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def eagle(checkpoint):
    return checkpoint.drafters["eagle"][1]


def test_round_trip(tiny_folder):
    ours, back = tiny_checkpoint(), load(tiny_folder)
    for field in dataclasses.fields(Checkpoint):
        if field.name == "directory":
            continue
        value = getattr(back, field.name)
        if field.name == "drafters":
            assert {kind: config for kind, (config, _) in value.items()} == {"eagle": DRAFTER}
        elif field.name.endswith("_params") or field.name == "codebook":
            same(value, getattr(ours, field.name))
            assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(value))
        else:
            assert value == getattr(ours, field.name), field.name
    assert back.codebook.neighbours.dtype == np.int32
    same(eagle(back), eagle(ours))


def dtypes(tree) -> set[str]:
    return {leaf.dtype.name for leaf in jax.tree.leaves(tree)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_stored_and_loaded_dtypes(dtype, tmp_path):
    ours = tiny_checkpoint()
    directory = save(tmp_path / dtype, ours, dtype=dtype)
    assert len(list(directory.iterdir())) == 2
    stored = load(directory, None)
    assert dtypes((stored.target_params, stored.tokenizer_params)) == {dtype}
    again = save(tmp_path / "again", stored)
    assert all((again / file.name).read_bytes() == file.read_bytes() for file in directory.iterdir())
    parameters = read_parameters(stored, np.dtype(jnp.bfloat16), None)
    assert (dtypes(parameters.target), dtypes(parameters.tokenizer)) == ({"bfloat16"}, {"float32"})
    back = load(directory, jnp.bfloat16)
    assert dtypes((back.target_params, eagle(back))) == {"bfloat16"}
    assert dtypes(back.tokenizer_params) == {"float32"}
    same(back.codebook, ours.codebook)
    expected = jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(dtype)), ours.tokenizer_params)
    same(back.tokenizer_params, jax.tree.map(lambda leaf: leaf.astype(np.float32), expected))


def flat(checkpoint) -> dict[str, np.ndarray]:
    tree = {"target": checkpoint.target_params, "tokenizer": checkpoint.tokenizer_params}
    tree |= {"drafters": {kind: params for kind, (_, params) in checkpoint.drafters.items()}}
    tree |= {name: getattr(checkpoint.codebook, name) for name in ("neighbours", "codes")}
    return {arrays.name_of(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def test_other_tools_open_a_checkpoint(tiny_folder):
    """The format's own library reads the same arrays from the demo and from a checkpoint of ours."""
    for folder in (tiny_folder, demo_directory()):
        ours, theirs = flat(load(folder, None)), load_file(folder / "model.safetensors")
        shared = json.loads((folder / "config.json").read_text()).get("shared", {})
        theirs |= {name: theirs[other] for name, other in shared.items()}
        assert ours.keys() == theirs.keys() and "target.params.head.kernel" in theirs
        same(ours, theirs)


OWN, THEIRS = "drafters.eagle.params.tokens.embedding", "target.params.tokens.embedding"


def test_a_table_shared_with_the_target_is_stored_once(tmp_path):
    """A different table is stored as well; a drafter is read with its table, even alone."""
    ours = tiny_checkpoint()
    config, params = ours.drafters["eagle"]
    table = ours.target_params["params"]["tokens"]["embedding"]
    assert table.shape == params["params"]["tokens"]["embedding"].shape
    shared = {"params": params["params"] | {"tokens": {"embedding": table.copy()}}}
    for made, expected in ((params, {}), (shared, {OWN: THEIRS})):
        folder = save(
            tmp_path / str(len(expected)), dataclasses.replace(ours, drafters={"eagle": (config, made)})
        )
        assert json.loads((folder / "config.json").read_text()).get("shared", {}) == expected
        assert (OWN in load_file(folder / "model.safetensors")) == (not expected)
        same(eagle(load(folder)), made)
        same(load_drafter(load_shapes(folder), "eagle"), made)
    assert store.verify(folder) == sum(
        path.stat().st_size for path in folder.iterdir() if path.suffix != ".json"
    )


@pytest.mark.parametrize(
    "shared", [7, {OWN: "target.params.nothing"}, {OWN: "target.params.head.kernel"}, {}]
)
def test_a_missing_or_wrong_shared_table_is_reported(shared, tmp_path):
    ours = tiny_checkpoint()
    config, params = ours.drafters["eagle"]
    table = {"params": params["params"] | {"tokens": ours.target_params["params"]["tokens"]}}
    folder = save(tmp_path / "folder", dataclasses.replace(ours, drafters={"eagle": (config, table)}))
    content = json.loads((folder / "config.json").read_text())
    content["shared"] = shared
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(LanternError, match=r"shared: 'int'|tokens\.embedding"):
        load(folder)


def test_the_same_checkpoint_makes_the_same_bytes(tmp_path):
    """Those of the demo, which another process wrote long ago."""
    for path in save(tmp_path / "again", load(demo_directory(), None), dtype="float16").iterdir():
        assert path.read_bytes() == (demo_directory() / path.name).read_bytes(), path.name


def test_a_large_checkpoint_is_several_files_with_an_index(tiny_folder, tmp_path, monkeypatch):
    """As on the Hugging Face hub; a drafter is read from its own files alone."""
    monkeypatch.setattr(arrays.write_arrays, "__defaults__", (lambda _: None, 20_000))
    sharded = save(tmp_path / "sharded", tiny_checkpoint())
    names = sorted(path.name for path in sharded.iterdir())
    count = len(names) - 2
    shards = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    assert count > 2 and names == ["config.json", *shards, "model.safetensors.index.json"]
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    theirs = {}
    for name in set(index["weight_map"].values()):
        theirs |= load_file(sharded / name)
    assert index["weight_map"].keys() == theirs.keys()
    assert index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in theirs.values())
    ours = load(sharded, None)
    same(flat(ours), theirs)
    same(flat(ours), flat(load(tiny_folder, None)))
    same(load_drafter(load_shapes(sharded), "eagle"), eagle(ours))


@pytest.mark.parametrize("model", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_arrays_go_straight_onto_devices(dtype, model, tiny_folder):
    mesh = jax.make_mesh((2, model), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    ours, split = tiny_checkpoint(), 0
    back = load(tiny_folder, dtype, mesh)
    expected = jax.tree.map(lambda leaf: leaf.astype(dtype), ours.target_params)
    same((back.target_params, back.tokenizer_params), (expected, ours.tokenizer_params))
    read = {"target": back.target_params, "tokenizer": back.tokenizer_params}
    for path, leaf in jax.tree_util.tree_flatten_with_path(read)[0]:
        names = [key.key for key in path]
        assert leaf.sharding == sharding_at(mesh, names, leaf.shape), names
        assert names[0] == "target" or leaf.is_fully_replicated
        split += {shard.data.nbytes for shard in leaf.addressable_shards} == {leaf.nbytes // 2}
    assert split >= 7 if model == 2 else not split


def test_splitting_arrays_over_devices_takes_little_host_memory(tmp_path):
    tree = {"target": {f"a{i}": {"head": {"kernel": np.full((256, 256), i, np.float32)}} for i in range(60)}}
    arrays.write_arrays(tmp_path, "model", tree)
    tensors = open_safetensors(tmp_path / "model.safetensors")
    tracemalloc.start()
    read = arrays.read_arrays(tensors, tree, {}, where_on(np.array(jax.devices()[:2])[None]))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    same(read, tree)
    # NumPy's arrays are counted, JAX's own are not.
    assert most < 0.4 * sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_verify_finds_a_flipped_bit(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "copy")
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    assert store.verify(folder) == len(content)
    content[-300] ^= 4
    file.write_bytes(content)
    with refused(r"model\.safetensors is damaged \(it is not as it was written: another checksum\)"):
        store.verify(folder)


def test_a_checkpoint_can_be_moved_and_saved_again(tiny_folder, tmp_path):
    moved = shutil.copytree(tiny_folder, tmp_path / "every*[2]?")
    same(load(moved).target_params, tiny_checkpoint().target_params)
    with pytest.raises(ValueError, match="exists"):
        save(moved, tiny_checkpoint())
    save(moved, dataclasses.replace(tiny_checkpoint(), model="other"), overwrite=True)
    assert load(moved).model == "other"
    assert [path.name for path in tmp_path.iterdir()] == ["every*[2]?"]
    (tmp_path / "mine").mkdir()
    for config in ("", "[]", '{"model_type": "multi_modality"}'):
        with refused("not a checkpoint of this library"):
            save(tmp_path / "mine", tiny_checkpoint(), overwrite=True)
        (tmp_path / "mine" / "config.json").write_text(config)


@pytest.mark.parametrize("room", [0, 500, 20_000])
def test_a_full_disk_is_a_one_line_error_and_leaves_nothing(room, tmp_path, capfd):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoint = tiny_checkpoint()
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write .*/new.*(File too large|No space)") as error:
            save(tmp_path / "new", checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(error.value) and ".part" not in str(error.value)
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")


def test_only_the_wanted_kinds_of_drafter_are_read(tiny_folder, monkeypatch, tmp_path):
    ours, reads = tiny_checkpoint(), []
    read = store.read_arrays
    monkeypatch.setattr(store, "read_arrays", lambda *given: reads.append(read(*given)) or reads[-1])
    alone = load(tiny_folder, drafters=())
    assert set(reads.pop()) == {"target", "tokenizer", "neighbours", "codes"}
    same(alone.target_params, ours.target_params)
    assert {type(leaf) for leaf in jax.tree.leaves(eagle(alone))} == {jax.ShapeDtypeStruct}
    assert describe(alone) == describe(load(tiny_folder))
    with pytest.raises(ValueError, match="shapes in place of parameters"):
        save(tmp_path / "new", alone)
    reads.clear()
    params = load_drafter(alone, "eagle", jnp.bfloat16)
    assert set(reads.pop()) == {"drafters"}
    same(params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), eagle(ours)))
    assert load_drafter(ours, "eagle") is eagle(ours) and not reads
    with refused("no medusa drafter"):
        load_drafter(alone, "medusa")


@pytest.mark.parametrize(("change", "match"), [
    ({"target_config": dataclasses.replace(TARGET, dim=32)}, "do not fit its config"),
    (
        {"drafters": {"eagle": (dataclasses.replace(DRAFTER, grid=5), eagle(tiny_checkpoint()))}},
        "eagle drafter's grid 5, the target's 4",
    ),
    ({"drafters": {"eagle": (DRAFTER, None)}}, "eagle drafter's parameters do not fit its config"),
    ({"drafters": {"owl": (DRAFTER, None)}}, "unknown kind of drafter 'owl'"),
    ({"drafters": {"eagle": (TARGET, None)}}, "config is a LlamaGenConfig: give a DrafterConfig"),
    ({"tokenizer_params": None}, "give both"),
    ({"metadata": {"loss": float("nan")}}, r"metadata are not valid JSON \(.*\): give finite Python numbers"),
    ({"defaults": {"top_k": np.int32(5)}}, r"defaults or metadata are not valid JSON \(.*int32"),
    ({"tokenizer_config": dataclasses.replace(VQ, codebook_size=16)}, "do not fit its config"),
])  # fmt: skip
def test_parts_that_do_not_fit_are_not_saved(change, match, tmp_path):
    with refused(match):
        save(tmp_path / "new", dataclasses.replace(tiny_checkpoint(), **change))
    assert not list(tmp_path.iterdir())
    store.check(dataclasses.replace(tiny_checkpoint(), vocabulary=None, codebook=None))


def test_values_that_a_dtype_cannot_hold_are_refused(tmp_path):
    ours = tiny_checkpoint()
    params = jax.tree.map(lambda leaf: leaf * np.float32(1e6), ours.target_params)
    with refused("not finite in float16"):
        save(tmp_path / "new", dataclasses.replace(ours, target_params=params), dtype="float16")
    for dtype in ("int8", "nonsense"):
        with refused(f"dtype '{dtype}' is not valid: give one of float16, bfloat16, float32"):
            save(tmp_path / "new", ours, dtype=dtype)
    assert not list(tmp_path.iterdir())
