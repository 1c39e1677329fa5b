"""Checkpoint directories: round trips, sizes, and one line for everything that can be wrong with one."""

import dataclasses
import json
import shutil
import threading
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from lantern_jax.checkpoints import store
from lantern_jax.checkpoints.arrays import file_sizes, read_arrays, stored_shapes, write_arrays
from lantern_jax.checkpoints.bounds import check_room
from lantern_jax.checkpoints.llamagen import gpt_shapes
from lantern_jax.checkpoints.store import Checkpoint, demo_directory, describe, load, load_drafter, save
from lantern_jax.quantization import INPUT_AXES
from tests.tiny_checkpoint import DRAFTER, NEIGHBOURS, SIDE, TARGET, VQ, tiny_checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("store") / "tiny", tiny_checkpoint())


@pytest.fixture
def broken(saved, tmp_path):
    """A copy to break."""
    return shutil.copytree(saved, tmp_path / "broken")


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def eagle(checkpoint):
    """The parameters of the drafter."""
    return checkpoint.drafters["eagle"][1]


def test_round_trip(saved):
    ours, back = tiny_checkpoint(), load(saved)
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


def test_shapes_are_not_saved_as_parameters(saved, tmp_path):
    with pytest.raises(ValueError, match="shapes in place of parameters"):
        save(tmp_path / "shapes", load(saved, abstract=True))
    assert not list(tmp_path.iterdir())


def test_target_alone(tmp_path):
    ours = tiny_checkpoint()
    alone = Checkpoint(model="alone", target_config=TARGET, target_params=ours.target_params)
    back = load(save(tmp_path / "alone", alone))
    same(back.target_params, ours.target_params)
    assert (back.tokenizer_params, back.codebook, back.vocabulary) == (None,) * 3
    assert back.drafters == {}


@pytest.mark.parametrize("dtype", store.DTYPES)
def test_stored_and_loaded_dtypes(dtype, tmp_path):
    ours = tiny_checkpoint()
    directory = save(tmp_path / dtype, ours, dtype=dtype)
    back = load(directory, jnp.bfloat16)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(back.target_params)} == {"bfloat16"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(eagle(back))} == {"bfloat16"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(back.tokenizer_params)} == {"float32"}
    same(back.codebook, ours.codebook)
    expected = jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(dtype)), ours.tokenizer_params)
    same(back.tokenizer_params, jax.tree.map(lambda leaf: leaf.astype(np.float32), expected))


def test_float16_halves_the_size_and_files_are_few(tmp_path):
    """Of parameters that do not compress, large enough that bookkeeping does not count."""
    config = dataclasses.replace(TARGET, vocab_size=4096)
    noise = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: noise.normal(size=leaf.shape).astype(np.float32), gpt_shapes(config))
    checkpoint = Checkpoint(model="wide", target_config=config, target_params=params)
    sizes = []
    for dtype in ("float32", "float16"):
        files = [
            path for path in save(tmp_path / dtype, checkpoint, dtype=dtype).rglob("*") if path.is_file()
        ]
        assert len(files) == 4
        sizes.append(sum(file.stat().st_size for file in files))
    assert sizes[1] < 0.6 * sizes[0]
    assert sizes[1] < 1.05 * 2 * sum(leaf.size for leaf in jax.tree.leaves(params))


def matrices(params):
    """Parameters with the layers' kernels as matrices: the old layout."""

    def flat(path, leaf):
        inputs = INPUT_AXES.get(path[-2].key, 1)
        kernel = path[-1].key == "kernel" and any(key.key == "transformer" for key in path)
        return leaf.reshape(np.prod(leaf.shape[:inputs]), -1) if kernel else leaf

    return jax.tree_util.tree_map_with_path(flat, params)


@pytest.fixture
def old(saved, tmp_path):
    """The saved checkpoint as a directory in the old layout."""
    directory = shutil.copytree(saved, tmp_path / "old")
    ours = tiny_checkpoint()
    arrays = {
        "target": matrices(ours.target_params),
        "drafter": matrices(eagle(ours)),
        "tokenizer": ours.tokenizer_params,
        "neighbours": ours.codebook.neighbours.astype(np.uint16),
        "codes": ours.codebook.codes,
    }
    config = json.loads((directory / "config.json").read_text())
    config |= {"version": 1, "drafter": config.pop("drafters")["eagle"]}
    del config["checksums"]
    (directory / "config.json").write_text(json.dumps(config))
    rewrite(directory, arrays)
    return directory


