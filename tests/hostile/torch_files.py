"""Hostile files of ``torch.save``, for tests/hostile/files.py; they are made with PyTorch, and never read by it."""

import collections
import io
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.hostile.files import CONTROL, HostileFile, archive, damaged, table


def torch_files(seed: int) -> Iterator[HostileFile]:
    yield from _rare_tensors()
    yield from _described_tensors()
    yield from _pickles()
    for zipped in (True, False):
        good = _saved(_weights(), zipped)
        yield HostileFile(f"good, zipped {zipped}", ".pt", good, True)
        yield from damaged(good, ".pt", seed, 40)


def _weights() -> dict:
    import torch

    generator = torch.Generator().manual_seed(0)
    return {"weight": torch.randn(3, 4, generator=generator), "half": torch.ones(50, dtype=torch.bfloat16)}


def _saved(content: object, zipped: bool = True) -> bytes:
    import torch

    torch.save(content, buffer := io.BytesIO(), _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def _rare_tensors() -> Iterator[HostileFile]:
    """Yields tensors that PyTorch can save and that no checkpoint holds, and some that checkpoints do."""
    import torch

    ones = torch.ones(4, 4)
    makers: dict[str, Callable[[], object]] = {
        "sparse": ones.to_sparse, "meta of a terabyte": lambda: torch.empty(2**38, device="meta"),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "conjugated": lambda: torch.ones(4, dtype=torch.complex64).conj(),
        "quantized": lambda: torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8),
        "expanded to a terabyte": lambda: torch.ones(1).expand(2**38),
        "a storage": lambda: ones.untyped_storage(), "text": lambda: CONTROL * 1000, "a list": lambda: [ones, ones],
    }  # fmt: skip
    for name, make in makers.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield HostileFile(name, ".pt", _saved({"weight": make()}))
    odd = {
        "tensors for names": {ones: ones},
        "a module": torch.nn.Linear(2, 2),
        "its own wrapper": {"model": {}},
    }
    yield from table(".pt", {name: _saved(content) for name, content in odd.items()})
    whole = torch.arange(24.0).reshape(4, 6)
    old = {"sliced": whole[1:3, ::2], "a parameter": torch.nn.Parameter(whole)}
    new = {"eight bits": whole.to(torch.float8_e4m3fn), "sixteen bits": torch.ones(3, dtype=torch.uint16)}
    yield from table(".pt", {name: _saved({"weight": tensor}) for name, tensor in old.items()}, True)
    yield from table(".pt", {name: _saved({"weight": tensor}) for name, tensor in new.items()})
    yield from table(".pt", {f"older, {name}": _saved({"weight": old[name]}, False) for name in old}, True)
    beside = {"state_dict": {"weight": whole}, "optimizer": {0: {"step": 3}}, "size": whole.shape, "set": {1},
              "dtype": torch.float32, "device": torch.device("cpu")}  # fmt: skip
    yield HostileFile("things beside the weights", ".ckpt", _saved(beside), True)
    yield HostileFile("tied", ".bin", _saved({"a": whole, "b": whole}), True)


class _Storage(NamedTuple):
    kind: object
    key: object
    count: object


class _Tensor:
    """Pickles as PyTorch would write a tensor, with any numbers in it."""

    def __init__(self, storage, offset: object = 0, shape: object = (4,), strides: object = (1,), more=()):
        self.words = (storage, offset, shape, strides, False, collections.OrderedDict(), *more)

    def __reduce__(self):
        import torch

        return torch._utils._rebuild_tensor_v2, self.words


class _Writer(pickle.Pickler):
    def persistent_id(self, value):
        return ("storage", value.kind, value.key, "cpu", value.count) if isinstance(value, _Storage) else None


def _described(content: object, storage: bytes = bytes(16), method: int = zipfile.ZIP_STORED) -> bytes:
    return _torch_zip(_written(content), {"0": storage}, method)


