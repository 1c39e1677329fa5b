"""Tensor files: what can be read, and one line for each that cannot; no code of a file is ever run."""

import argparse
import os
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest

from lantern_jax.checkpoints.tensor_files import read_tensor_file

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(3, 4, generator=generator),
        "half": torch.randn(5000, generator=generator).to(torch.bfloat16),
    }


def check_read(path):
    read, expected = read_tensor_file(path), tensors()
    assert set(read) == set(expected)
    np.testing.assert_array_equal(read["weight"], expected["weight"].numpy())
    assert read["half"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read["half"].astype(np.float32), expected["half"].float().numpy())


def refused(path, match) -> None:
    with pytest.raises(ValueError, match=match) as error:
        read_tensor_file(path)
    message = str(error.value)
    assert "\n" not in message and path.name in message


@pytest.mark.parametrize("wrapper", [None, "model", "module", "state_dict"])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "pickle"])
def test_torch_files(wrapper, new, tmp_path):
    content = tensors()
    if wrapper is not None:
        content = {wrapper: content, "optimizer": {"step": 3}, "args": argparse.Namespace(lr=1e-4)}
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path, _use_new_zipfile_serialization=new)
    check_read(path)


@pytest.mark.parametrize("suffix", [".pth", ".bin"])
def test_other_suffixes(suffix, tmp_path):
    path = tmp_path / f"checkpoint{suffix}"
    torch.save(tensors(), path)
    check_read(path)


def test_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors_torch.save_file(tensors(), path)
    check_read(path)


def test_missing_and_unknown(tmp_path):
    refused(tmp_path / "none.pt", "is not a file")
    path = tmp_path / "model.onnx"
    path.write_bytes(b"x")
    refused(path, "unknown suffix")


@pytest.mark.parametrize("fraction", [0.02, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["zip", "pickle", "safetensors"])
def test_truncated(kind, fraction, tmp_path):
    path = tmp_path / ("model.safetensors" if kind == "safetensors" else "model.pt")
    if kind == "safetensors":
        safetensors_torch.save_file(tensors(), path)
    else:
        torch.save(tensors(), path, _use_new_zipfile_serialization=kind == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    refused(path, "truncated|not a whole safetensors file")


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"\x89PNG\r\n\x1a\n" * 9, b"PK\x05\x06" + bytes(18), b"\x80garbage"]
)
def test_foreign(suffix, content, tmp_path):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    refused(path, "is not a|truncated or not")


@pytest.mark.parametrize("content", [[torch.zeros(2)], {"a": torch.zeros(2), "b": 3}, {}, torch.zeros(2)])
def test_not_named_tensors(content, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(content, path)
    refused(path, "name a checkpoint")


class Touches:
    """Pickles as a call that leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pickles_that_want_to_run_code(protocol, tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "model.pt"
    path.write_bytes(pickle.dumps({"model": {"weight": Touches(trace)}}, protocol=protocol))
    refused(path, "run code: refused" if protocol else "is not a PyTorch checkpoint")
    assert not trace.exists()


@pytest.mark.parametrize("new", [True, False], ids=["zip", "pickle"])
def test_torch_files_that_want_to_run_code(new, tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "model.bin"
    torch.save({"model": tensors(), "args": Touches(trace)}, path, _use_new_zipfile_serialization=new)
    refused(path, "run code: refused")
    assert not trace.exists()
    with pytest.raises(FileNotFoundError):
        trace.rmdir()


@pytest.mark.parametrize(
    ("package", "modules", "suffix"),
    [("torch", ["torch"], ".pt"), ("safetensors", ["safetensors", "safetensors.numpy"], ".safetensors")],
)
def test_packages_that_are_not_installed(package, modules, suffix, tmp_path, monkeypatch):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"x")
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install lantern-jax\[convert\]") as error:
        read_tensor_file(path)
    assert "\n" not in str(error.value)