def rewrite(directory, arrays):
    shutil.rmtree(directory / "arrays")
    write_arrays(directory / "arrays", arrays)
    config = json.loads((directory / "config.json").read_text())
    config["files"] = file_sizes(directory / "arrays")
    (directory / "config.json").write_text(json.dumps(config))


def test_old_layout_is_read(old, saved, tmp_path):
    stored = stored_shapes(old / "arrays")["target"]["params"]["transformer"]["layer_0"]
    assert {name: stored[name]["kernel"].shape for name in INPUT_AXES} == {
        "qkv": (16, 48), "out": (16, 16), "gate_up": (16, 64), "down": (32, 16),
    }  # fmt: skip
    for arguments in ((), (jnp.bfloat16,), (None,)):
        left, right = load(old, *arguments), load(saved, *arguments)
        for part in ("target_params", "tokenizer_params", "codebook"):
            same(getattr(left, part), getattr(right, part))
        assert left.drafters.keys() == right.drafters.keys() == {"eagle"}
        same(eagle(left), eagle(right))
        same(load_drafter(load(old, abstract=True), "eagle", *arguments), eagle(right))
    assert describe(load(old, abstract=True)) == describe(load(saved, abstract=True))
    abstract = load(old, abstract=True).target_params
    assert jax.tree.map(lambda leaf: leaf.shape, abstract) == jax.tree.map(
        np.shape, tiny_checkpoint().target_params
    )
    again = save(tmp_path / "again", load(old, None))
    assert stored_shapes(again / "arrays") == stored_shapes(saved / "arrays")


@pytest.mark.parametrize("layout", ["old", "saved"])
def test_either_layout_is_read_onto_devices(layout, request):
    directory = request.getfixturevalue(layout)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params = load(directory, sharding=everywhere).target_params
    assert {leaf.sharding for leaf in jax.tree.leaves(params)} == {everywhere}
    same(params, tiny_checkpoint().target_params)


@pytest.mark.parametrize(
    ("module", "shape"), [("gate_up", (64, 16)), ("qkv", (16, 3, 16)), ("out", (256,)), ("down", (16, 32))]
)
def test_no_other_shape_is_taken_for_the_old_layout(module, shape, old):
    """As many elements are not enough."""
    target = matrices(tiny_checkpoint().target_params)
    layer = target["params"]["transformer"]["layer_0"]
    layer[module]["kernel"] = layer[module]["kernel"].reshape(shape)
    rewrite(old, {"target": target})
    with pytest.raises(ValueError, match=f"layer_0.{module}.kernel is") as error:
        load(old)
    assert f"{module}.kernel is {list(shape)}, expected" in one_line(error)