def _written(content: object) -> bytes:
    _Writer(description := io.BytesIO(), protocol=2).dump(content)
    return description.getvalue()


def _torch_zip(description: bytes, storages: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    data = [(f"archive/data/{key}", content) for key, content in storages.items()]
    return archive([("archive/data.pkl", description), *data, ("archive/version", b"3\n")], method)


def _described_tensors() -> Iterator[HostileFile]:
    """Yields descriptions of tensors that their storages contradict."""
    import torch

    kind, far = torch.FloatStorage, 2**62
    four = _Storage(kind, "0", 4)
    odd = {
        "offset": _Tensor(four, 1), "negative offset": _Tensor(four, -1), "long": _Tensor(four, 0, (5,)),
        "endless": _Tensor(four, 0, (far, far), (1, 1)), "repeated": _Tensor(four, 0, (2**40,), (0,)),
        "far strides": _Tensor(four, 0, (2,), (far,)), "negative strides": _Tensor(four, 3, (4,), (-1,)),
        "shape of text": _Tensor(four, 0, ("4",)), "fewer strides": _Tensor(four, 0, (2, 2), (1,)),
        "no storage": _Tensor(None), "another storage": _Tensor(four._replace(key="1")),
        "large storage": _Tensor(four._replace(count=far)), "kind of text": _Tensor(four._replace(kind="Float")),
        "wide kind": _Tensor(four._replace(kind=torch.DoubleStorage)),
    }  # fmt: skip
    yield from table(".pt", {f"described: {name}": _described({"a": tensor}) for name, tensor in odd.items()})
    right = {"weight": _Tensor(four)}
    large = {"weight": _Tensor(_Storage(kind, "0", 2**25), 0, (2**25,))}
    yield from table(".pt", {
        "compressed": _described(right, method=zipfile.ZIP_DEFLATED),
        "a bomb": _described(large, bytes(2**27), zipfile.ZIP_DEFLATED),
    })  # fmt: skip
    yield HostileFile("described: right", ".pt", _described(right), True)


def _pickles() -> Iterator[HostileFile]:
    """Yields descriptions that call or blow up."""
    make = b"cposix\nmkdir\nX\x05\x00\x00\x00owned\x85R."
    codes = {
        "GLOBAL": b"\x80\x02" + make, "INST": b"\x80\x02(X\x05\x00\x00\x00ownediposix\nmkdir\n.",
        "STACK_GLOBAL with a dot": b"\x80\x04\x8c\x05torch\x8c\x0chub.download\x93\x8c\x05owned\x85R.",
        "getattr": b"\x80\x02c__builtin__\ngetattr\n.", "no STOP": b"\x80\x02}", "STOP alone": b"\x80\x02.",
        "a text of 4 GB": b"\x80\x02X\xff\xff\xff\xffabc.",
        "nested tuples": b"\x80\x02)" + b"\x85" * 900_000 + b".",
        "itself": b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.",
    }  # fmt: skip
    head = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001)]
    start = b"".join([*head, pickle.dumps({"little_endian": True}, 2)])
    for name, code in codes.items():
        yield HostileFile(f"pickle: {name}", ".pt", _torch_zip(code, {}))
        yield HostileFile(f"pickle: {name}, older", ".bin", start + code + pickle.dumps([], 2))
    weight, four = _written({"weight": _Tensor(_Storage(_float(), "0", 4))}), struct.pack("<q", 4)
    for name, keys, storages in (
        ("right", ["0"], four + bytes(16)), ("endless storage", ["0"], struct.pack("<q", 2**60) + bytes(16)),
        ("truncated storage", ["0"], four + bytes(15)), ("no storage", [], b""),
        ("keys of numbers", [0], four + bytes(16)),
    ):  # fmt: skip
        content = start + weight + pickle.dumps(keys, 2) + storages
        yield HostileFile(f"older: {name}", ".bin", content, name == "right")


def _float() -> object:
    import torch

    return torch.FloatStorage
