"""Tensor files: what can be read, and a one-line error for what cannot; no code in a file is ever run."""

import argparse
import contextlib
import json
import subprocess
import sys
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.io.errors import Assumed
from lantern_jax.tensors.matching import Entry, read_tensors, transpose
from tests.refused import refused as lantern_error

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def tensors():
    generator = torch.Generator().manual_seed(0)
    weight, half = torch.randn(3, 4, generator=generator), torch.randn(5000, generator=generator)
    return {"weight": weight, "half": half.to(torch.bfloat16)}


EXPECTED = tensors()


def check_read(read, expected=EXPECTED):
    assert set(read) == set(expected)
    assert read["weight"].shape == (3, 4) and read["weight"].dtype == np.float32
    assert read["half"].dtype == ml_dtypes.bfloat16 and read["half"].nbytes == 10_000
    np.testing.assert_array_equal(np.asarray(read["weight"]), expected["weight"].numpy())
    half = np.asarray(read["half"])
    assert half.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(half.astype(np.float32), expected["half"].float().numpy())
    assert np.asarray(read["half"], np.float64).dtype == np.float64


def refused(path, match) -> None:
    with lantern_error(match) as error:
        open_tensors(path)
    assert path.name in str(error.value)


old_torch = partial(torch.save, _use_new_zipfile_serialization=False)
SAVERS = {
    "a.pt": torch.save, "old.pt": old_torch, "a.pth": torch.save, "a.bin": torch.save,
    "a.safetensors": safetensors_torch.save_file,
}  # fmt: skip


@pytest.mark.parametrize("name", SAVERS)
def test_files_are_read_without_torch(name, tmp_path, monkeypatch):
    path = tmp_path / name
    SAVERS[name](tensors(), path)
    monkeypatch.setitem(sys.modules, "torch", None)
    check_read(open_tensors(path))


@pytest.mark.parametrize("wrapper", ["model", "module", "state_dict"])
@pytest.mark.parametrize("save", [torch.save, old_torch], ids=["zip", "pickle"])
def test_tensors_may_be_inside_a_training_checkpoint(wrapper, save, tmp_path):
    path = tmp_path / "checkpoint.pt"
    save({wrapper: tensors(), "optimizer": {"step": 3}, "args": argparse.Namespace(lr=1e-4)}, path)
    check_read(open_tensors(path))


@pytest.mark.parametrize(("content", "weights", "taken", "said"), [
    ({"model": 1, "ema": 2}, None, 1, "has several sets of weights: took model, not ema .--weights ema."),
    ({"ema": 2, "state_dict": 1}, None, 1, "took state_dict, not ema"),
    ({"model": 1, "ema": 2}, "ema", 2, ""), ({"model": 1, "ema": 2}, "model", 1, ""),
    ({"ema": 2, "steps": 3}, None, 2, "has no weights under model, module or state_dict: took ema"),
    ({"model": {"module": 1}, "model_ema": 2}, None, 1, "took model.module, not model_ema"),
    ({"ema": {"state_dict": 2}, "model": 1}, "ema.state_dict", 2, ""), ({"generator": 2}, "generator", 2, ""),
    ({"model": 1}, "ema", 1, "has no weights ema: took model"), (1, "ema", 1, "has no weights ema: took the top level"),
    ({"model": 1, "optimizer": {"state": {0: 2}}, "rng": torch.zeros(3)}, None, 1, ""),
])  # fmt: skip
def test_of_several_sets_of_weights_the_usual_or_the_named_one_is_read(
    content, weights, taken, said, tmp_path
):
    def filled(part):
        if isinstance(part, dict):
            return {key: filled(value) for key, value in part.items()}
        return {"weight": torch.full((2,), float(part))} if isinstance(part, int) else part

    torch.save(filled(content), tmp_path / "a.pt")
    with pytest.warns(Assumed, match=f"^a.pt .*{said}") if said else contextlib.nullcontext():
        found = open_tensors(tmp_path / "a.pt", weights)
    assert list(found) == ["weight"] and np.asarray(found["weight"])[0] == taken