@pytest.mark.parametrize(("packs", "times"), [(1, 4), (3, 2)])
def test_how_many_files_is_not_chance(packs, times, tmp_path):
    """Three a pack, with leaves of many sizes, however busy the machine is."""
    noise = np.random.default_rng(0)
    shapes = [(3,), (1,), (), (200, 300), *[(50, 60 + i) for i in range(12)]]
    arrays = {f"part_{i}": {"kernel": noise.normal(size=shape)} for i, shape in enumerate(shapes)}
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
    stop = threading.Event()
    load_makers = [threading.Thread(target=_keep_busy, args=(stop,)) for _ in range(3)]
    for thread in load_makers:
        thread.start()
    try:
        for i in range(times):
            folder = tmp_path / str(i)
            write_arrays(folder, arrays, pack_bytes=size // packs + 200_000)
            found = sorted(path.name for path in folder.rglob("*") if path.is_file())
            assert len(found) == 3 * packs
            assert found.count("_METADATA") == found.count("manifest.ocdbt") == packs
            same(read_arrays(folder, {}), arrays)
    finally:
        stop.set()
    assert len(list(tmp_path.iterdir())) == times


def _keep_busy(stop):
    block = bytes(1 << 22)
    while not stop.is_set():
        # Lets other threads run Python beside it.
        zlib.crc32(block)


def test_jax_arrays_are_written_too(tmp_path):
    arrays = {"part": {"kernel": jnp.arange(6.0).reshape(2, 3), "scale": jnp.ones(2, jnp.bfloat16)}}
    write_arrays(tmp_path / "new", arrays)
    assert len([path for path in (tmp_path / "new").rglob("*") if path.is_file()]) == 3
    same(read_arrays(tmp_path / "new", {}), arrays)


def test_nothing_stored_names_the_machine(saved):
    folder = str(saved.parent).encode()
    files = [path for path in saved.rglob("*") if path.is_file()]
    assert files and not any(folder in file.read_bytes() for file in files)


def test_moved_and_saved_again(saved, tmp_path):
    moved = shutil.copytree(saved, tmp_path / "moved")
    same(load(moved).target_params, tiny_checkpoint().target_params)
    with pytest.raises(ValueError, match="exists"):
        save(moved, tiny_checkpoint())
    other = dataclasses.replace(tiny_checkpoint(), model="other")
    save(moved, other, overwrite=True)
    assert load(moved).model == "other"
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_folders_that_orbax_takes_for_patterns_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has a bracket in it, below which arrays cannot be written"):
        save(tmp_path / "runs[2]" / "checkpoint", tiny_checkpoint())
    assert not list(tmp_path.iterdir())
    same(
        load(save(tmp_path / "every*" / "which?", tiny_checkpoint())).codebook.neighbours,
        tiny_checkpoint().codebook.neighbours,
    )


def test_only_checkpoints_are_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="not a checkpoint"):
        save(tmp_path / "mine", tiny_checkpoint(), overwrite=True)


def test_a_crash_leaves_nothing(tmp_path, monkeypatch):
    def crash(*_):
        raise RuntimeError("disk full")

    monkeypatch.setattr(store, "write_arrays", crash)
    with pytest.raises(RuntimeError, match="disk full"):
        save(tmp_path / "new", tiny_checkpoint())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("room", [0, 500, 20_000])
def test_a_full_disk_is_one_line_and_leaves_nothing(room, tmp_path, capfd):
    """Wherever it ends: in the descriptions, or in the arrays. Nothing else is told, of no thread."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoint = tiny_checkpoint()
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write .*/new/.*(File too large|No space)") as error:
            save(tmp_path / "new", checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(error.value) and ".part" not in str(error.value)
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")


def test_neighbours_without_a_code(tmp_path):
    ours = tiny_checkpoint()
    table = np.array(ours.codebook.neighbours)
    table[3] = -1
    holes = dataclasses.replace(ours, codebook=ours.codebook.replace(neighbours=table))
    same(load(save(tmp_path / "holes", holes)).codebook.neighbours, table)


def test_only_the_kinds_wanted_are_read(saved, monkeypatch, tmp_path):
    """Of a drafter that is not wanted there are shapes, which are not saved."""
    ours, reads = tiny_checkpoint(), []
    read = store.read_arrays
    monkeypatch.setattr(store, "read_arrays", lambda *given: reads.append(read(*given)) or reads[-1])
    alone = load(saved, drafters=())
    assert set(reads.pop()) == {"target", "tokenizer", "neighbours", "codes"}
    same(alone.target_params, ours.target_params)
    assert {type(leaf) for leaf in jax.tree.leaves(eagle(alone))} == {jax.ShapeDtypeStruct}
    assert describe(alone) == describe(load(saved))
    with pytest.raises(ValueError, match="shapes in place of parameters"):
        save(tmp_path / "new", alone)
    reads.clear()
    params = load_drafter(alone, "eagle", jnp.bfloat16)
    assert set(reads.pop()) == {"drafters"}
    same(params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), eagle(ours)))
    assert load_drafter(ours, "eagle") is eagle(ours) and not reads
    with pytest.raises(ValueError, match="no medusa drafter") as error:
        load_drafter(alone, "medusa")
    one_line(error)


def test_arrays_of_several_packs_are_read_in_part(tmp_path):
    arrays = {"a": {"b": np.ones((4, 4)), "c": np.zeros(3)}, "d": {"e": np.arange(5.0)}, "f": np.ones(2)}
    write_arrays(tmp_path / "new", arrays, pack_bytes=150)
    assert len(list((tmp_path / "new").iterdir())) == 2
    for wanted in ({"a": {"c": arrays["a"]["c"]}}, {"d": arrays["d"], "a": arrays["a"]}, {"f": arrays["f"]}):
        same(read_arrays(tmp_path / "new", {}, None, wanted), wanted)


def test_arrays_of_other_layouts_are_refused(tmp_path):
    """Those that this library writes are of one kind; another's may ask for any memory or decoder."""
    arrays = {"a": {"b": np.ones((4, 4), np.float32)}}
    described = json.loads(
        '{"chunks": [4, 4], "compressor": {"id": "zstd", "level": 1}, "dimension_separator": ".", "dtype": "<f4", '
        '"fill_value": null, "filters": null, "order": "C", "shape": [4, 4], "zarr_format": 2}'
    )
    for number, (name, value) in enumerate(
        {
            "chunks": [1 << 40, 4],
            "shape": [-4, 4],
            "dtype": "<O8",
            "compressor": {"id": "blosc"},
            "fill_value": 1.0,
            "filters": [{"id": "pickle"}],
            "order": "F",
        }.items()
    ):
        folder = tmp_path / str(number)
        write_arrays(folder, arrays)
        spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
        store = tensorstore.KvStore.open(spec).result()
        assert json.loads(store["a.b/.zarray"]) == described
        store["a.b/.zarray"] = json.dumps(described | {name: value})
        for read in (stored_shapes, lambda folder: read_arrays(folder, {})):
            with pytest.raises(ValueError, match=f"{number} is damaged") as error:
                read(folder)
            one_line(error)


