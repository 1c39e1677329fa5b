"""Hostile files of ``torch.save``, for tests/hostile/files.py; they are made with PyTorch, and never read by it."""

import collections
import io
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.hostile.files import CONTROL, HostileFile, archive, damaged, table, zip_tricks


def torch_files(seed: int) -> Iterator[HostileFile]:
    yield from _rare_tensors()
    yield from _described_tensors()
    yield from _pickles()
    yield from zip_tricks(_saved(_weights()), ".pt")
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
    """Yields tensors that PyTorch can save and that no checkpoint holds."""
    import torch

    ones = torch.ones(4, 4)
    makers: dict[str, Callable[[], object]] = {
        "sparse": ones.to_sparse, "sparse rows": ones.to_sparse_csr, "meta": lambda: torch.ones(4, device="meta"),
        "meta of a terabyte": lambda: torch.empty(2**38, device="meta"),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "conjugated": lambda: torch.ones(4, dtype=torch.complex64).conj(),
        "negated": lambda: torch.ones(4, dtype=torch.complex64).conj().imag,
        "complex": lambda: torch.ones(4, dtype=torch.complex64),
        "quantized": lambda: torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8),
        "expanded to a terabyte": lambda: torch.ones(1).expand(2**38),
        "expanded": lambda: torch.ones(4, 1).expand(4, 100), "overlapping": lambda: torch.ones(10).unfold(0, 5, 1),
        "a storage": lambda: ones.untyped_storage(), "bytes": lambda: b"weights", "text": lambda: CONTROL * 1000,
        "a number": lambda: 3.0, "nothing": lambda: None, "a list": lambda: [ones, ones],
        "a dict": lambda: {"weight": ones},
    }  # fmt: skip
    for name, make in makers.items():
        for zipped in (True, False):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    content = _saved({"weight": make()}, zipped)
                except (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError):
                    continue
            yield HostileFile(f"{name}, zipped {zipped}", ".pt", content)
    odd = {
        "bytes for names": {b"weight": ones}, "numbers for names": {3: ones}, "nothing for a name": {None: ones},
        "tensors for names": {ones: ones}, "a module": torch.nn.Linear(2, 2), "a set": {1, 2},
        "its own wrapper": {"model": {}},
        "names that steer": {CONTROL: 3, "n" * 1_000_000: 3} | {f"{CONTROL}{i}": 3 for i in range(1000)},
    }  # fmt: skip
    yield from table(".pt", {name: _saved(content) for name, content in odd.items()})
    whole = torch.arange(24.0).reshape(4, 6)
    old = {"sliced": whole[1:3, ::2], "a parameter": torch.nn.Parameter(whole)}
    new = {"eight bits": whole.to(torch.float8_e4m3fn), "sixteen bits": torch.ones(3, dtype=torch.uint16)}
    yield from table(".pt", {name: _saved({"weight": tensor}) for name, tensor in (old | new).items()}, True)
    yield from table(".pt", {f"older, {name}": _saved({"weight": old[name]}, False) for name in old}, True)
    yield HostileFile("shared often", ".pt", _saved({str(i): ones for i in range(200)}), None)
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
        "offset": _Tensor(four, 1), "far offset": _Tensor(four, far), "negative offset": _Tensor(four, -1),
        "fractional offset": _Tensor(four, 0.0), "long": _Tensor(four, 0, (5,)),
        "endless": _Tensor(four, 0, (far, far), (1, 1)), "repeated": _Tensor(four, 0, (2**40,), (0,)),
        "empty and endless": _Tensor(four, 0, (0, far), (1, 1)), "wide strides": _Tensor(four, 0, (2,), (4,)),
        "far strides": _Tensor(four, 0, (2,), (far,)), "negative strides": _Tensor(four, 3, (4,), (-1,)),
        "negative shape": _Tensor(four, 0, (-4,)), "shape of text": _Tensor(four, 0, ("4",)),
        "no shape": _Tensor(four, 0, None),
        "fewer strides": _Tensor(four, 0, (2, 2), (1,)), "many axes": _Tensor(four, 0, (1,) * 5000, (1,) * 5000),
        "no storage": _Tensor(None), "text for a storage": _Tensor("0"),
        "another storage": _Tensor(four._replace(key="1")),
        "large storage": _Tensor(four._replace(count=far)), "negative storage": _Tensor(four._replace(count=-4)),
        "storage of a number": _Tensor(four._replace(key=0)),
        "storage elsewhere": _Tensor(four._replace(key="../data.pkl")),
        "kind of text": _Tensor(four._replace(kind="Float")),
        "wide kind": _Tensor(four._replace(kind=torch.DoubleStorage)),
        "conjugated": _Tensor(four, more=({"conj": True},)),
    }  # fmt: skip
    yield from table(".pt", {f"described: {name}": _described({"a": tensor}) for name, tensor in odd.items()})
    right = {"weight": _Tensor(four)}
    large = {"weight": _Tensor(_Storage(kind, "0", 2**25), 0, (2**25,))}
    big = {f"{i}": _Tensor(_Storage(kind, "0", 2**18), 0, (2**18,)) for i in range(300)}
    yield from table(".pt", {
        "a storage without its head": _described(right).replace(b"PK\3\4", b"PK\3\5").replace(b"PK\3\5", b"PK\3\4", 1),
        "compressed": _described(right, method=zipfile.ZIP_DEFLATED),
        "a bomb": _described(large, bytes(2**27), zipfile.ZIP_DEFLATED),
        "much of one megabyte": _described(big, bytes(2**20)),
    })  # fmt: skip
    yield HostileFile("described: right", ".pt", _described(right), True)
    many = {f"{i}": _Tensor(four) for i in range(3000)}
    swapped = {"weight": _Tensor(_Storage(torch.LongStorage, "0", 2), 0, (2,)), "other": _Tensor(four)}
    shared = {"many tensors of one storage": _described(many), "one storage, two kinds": _described(swapped)}
    yield from table(".pt", shared, None)