def test_weights_that_cannot_be_chosen_are_refused(tmp_path):
    torch.save({"model": tensors(), "ema": tensors()}, tmp_path / "model.pt")
    with lantern_error("model.pt has no weights emma: choose from model, ema"):
        open_tensors(tmp_path / "model.pt", "emma")
    torch.save({"generator": tensors(), "step": 3}, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "keeps its tensors in generator: choose with --weights")


def test_numbers_too_large_for_a_dtype_are_infinite_without_a_warning():
    large = {"a": np.full((2, 2), 1e9, np.float32), "b": np.full((2, 2), 1e9, np.float32)}
    table = {"a": Entry(("a",), (2, 2)), "b": Entry(("b",), (2, 2), whole=(1, 2, 2), index=(0,))}
    params = read_tensors(large, table, what="thing", dtype=np.float16)
    assert np.isinf(params["a"]).all() and np.isinf(params["b"]).all()


@pytest.mark.parametrize("content", [[torch.zeros(2)], {"a": torch.zeros(2), "b": 3}, {}, torch.zeros(2)])
def test_files_without_named_tensors_are_refused(content, tmp_path):
    torch.save(content, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "name a checkpoint")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_dtypes_and_shapes(dtype, shape, tmp_path):
    expected = torch.ones(shape).to(dtype)
    safetensors_torch.save_file({"a": expected, "b": torch.zeros(5)}, tmp_path / "model.safetensors")
    torch.save({"a": torch.from_numpy(expected.numpy().T), "b": torch.zeros(5)}, tmp_path / "model.bin")
    for path in tmp_path.iterdir():
        found = open_tensors(path)["a"]
        values = np.asarray(found)
        wanted = expected.numpy() if path.suffix == ".safetensors" else expected.numpy().T
        assert found.shape == values.shape == wanted.shape and found.dtype == values.dtype == wanted.dtype
        np.testing.assert_array_equal(values, wanted)