def test_arrays_that_no_file_could_hold_are_not_read(tmp_path):
    """A few bytes that stand for a terabyte: shapes are compared with files before memory is asked for."""
    shapes = {"a": jax.ShapeDtypeStruct((1 << 20, 1 << 18), jnp.float32)}
    with pytest.raises(ValueError, match="5000 bytes of files hold no arrays of 1099511627776 bytes"):
        check_room(tmp_path, shapes, {"a": 5000})
    check_room(tmp_path, shapes, {"a": 1 << 34})
    check_room(tmp_path, {"a": jax.ShapeDtypeStruct((1 << 20,), jnp.float32)}, {"a": 500})


def test_describe(saved):
    description = describe(load(saved))
    assert description["model"] == "tiny"
    assert (description["tokens"], description["picture_size"]) == (TARGET.num_tokens, SIDE)
    assert description["neighbours"] == NEIGHBOURS
    assert description["target"]["dim"] == TARGET.dim
    count = sum(leaf.size for leaf in jax.tree.leaves(eagle(tiny_checkpoint())))
    assert description["drafters"]["eagle"]["parameters"] == count
    assert description["drafters"]["eagle"]["dtype"] == "float32"
    json.dumps(description)


def test_demo_directory_is_in_the_package():
    assert demo_directory().parts[-3:] == ("lantern_jax", "assets", "demo")


def test_missing_and_foreign_directories(tmp_path):
    with pytest.raises(ValueError, match="not a directory") as error:
        load(tmp_path / "none")
    one_line(error)
    with pytest.raises(ValueError, match=r"no config\.json") as error:
        load(tmp_path)
    one_line(error)
    (tmp_path / "config.json").write_text('{"architectures": ["Llama"]}')
    with pytest.raises(ValueError, match="not that of a lantern_jax checkpoint") as error:
        load(tmp_path)
    one_line(error)


