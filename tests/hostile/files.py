"""Files that a stranger may hand over: damaged ones, bombs, and ones that try to run code; all made from a seed.

Each generator yields ``HostileFile``s of at most a few megabytes. Files that must be refused and files that must be
read say so; a random change may be either.
"""

import io
import json
import os
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lantern_jax.apps.display.picture_files import open_picture
from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.pictures.images import fitted
from lantern_jax.text.encoded import load_encoded

CONTROL = "\x1b]0;owned\x07\x1b[2J\r\n"


class HostileFile(NamedTuple):
    """What is wrong with a file, how its name ends, its bytes, and whether it must be read (None: either)."""

    name: str
    suffix: str
    content: bytes
    read: bool | None = False


class Runs:
    """Pickles as a call that would leave a folder behind."""

    def __reduce__(self):
        return os.mkdir, ("owned",)


def as_bytes(content: object) -> bytes:
    if isinstance(content, bytes):
        return content
    return (content if isinstance(content, str) else json.dumps(content)).encode("utf-8", "surrogatepass")


def table(suffix: str, contents: Mapping[str, object], read: bool | None = False) -> Iterator[HostileFile]:
    for name, content in contents.items():
        yield HostileFile(name, suffix, as_bytes(content), read)


def damage(good: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Returns what was done to the bytes, and the changed bytes."""
    what = chance.choice(("cut", "bits", "zeros", "swapped", "doubled", "noise"))
    size = chance.choice((1, 4, 8, 64, 512, 4096))
    at, other = chance.randrange(len(good)), chance.randrange(len(good))
    here, there = slice(at, at + size), slice(other, other + size)
    changed = bytearray(good)
    if what == "cut":
        del changed[at:]
    elif what == "bits":
        for _ in range(chance.choice((1, 3, 20))):
            changed[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
    elif what == "swapped":
        changed[here], changed[there] = good[there], good[here]
    elif what == "doubled":
        changed[at:at] = good[there]
    else:
        length = len(changed[here])
        changed[here] = bytes(length) if what == "zeros" else chance.randbytes(length)
    return f"{what} at {at} of {len(good)}", bytes(changed)


def damaged(good: bytes, suffix: str, seed: int, count: int, read: bool | None = None):
    chance = random.Random(f"{seed}{suffix}{len(good)}")
    for number in range(count):
        what, content = damage(good, chance)
        yield HostileFile(f"{number}: {what}", suffix, content, read)


def safetensors(header: object, body: bytes = bytes(16)) -> bytes:
    text = as_bytes(header)
    return len(text).to_bytes(8, "little") + text + body


def safetensors_files(seed: int) -> Iterator[HostileFile]:
    suffix, entry = ".safetensors", {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    good = safetensors({"weight": entry, "half": entry | {"data_offsets": [16, 32]}}, bytes(32))
    yield HostileFile("good", suffix, good, True)
    yield from damaged(good, suffix, seed, 40)
    odd = {
        "shape": ([2**62], [-4], [4.0], "4", [1] * 100), "dtype": ("F4", 4, "F32" * 100_000, "I32" + CONTROL),
        "data_offsets": ([0, 2**63], [-16, 0], [16, 0], [0], [8, 24]),
    }  # fmt: skip
    pairs = [(field, value) for field, values in odd.items() for value in values]
    headers = {f"{field} {str(value)[:40]!r}": {"weight": entry | {field: value}} for field, value in pairs}
    headers |= {
        "swapped offsets": {"a": entry | {"data_offsets": [16, 0]}, "b": entry | {"data_offsets": [32, 16]}},
        "nested objects": b'{"a":' * 200_000,
        "much metadata": b'{"__metadata__":[' + b"[]," * 4_000_000 + b"1]}",
    }
    yield from table(suffix, {name: safetensors(header) for name, header in headers.items()})
    for length in (0, 2**64 - 1, 100_000_000):
        yield HostileFile(f"header of {length}", suffix, length.to_bytes(8, "little") + good[8:])
    yield HostileFile("name that steers a terminal, read", suffix, safetensors({CONTROL: entry}), True)


def archives(seed: int) -> Iterator[HostileFile]:
    """Yields encoded prompts in an .npz; the good ones are for the labels of landscapes, [n, 8]."""
    good = encoded_prompts(["a lake", "a foggy forest"])
    yield HostileFile("good", ".npz", good, True)
    yield from damaged(good, ".npz", seed, 40)
    yield from zip_tricks(good, ".npz")
    odd = (["a lake", 3], "ab", {"a": 1, "b": 2}, [])
    yield from table(".npz", {f"prompts {prompts}": encoded_prompts(prompts) for prompts in odd})
    record = npy(np.array(_record(["a", "b"])))
    objects = io.BytesIO()
    np.save(objects, np.array([Runs(), 3], dtype=object), allow_pickle=True)
    labels = {
        "objects": objects.getvalue(), "text": npy(np.array(["a", "b"])),
        "a terabyte": npy_header("<i4", (2, 2**38)),
        "negative": npy_header("<i4", (-2, 4), bytes(32)),
        "calling header": _raw_header("__import__('os').mkdir('owned')"),
        "another version": b"\x93NUMPY\x09\x00" + bytes(100),
    }  # fmt: skip
    for name, array in labels.items():
        yield HostileFile(name, ".npz", zipped({"record": record, "labels": array}))


def pictures(seed: int) -> Iterator[HostileFile]:
    from PIL import Image

    def saved(image: Image.Image, kind: str, **options: object) -> bytes:
        image.save(buffer := io.BytesIO(), kind, **options)
        return buffer.getvalue()

    image = Image.fromarray(np.random.default_rng(seed).integers(0, 255, (32, 32, 3), np.uint8))
    for kind, suffix in (("PNG", ".png"), ("JPEG", ".jpg"), ("WEBP", ".webp")):
        yield HostileFile(f"good {kind}", suffix, saved(image, kind), True)
        yield from damaged(saved(image, kind), suffix, seed, 12)
    sides = {f"PNG of {side} pixels a side": _png(side) for side in (12_000, 100_000, 2**31 - 1)}
    yield from table(".png", sides | {
        "PNG a little too large": saved(Image.new("L", (9_700, 9_700)), "PNG"),
        "PostScript": "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
    })  # fmt: skip
    text = b"prompt\0\0" + zlib.compress(bytes(64 * 2**20))
    yield HostileFile("PNG with a compressed text", ".png", _png(8, _chunk(b"zTXt", text)), None)
    number = b"number\0" + b"9" * 100_000
    yield HostileFile("PNG with an endless number", ".png", _png(8, _chunk(b"tEXt", number)), None)
    exif = b"Exif\0\0MM\0*" + struct.pack(">I", 8) + b"\xff\xff" + bytes(range(256)) * 8
    yield HostileFile("JPEG with broken notes", ".jpg", saved(image, "JPEG", exif=exif), None)


def torch_files(seed: int) -> Iterator[HostileFile]:
    from tests.hostile import torch_files

    return torch_files.torch_files(seed)


def read_tensors(path: Path) -> list[np.ndarray]:
    return [np.asarray(tensor) for tensor in open_tensors(path).values()]


# The generator of each kind of file, and its reader, as commands use it.
KINDS: dict[str, Callable[[int], Iterator[HostileFile]]] = {
    "torch": torch_files, "safetensors": safetensors_files, "archive": archives, "picture": pictures,
}  # fmt: skip
READERS: dict[str, Callable[[Path], object]] = {
    "torch": read_tensors, "safetensors": read_tensors, "archive": load_encoded,
    "picture": lambda path: fitted(open_picture(path), 16, 16),
}  # fmt: skip


def archive(entries: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """Returns a zip archive; names may be repeated."""
    level = 1 if method == zipfile.ZIP_DEFLATED else None
    new = zipfile.ZipFile(buffer := io.BytesIO(), "w", method, compresslevel=level)
    with new as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in entries:
            file.writestr(name, content)
    return buffer.getvalue()


def zip_tricks(good: bytes, suffix: str) -> Iterator[HostileFile]:
    """Yields archives that lie about their entries."""
    with zipfile.ZipFile(io.BytesIO(good)) as opened:
        entries = {name: opened.read(name) for name in opened.namelist()}
    yield HostileFile("a bomb of zeros", suffix, zip_bomb(entries, "bomb", b"", 2**27))
    # Numbers in the directory's last entry and at its end: where, how many bytes, which number.
    for name, mark, at, size, value, read in (
        ("declared size", b"PK\1\2", 24, 4, 2**32 - 2, None), ("method", b"PK\1\2", 10, 2, 99, False),
        ("set of flags", b"PK\1\2", 8, 2, 1, False), ("place", b"PK\1\2", 42, 4, 2**32 - 2, None),
        ("endless directory", b"PK\5\6", 12, 4, 2**32 - 2, None), ("comment", b"PK\5\6", 20, 2, 2**16 - 1, None),
    ):  # fmt: skip
        start = good.rfind(mark) + at
        changed = good[:start] + value.to_bytes(size, "little") + good[start + size :]
        yield HostileFile(f"a wrong {name}", suffix, changed, read)


def zip_bomb(entries: Mapping[str, bytes], name: str, start: bytes, size: int) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for other, content in entries.items():
            archive.writestr(other, content)
        with archive.open(name, "w", force_zip64=True) as file:
            file.write(start)
            for _ in range(size // 2**20):
                file.write(bytes(2**20))
    return buffer.getvalue()


def encoded_prompts(prompts: object, **record: object) -> bytes:
    """Returns an .npz as ``save_encoded`` writes it, with anything in its record."""
    labels = np.zeros((2, LANDSCAPES.num_attributes), np.int32)
    return zipped({"record": npy(np.array(_record(prompts, **record))), "labels": npy(labels)})


def _record(prompts: object, **more: object) -> str:
    whole = {"format": "lantern_jax encoded prompts 2", "kind": "labels", "bfloat16": [], "packed": []}
    return json.dumps(whole | {"prompts": prompts} | more)


def zipped(arrays: Mapping[str, bytes]) -> bytes:
    return archive((f"{name}.npy", content) for name, content in arrays.items())


def npy(array: np.ndarray) -> bytes:
    np.save(buffer := io.BytesIO(), array)
    return buffer.getvalue()


def npy_header(dtype: str, shape: tuple[int, ...], body: bytes = b"") -> bytes:
    return _raw_header(repr({"descr": dtype, "fortran_order": False, "shape": shape})) + body


def _raw_header(text: str) -> bytes:
    content = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(side: int, more: bytes = b"") -> bytes:
    rows = zlib.compress(bytes((1 + side) * side)) if side < 100 else zlib.compress(bytes(2**20))
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + more + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")