def safetensors_bytes(header: dict | bytes, body: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(start=0, stop=16, shape=(4,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


WRONG = {
    "model.safetensors": [
        (safetensors_bytes({"a": entry()}, bytes(15)), "15 bytes of tensors, expected 16"),
        (safetensors_bytes({"a": entry(dtype="F4")}), "header is wrong: 'F4'"),
        (safetensors_bytes(b'{"a": '), "header is wrong"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 13\n", "git lfs pull"),
    ],
    "model.safetensors.index.json": [
        (b"[]", "not an index"),
        (b'{"weight_map": {}}', "names no shard"),
        (b'{"weight_map": {"a": "config.json"}}', "config.json has an unknown suffix"),
        (b'{"weight_map": {"a": "../a.safetensors"}}', "not files beside it"),
        (b'{"weight_map": {"a": "a.safetensors", "b": "c.bin"}}', "2 missing: a.safetensors, c.bin"),
    ],
    "model.onnx": [(b"x", "unknown suffix")],
}


@pytest.mark.parametrize(
    ("name", "content", "match"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_wrong_files(name, content, match, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with lantern_error(match):
        open_tensors(tmp_path / name)


@pytest.fixture(params=["safetensors", "bin"])
def sharded(request, tmp_path):
    """A folder of two shards and their index: (folder, index, save)."""
    kind = request.param
    safe = kind == "safetensors"
    whole, save = ("model", safetensors_torch.save_file) if safe else ("pytorch_model", torch.save)
    names, content = [f"{whole}-0000{i}-of-00002.{kind}" for i in (1, 2)], tensors()
    for shard, name in zip(names, content, strict=True):
        save({name: content[name]}, tmp_path / shard)
    index = tmp_path / f"{whole}.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict(zip(content, names, strict=True))}))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path, index, lambda tensors, i: save(tensors, tmp_path / names[i])


def test_shards_need_their_index(sharded):
    folder, index, _ = sharded
    check_read(open_tensors(folder))
    check_read(open_tensors(index))
    index.unlink()
    refused(folder, "-of-00002.*fetch the index too")


def test_shards_and_index_must_agree(sharded):
    folder, index, save = sharded
    content = tensors()
    save({"weight": content["weight"], "half": content["half"].clone()}, 0)
    refused(index, "holds, and the index does not say so, half")
    save({"weight": content["weight"], "more": content["half"].clone()}, 0)
    refused(index, "does not say so, more")
    save({"other": content["weight"]}, 0)
    refused(index, "lacks weight")
    shard = json.loads(index.read_text())["weight_map"]["half"]
    (folder / shard).write_bytes(b"")
    save({"weight": content["weight"]}, 0)
    with pytest.raises(ValueError, match=shard):
        open_tensors(folder)
    (folder / shard).unlink()
    refused(index, f"2 shards, 1 missing: {shard}")
    index.unlink()
    assert list(open_tensors(folder)) == ["weight"], "a folder with one tensor file needs no index"


def test_folders(tmp_path):
    refused(tmp_path / "none.pt", "is not a file")
    refused(tmp_path, "holds no tensor file")
    content = tensors()
    torch.save(content, tmp_path / "released.pth")
    check_read(open_tensors(tmp_path))
    torch.save({"weight": content["weight"]}, tmp_path / "training_args.bin")
    refused(tmp_path, "holds 2 tensor files .released.pth, training_args.bin.: name one")
    torch.save({"half": content["half"]}, tmp_path / "pytorch_model.bin")
    assert list(open_tensors(tmp_path)) == ["half"]
    safetensors_torch.save_file(content, tmp_path / "model.safetensors")
    check_read(open_tensors(tmp_path))


MEASURE = """
import resource, sys
import numpy as np
from lantern_jax.apps.foreign import tensor_files

tensors = tensor_files.open_tensors(sys.argv[1])
np.asarray(tensors["0"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for tensor in tensors.values():
    np.asarray(tensor).sum()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is counted in other units elsewhere")
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_memory_holds_one_tensor_at_a_time(suffix, tmp_path):
    path = tmp_path / f"model.{suffix}"
    content = {str(i): torch.ones(1_000_000) for i in range(24)}
    (torch.save if suffix == "pt" else safetensors_torch.save_file)(content, path)
    run = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 20_000_000


class Recorded:
    def __init__(self, name, values, log):
        self.shape = values.shape
        self.name, self.values, self.log = name, values, log

    def __array__(self, dtype=None, copy=None):
        self.log.append(self.name)
        return self.values


def test_read_tensors_checks_all_shapes_before_it_reads_one_by_one():
    log, values = [], np.arange(6, dtype=np.float32).reshape(2, 3)
    lazy = {name: Recorded(name, values, log) for name in ("a", "b", "unused")}
    table = {"a": Entry(("x", "a"), (2, 3)), "b": Entry(("x", "b"), (2, 4))}
    with pytest.raises(ValueError, match=r"b is \[2, 3\], expected \[2, 4\]"):
        read_tensors(lazy, table, what="thing", ignored=["unused"])
    assert not log
    table["b"] = Entry(("y",), (2, 3), transpose)
    params = read_tensors(lazy, table, what="thing", ignored=["unused"], dtype=np.float16)
    assert log == ["a", "b"]
    np.testing.assert_array_equal(params["x"]["a"], values)
    np.testing.assert_array_equal(params["y"], values.T)
    assert params["y"].dtype == params["x"]["a"].dtype == np.float16


def test_arrays_whose_shapes_are_given_are_read_when_they_are_wanted():
    log, values = [], np.arange(6, dtype=np.float32).reshape(2, 3)
    lazy = {name: Recorded(name, values, log) for name in "abc"}
    table = {
        "a": Entry(("x", "a"), (2, 3), transpose),
        "b": Entry(("y",), (2, 3), whole=(4, 3), index=(slice(2),)),
        "c": Entry(("y",), (2, 3), whole=(4, 3), index=(slice(2, 4),)),
    }
    shapes = {"x": {"a": np.empty((3, 2))}, "y": np.empty((4, 3))}
    params = read_tensors(lazy, table, what="thing", dtype=np.float16, shapes=shapes)
    assert not log and params["y"].shape == (4, 3) and params["y"].dtype == np.float16
    np.testing.assert_array_equal(params["y"], np.concatenate([values, values]))
    assert log == ["b", "c"]
    np.testing.assert_array_equal(params["x"]["a"], values.T)
    shapes["x"]["a"] = values
    params = read_tensors(lazy, table, what="thing", shapes=shapes)
    with pytest.raises(ValueError, match=r"x.a of this thing becomes \(3, 2\), the model has \(2, 3\)"):
        np.asarray(params["x"]["a"])