def test_damaged_config(broken):
    path = broken / "config.json"
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="damaged") as error:
        load(broken)
    one_line(error)
    content = json.loads(text)
    del content["checksums"]
    for change, match in (
        ({"files": None}, "does not list its files"),
        ({"version": 99}, "version 99"),
        ({"target": None}, "no model and target"),
        ({"target": content["target"] | {"wings": 2}}, "wings"),
        ({"codebook": {"neighbours": 3}}, "channels"),
        ({"drafters": [1]}, "drafters are no object"),
        (
            {"drafters": {"owl": {}}},
            "unknown kind of drafter 'owl', expected one of eagle, eagle3, medusa, parallel",
        ),
        ({"drafters": {"eagle": 3}}, "eagle drafter: "),
        ({"drafters": {"eagle": content["drafters"]["eagle"] | {"wings": 2}}}, "eagle drafter: .*wings"),
        (
            {"drafters": {"eagle": content["drafters"]["eagle"] | {"grid": 5}}},
            "eagle drafter: it has grid 5, the target's 4",
        ),
        (
            {"drafters": {"eagle": content["drafters"]["eagle"] | {"hidden_dim": 48}}},
            r"drafters.eagle.transformer.layer_0.down.kernel is \[32, 16\], expected \[48, 16\]",
        ),
        ({"drafters": {}}, "8 unexpected: drafters.eagle.fc.bias"),
        ({"vocabulary": {"words": {}}}, "vocabulary"),
    ):
        path.write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=match) as error:
            load(broken)
        one_line(error)


def test_missing_arrays(broken):
    shutil.rmtree(broken / "arrays")
    with pytest.raises(ValueError, match="arrays is missing") as error:
        load(broken)
    one_line(error)


def test_every_truncated_or_lost_file(saved, broken):
    """Whichever file is cut in half or lost, one line names it."""
    names = [path.relative_to(saved / "arrays") for path in (saved / "arrays").rglob("*") if path.is_file()]
    for name in names:
        file = broken / "arrays" / name
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match=f"{name.name} has {len(content) // 2} bytes") as error:
            load(broken)
        one_line(error)
        file.unlink()
        with pytest.raises(ValueError, match=f"{name.name} is missing") as error:
            load(broken)
        one_line(error)
        file.write_bytes(content)
    same(load(broken).target_params, tiny_checkpoint().target_params)


def test_arrays_that_do_not_fit_are_listed(broken):
    """A config of other sizes: more layers, another width, no tokenizer."""
    path = broken / "config.json"
    content = json.loads(path.read_text())
    content["target"] |= {"num_layers": 2, "qk_norm": False, "hidden_dim": 48}
    content["tokenizer"] = None
    del content["checksums"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError) as error:
        load(broken)
    message = one_line(error)
    assert "missing: target.transformer.layer_1." in message
    assert "target.transformer.layer_0.query_norm.scale" in message
    assert "unexpected: " in message and "tokenizer." in message, message[-1500:]
    assert "target.transformer.layer_0.down.kernel is [32, 16], expected [48, 16]" in message


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"target_config": dataclasses.replace(TARGET, dim=32)}, "do not fit its config"),
        (
            {"drafters": {"eagle": (dataclasses.replace(DRAFTER, grid=5), eagle(tiny_checkpoint()))}},
            "eagle drafter's grid 5, the target's 4",
        ),
        ({"drafters": {"eagle": (DRAFTER, None)}}, "eagle drafter's parameters do not fit its config"),
        ({"drafters": {"owl": (DRAFTER, None)}}, "unknown kind of drafter 'owl'"),
        ({"drafters": {"eagle": (TARGET, None)}}, "config is a LlamaGenConfig: give a DrafterConfig"),
        ({"tokenizer_params": None}, "give both"),
        ({"tokenizer_config": dataclasses.replace(VQ, codebook_size=16)}, "do not fit its config"),
        ({"vocabulary": None, "codebook": None}, None),
    ],
)
def test_parts_that_do_not_fit_are_not_saved(change, match, tmp_path):
    checkpoint = dataclasses.replace(tiny_checkpoint(), **change)
    if match is None:
        store.check(checkpoint)
        return
    with pytest.raises(ValueError, match=match) as error:
        save(tmp_path / "new", checkpoint)
    one_line(error)
    assert not list(tmp_path.iterdir())


def test_values_that_a_dtype_cannot_hold(tmp_path):
    ours = tiny_checkpoint()
    params = jax.tree.map(lambda leaf: leaf * np.float32(1e6), ours.target_params)
    with pytest.raises(ValueError, match="not finite in float16") as error:
        save(tmp_path / "new", dataclasses.replace(ours, target_params=params), dtype="float16")
    one_line(error)
    with pytest.raises(ValueError, match="dtype int8"):
        save(tmp_path / "new", ours, dtype="int8")
    assert not list(tmp_path.iterdir())