def _pickles() -> Iterator[HostileFile]:
    """Yields descriptions that call, recurse or blow up."""
    make = b"cposix\nmkdir\nX\x05\x00\x00\x00owned\x85R."
    codes = {
        "GLOBAL": b"\x80\x02" + make,
        "GLOBAL of protocol 0": b"cposix\nmkdir\n(Vowned\ntR.",
        "INST": b"\x80\x02(X\x05\x00\x00\x00ownediposix\nmkdir\n.",
        "OBJ": b"\x80\x02(cposix\nmkdir\nX\x05\x00\x00\x00ownedo.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x05posix\x8c\x05mkdir\x93\x8c\x05owned\x85R.",
        "STACK_GLOBAL with a dot": b"\x80\x04\x8c\x05torch\x8c\x0chub.download\x93\x8c\x05owned\x85R.",
        "torch.hub": b"\x80\x02}X\x01\x00\x00\x00actorch.hub\nload\nX\x05\x00\x00\x00owned\x85Rs.",
        "getattr": b"\x80\x02c__builtin__\ngetattr\n.",
        "no STOP": b"\x80\x02}",
        "STOP alone": b"\x80\x02.",
        "a far memo": b"\x80\x02}r\xff\xff\xff\xff.",
        "a text of 4 GB": b"\x80\x02X\xff\xff\xff\xffabc.",
        "a frame of an exabyte": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x0f}.",
        "a long number": b"\x80\x02}\x8b" + struct.pack("<I", 2_000_000) + b"\x7f" * 2_000_000 + b"Ns.",
        "nested tuples": b"\x80\x02)" + b"\x85" * 900_000 + b".",
        "nested lists": b"\x80\x02" + b"]" * 400_000 + b"a" * 399_999 + b".",
        "a parameter of a name": b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_parameter\nq\x00h\x00\x85Rs.",
        "endless instructions": b"\x80\x02" + b"N0" * 4_000_000 + b".",
        "itself": b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.",
        "doubling": b"\x80\x02]q\x00" + b"".join(b"]q%c(h%ch%ce" % (i + 1, i, i) for i in range(40)) + b".",
    }  # fmt: skip
    head = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001)]
    start = b"".join([*head, pickle.dumps({"little_endian": True}, 2)])
    for name, code in codes.items():
        yield HostileFile(f"pickle: {name}", ".pt", _torch_zip(code, {}))
        yield HostileFile(f"pickle: {name}, older", ".bin", start + code + pickle.dumps([], 2))
    weight, four = _written({"weight": _Tensor(_Storage(_float(), "0", 4))}), struct.pack("<q", 4)
    for name, keys, storages in (
        ("right", ["0"], four + bytes(16)), ("endless storage", ["0"], struct.pack("<q", 2**60) + bytes(16)),
        ("negative storage", ["0"], struct.pack("<q", -4) + bytes(16)),
        ("truncated storage", ["0"], four + bytes(15)), ("no storage", [], b""),
        ("another storage", ["1"], four + bytes(16)), ("keys of numbers", [0], four + bytes(16)),
        ("a storage a million times", ["0"] * 900_000, four + bytes(16)),
    ):  # fmt: skip
        content = start + weight + pickle.dumps(keys, 2) + storages
        yield HostileFile(f"older: {name}", ".bin", content, name == "right")
    other = b"".join([*head, pickle.dumps({"little_endian": False}, 2)])
    yield HostileFile("older: another order of bytes", ".bin", other + weight)


def _float() -> object:
    import torch

    return torch.FloatStorage
