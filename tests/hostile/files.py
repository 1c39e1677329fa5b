"""Files that a stranger may hand over: damaged ones, bombs, and such that want to run code; all from a seed.

Each generator yields ``HostileFile``s of at most a few megabytes. Files that must be refused and files that must be
read say so; of a random change nobody knows.
"""

import io
import json
import os
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lantern_jax.decoding.tree import load_tree
from lantern_jax.pictures.images import open_picture, square
from lantern_jax.sets.sources import read_pictures as pictures_of
from lantern_jax.tensors.tensor_files import open_tensors
from lantern_jax.text.encoded import load_encoded
from lantern_jax.text.prompt_files import read_prompts

CONTROL = "\x1b]0;owned\x07\x1b[2J\r\n"


class HostileFile(NamedTuple):
    """What is wrong with a file, how its name ends, its bytes, and whether it must be read (None: either)."""

    name: str
    suffix: str
    content: bytes
    read: bool | None = False


def everything(seed: int) -> Iterator[tuple[str, HostileFile]]:
    """(kind, file) of all generators."""
    for kind, generator in KINDS.items():
        for file in generator(seed):
            yield kind, file


def safetensors_files(seed: int) -> Iterator[HostileFile]:
    """Safetensors files."""
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    good = _safetensors({"weight": entry, "half": entry | {"data_offsets": [16, 32]}}, bytes(32))
    yield HostileFile("good", ".safetensors", good, True)
    yield from damaged(good, ".safetensors", seed, 40)

    def file(name: str, header: object, body: bytes = bytes(16), read: bool = False) -> HostileFile:
        return HostileFile(name, ".safetensors", _safetensors(header, body), read)

    for shape in ([2**62], [2**31, 2**31, 4], [-4], [4.0], [True], "4", None, [[4]], [0, 2**62], [1] * 100):
        yield file(f"shape {str(shape)[:40]}", {"weight": entry | {"shape": shape}})
    for offsets in (
        [0, 2**63],
        [2**63, 2**63],
        [-16, 0],
        [16, 0],
        [0],
        [0, 16, 32],
        [0.0, 16.0],
        "ab",
        [8, 24],
    ):
        yield file(f"offsets {str(offsets)[:40]}", {"weight": entry | {"data_offsets": offsets}})
    for dtype in ("F4", "float32", "f32", 4, None, ["F32"], "F32" * 100_000, "I32" + CONTROL):
        yield file(f"dtype {str(dtype)[:20]!r}", {"weight": entry | {"dtype": dtype}})
    for name in ("", CONTROL, "n" * 1_000_000, "\ud800", "../../etc", "__metadata__"):
        yield file(f"name {name[:10]!r}", {name: entry | {"dtype": "F5"}})
    yield file("name that steers a terminal, read", {CONTROL: entry}, read=True)
    yield file("overlapping", {"a": entry, "b": entry})
    yield file(
        "swapped offsets", {"a": entry | {"data_offsets": [16, 0]}, "b": entry | {"data_offsets": [32, 16]}}
    )
    yield file("twice the same name", b'{"a":%s,"a":%s}' % ((json.dumps(entry).encode(),) * 2))
    yield file("nested", b'{"a":' + b"[" * 1_000_000)
    yield file("nested objects", b'{"a":' * 200_000)
    yield file(
        "nested metadata", {"__metadata__": json.loads("[" * 500 + "]" * 500), "a": entry | {"shape": [5]}}
    )
    yield file(
        "many empty tensors",
        b"{%s}"
        % b",".join(b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(200_000)),
        b"",
    )
    yield file("much metadata", b'{"__metadata__":[' + b"[]," * 4_000_000 + b"1]}")
    yield file("an endless number", b'{"a":' + b"9" * 1_000_000 + b"}")
    yield file("not a number", b'{"a": NaN}')
    for length in (0, 2**63, 2**64 - 1, 2**40, 100_000_000):
        yield HostileFile(
            f"header of {length}", ".safetensors", length.to_bytes(8, "little") + good[8:], False
        )


def index_files(seed: int) -> Iterator[HostileFile]:
    """Indices of shards, of which there are none."""
    suffix = ".safetensors.index.json"
    good = json.dumps({"metadata": {}, "weight_map": {"weight": "model-00001-of-00001.safetensors"}}).encode()
    yield from _json_files(suffix)
    yield from damaged(good, suffix, seed, 10, read=False)
    for shard in ("../a.safetensors", "/dev/zero", "", ".", "..", "a\0b.safetensors", CONTROL, "s" * 100_000, 3, None,
                  ["a"], {"a": 1}):  # fmt: skip
        yield HostileFile(
            f"shard {str(shard)[:20]!r}", suffix, json.dumps({"weight_map": {"a": shard}}).encode()
        )
    many = {str(i): f"{i}.safetensors" for i in range(100_000)}
    yield HostileFile("many shards", suffix, json.dumps({"weight_map": many}).encode())


def archives(seed: int) -> Iterator[HostileFile]:
    """Encoded prompts in an .npz; the good ones are for the demo's labels [n, 4]."""
    good = encoded_prompts(["a lake", "a foggy forest"])
    yield HostileFile("good", ".npz", good, True)
    yield from damaged(good, ".npz", seed, 40)
    yield from zip_tricks(good, ".npz")
    for prompts in (
        ["a lake", 3],
        3,
        "ab",
        [None, None],
        {"a": 1, "b": 2},
        [["a"], ["b"]],
        [True, False],
        [],
    ):
        yield HostileFile(f"prompts {prompts}", ".npz", encoded_prompts(prompts))
    for record in (b"[" * 9_000, b"3", b"null", b"", b"\xff", b'{"format": NaN}'):
        content = record.decode("latin1")
        yield HostileFile(f"record {content[:10]!r}", ".npz", zipped({"record": npy(np.array(content))}))
    record = npy(np.array(_record(["a", "b"])))
    objects = io.BytesIO()
    np.save(objects, np.array([Runs(), 3], dtype=object), allow_pickle=True)
    odd = {
        "objects": objects.getvalue(),
        "text": npy(np.array(["a", "b"])),
        "structured": npy(np.zeros(2, [("a", "<i4"), ("b", "<f8")])),
        "complex": npy(np.zeros((2, 4), np.complex64)),
        "dates": npy(np.zeros((2, 4), "datetime64[s]")),
        "a terabyte": npy_header("<i4", (2, 2**38)),
        "more than it declares": npy_header("<i4", (2, 4), bytes(1000)),
        "negative": npy_header("<i4", (-2, 4), bytes(32)),
        "overflow": npy_header("<i4", (2**62, 2**62), bytes(32)),
        "empty and endless": npy_header("<i4", (0, 2**62)),
        "huge letters": npy_header("<U536870911", (0, 2)),
        "nested header": _raw_header("(" * 8_000),
        "negated header": _raw_header("-" * 8_000 + "1"),
        "calling header": _raw_header("__import__('os').mkdir('owned')"),
        "long header": _raw_header("'" + "x" * 60_000 + "'"),
        "another version": b"\x93NUMPY\x09\x00" + bytes(100),
        "no header": b"PK\3\4" * 10,
        "a deflated bomb": None,
    }
    for name, array in odd.items():
        if array is None:
            content = zip_bomb({"record.npy": record}, "labels.npy", npy_header("<i4", (2, 2**25)), 2**28)
        else:
            content = zipped({"record": record, "labels": array})
        yield HostileFile(name, ".npz", content)
    yield HostileFile("packed without a mask", ".npz", encoded_prompts(["a", "b"], packed=["labels"]))
    yield HostileFile("bfloat16 of other bits", ".npz", encoded_prompts(["a", "b"], bfloat16=["labels"]))
    yield HostileFile("another model's kind", ".npz", encoded_prompts(["a", "b"], kind="tokens"), None)
    many = zipfile.ZipFile(buffer := io.BytesIO(), "w")
    for i in range(20_000):
        many.writestr(f"{i}.npy", b"")
    many.close()
    yield HostileFile("many entries", ".npz", buffer.getvalue())


def picture_arrays(seed: int) -> Iterator[HostileFile]:
    """Pictures as "arr_0" of an .npz, as references of FID have them."""
    pictures = np.random.default_rng(seed).integers(0, 255, (3, 4, 4, 3), np.uint8)
    good = zipped({"arr_0": npy(pictures)})
    yield HostileFile("good", ".npz", good, True)
    yield from damaged(good, ".npz", seed, 21)
    yield from zip_tricks(good, ".npz")
    for name, shape in {
        "no pictures": (0, 4, 4, 3), "a terabyte": (1, 2**20, 2**20, 3), "many": (2**62, 1, 1, 3),
        "without pixels": (2**40, 0, 0, 3), "negative": (3, -4, 4, 3), "one": (4, 4, 3), "grey": (3, 4, 4, 1),
    }.items():  # fmt: skip
        yield HostileFile(name, ".npz", zipped({"arr_0": npy_header("|u1", shape, pictures.tobytes())}))
    yield HostileFile("of numbers", ".npz", zipped({"arr_0": npy(pictures.astype(np.float32))}))
    yield HostileFile("nested header", ".npz", zipped({"arr_0": _raw_header("(" * 8_000)}))


def trees(seed: int) -> Iterator[HostileFile]:
    """Trees of child-rank paths."""
    good = json.dumps([[0], [1], [0, 0]]).encode()
    yield HostileFile("good", ".json", good, True)
    yield from _json_files(".json")
    yield from damaged(good, ".json", seed, 10, read=None)
    chain = [[0] * depth for depth in range(1, 66)]
    yield HostileFile("as deep as can be", ".json", json.dumps(chain[:-1]).encode(), True)
    odd = {
        "too deep": chain,
        "as deep as none": [[0] * depth for depth in range(1, 257)],
        "too many": [[rank] for rank in range(4097)],
        "a long path": [[0] * 200_000],
        "no parent": [[0, 0]],
        "no parent of a long path": [[7] * 200],
        "large rank": [[2**31]],
        "endless rank": [[10**4000]],
        "negative": [[-1]],
        "fraction": [[0.0]],
        "truth": [[True]],
        "words": ["00"],
        "text": [[CONTROL * 1000]],
        "objects": [{"0": 1}],
        "an object": {"0": [0]},
        "nothing in it": [[]],
        "twice": [[0], [0]],
        "a number": 3,
        "nothing": None,
    }
    for name, tree in odd.items():
        # The digits of an endless number are more than Python converts.
        content = "[[" + "9" * 10_000 + "]]" if name == "endless rank" else json.dumps(tree)
        yield HostileFile(name, ".json", content.encode())
    yield HostileFile("two megabytes", ".json", b"[[0]]" + b" " * 2_000_000)


def prompt_lists(seed: int) -> Iterator[HostileFile]:
    """Lists of prompts: text, tables and captions."""
    yield HostileFile("good", ".txt", b"a lake\na foggy forest\n", True)
    for name, content in {
        "nothing": b"",
        "an empty line": b"a lake\n\na forest\n",
        "zero bytes": bytes(1000),
        "zero byte": b"a lake\0\n",
        "another encoding": "ein grüner See".encode("latin1"),
        "UTF-16": "a lake".encode("utf-16"),
        "a surrogate": b"\xed\xa0\x80 lake",
        "a picture": b"\x89PNG\r\n\x1a\n" * 100,
    }.items():
        yield HostileFile(name, ".txt", content)
    for name, content in {"steering": f"a lake {CONTROL[:-2]}", "one long line": "lake " * 400_000}.items():
        yield HostileFile(name, ".txt", content.encode(), None)
    yield from _json_files(".json")
    annotations = {
        "no list": {"annotations": {"a": 1}},
        "no captions": {"annotations": [{"image_id": 1}]},
        "a number": {"annotations": [{"image_id": 1, "caption": 3}]},
        "a long list": {"annotations": [{"image_id": 1, "caption": ["x" * 50] * 10_000}]},
        "empty": {"annotations": []},
    }
    for name, content in annotations.items():
        yield HostileFile(name, ".json", json.dumps(content).encode())
    yield HostileFile("a table without its end", ".tsv", b'a\tb\n"x\t' + b"y" * 300_000)
    yield HostileFile("a table of zero bytes", ".tsv", bytes(100))
    yield from damaged(
        b'{"annotations": [{"image_id": 1, "caption": "a lake"}]}', ".json", seed, 10, read=None
    )


def pictures(seed: int) -> Iterator[HostileFile]:
    """Pictures to go on with or to measure."""
    from PIL import Image

    image = Image.fromarray(np.random.default_rng(seed).integers(0, 255, (32, 32, 3), np.uint8))
    for kind, suffix in (("PNG", ".png"), ("JPEG", ".jpg"), ("WEBP", ".webp")):
        image.save(buffer := io.BytesIO(), kind)
        yield HostileFile(f"good {kind}", suffix, buffer.getvalue(), True)
        yield from damaged(buffer.getvalue(), suffix, seed, 12, read=None)
    for side in (12_000, 100_000, 2**31 - 1):
        yield HostileFile(f"PNG of {side} pixels a side", ".png", _png(side))
    Image.new("L", (9_700, 9_700)).save(buffer := io.BytesIO(), "PNG")
    yield HostileFile("PNG a little too large", ".png", buffer.getvalue())
    text = b"prompt\0\0" + zlib.compress(bytes(64 * 2**20))
    yield HostileFile("PNG with a compressed text", ".png", _png(8, _chunk(b"zTXt", text)), None)
    number = b"number\0" + b"9" * 100_000
    yield HostileFile("PNG with an endless number", ".png", _png(8, _chunk(b"tEXt", number)), None)
    yield HostileFile(
        "PostScript", ".png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    )
    exif = b"Exif\0\0MM\0*" + struct.pack(">I", 8) + b"\xff\xff" + bytes(range(256)) * 8
    image.save(buffer := io.BytesIO(), "JPEG", exif=exif)
    yield HostileFile("JPEG with broken notes", ".jpg", buffer.getvalue(), None)


def torch_files(seed: int) -> Iterator[HostileFile]:
    """Of ``torch.save``; needs PyTorch."""
    from tests.hostile import torch_files

    return torch_files.torch_files(seed)


def read_tensors(path: Path) -> None:
    for tensor in open_tensors(path).values():
        np.asarray(tensor)


def read_pictures(path: Path) -> None:
    for _ in pictures_of(path):
        pass


def read_picture(path: Path) -> None:
    square(open_picture(path), 16)


KINDS: dict[str, Callable[[int], Iterator[HostileFile]]] = {
    "torch": torch_files,
    "safetensors": safetensors_files,
    "index": index_files,
    "archive": archives,
    "pictures": picture_arrays,
    "tree": trees,
    "prompts": prompt_lists,
    "picture": pictures,
}
# What reads a kind of file, as the commands do.
READERS: dict[str, Callable[[Path], object]] = {
    "torch": read_tensors,
    "safetensors": read_tensors,
    "index": read_tensors,
    "archive": load_encoded,
    "pictures": read_pictures,
    "tree": load_tree,
    "prompts": read_prompts,
    "picture": read_picture,
}


class Runs:
    """Pickles as a call that would leave a folder behind."""

    def __reduce__(self):
        return os.mkdir, ("owned",)


def damaged(
    good: bytes, suffix: str, seed: int, count: int, read: bool | None = None
) -> Iterator[HostileFile]:
    """Truncated, bits flipped, pages zeroed, parts swapped, doubled or filled with noise."""
    source = random.Random(f"{seed}{suffix}{len(good)}")
    for number in range(count):
        changed, kind = bytearray(good), number % 7
        at, other = source.randrange(len(good)), source.randrange(len(good))
        size = source.choice((1, 4, 8, 64, 512))
        if kind == 0:
            del changed[at:]
        elif kind in (1, 2):
            for _ in range(source.choice((1, 3, 20))):
                changed[source.randrange(len(good))] ^= 1 << source.randrange(8)
        elif kind == 3:
            changed[at : at + size] = bytes(len(changed[at : at + size]))
        elif kind == 4:
            changed[at : at + size], changed[other : other + size] = (
                good[other : other + size],
                good[at : at + size],
            )
        elif kind == 5:
            changed[at:at] = good[other : other + size]
        else:
            changed[at : at + size] = source.randbytes(len(changed[at : at + size]))
        what = ("truncated", "bits", "bits", "zeros", "swapped", "doubled", "noise")[kind]
        yield HostileFile(f"{what} {number} at {at} of {len(good)}", suffix, bytes(changed), read)


def zip_tricks(good: bytes, suffix: str) -> Iterator[HostileFile]:
    """Archives that lie about their entries."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    first = next(iter(entries))
    yield HostileFile("a bomb of zeros", suffix, zip_bomb(entries, "bomb", b"", 2**27))
    yield HostileFile("a bomb in place of an entry", suffix, zip_bomb(
        {name: content for name, content in entries.items() if name != first}, first, b"", 2**27))  # fmt: skip
    for name, at, value in (
        ("declared size", 24, 2**32 - 2),
        ("compressed size", 20, 2**32 - 2),
        ("both sizes", None, 2**31),
        ("place", 42, 2**32 - 2),
        ("place of another", 42, 0),
        ("method", 10, 99),
        ("flags", 8, 1),
        ("zip64 sizes", None, 2**32 - 1),
    ):
        changed = bytearray(good)
        start = good.rfind(b"PK\1\2")
        if at is None:
            changed[start + 20 : start + 28] = struct.pack("<II", value, value)
        else:
            size = 2 if at in (8, 10) else 4
            changed[start + at : start + at + size] = value.to_bytes(size, "little")
        yield HostileFile(
            f"a wrong {name}", suffix, bytes(changed), None if name.startswith("place") else False
        )
    end = good.rfind(b"PK\5\6")
    for name, at, size, value in (
        ("endless directory", 12, 4, 2**32 - 2),
        ("many entries", 10, 2, 2**16 - 2),
        ("far directory", 16, 4, 2**32 - 2),
        ("comment", 20, 2, 2**16 - 1),
    ):
        changed = bytearray(good)
        changed[end + at : end + at + size] = value.to_bytes(size, "little")
        yield HostileFile(f"a wrong {name}", suffix, bytes(changed), None)
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2):
                for name, content in entries.items():
                    archive.writestr(name, content)
    yield HostileFile("every entry twice", suffix, buffer.getvalue())
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        archive.writestr(CONTROL * 100, b"\x93NUMPY")
    yield HostileFile("a name that steers", suffix, buffer.getvalue(), None)
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(buffer := io.BytesIO(), "w", method) as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
        yield HostileFile(f"method {method}", suffix, buffer.getvalue())
    yield HostileFile("nothing in it", suffix, b"PK\5\6" + bytes(18))


def zip_bomb(entries: dict[str, bytes], name: str, start: bytes, size: int) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for other, content in entries.items():
            archive.writestr(other, content)
        with archive.open(name, "w", force_zip64=True) as file:
            file.write(start)
            for _ in range(size // 2**20):
                file.write(bytes(2**20))
    return buffer.getvalue()


def _safetensors(header: object, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def encoded_prompts(prompts: object, **record: object) -> bytes:
    """An .npz as ``save_encoded`` writes it, with anything in its record."""
    labels = np.zeros((2, 4), np.int32)
    return zipped({"record": npy(np.array(_record(prompts, **record))), "labels": npy(labels)})


def _record(prompts: object, **more: object) -> str:
    whole = {
        "format": "lantern_jax encoded prompts 2",
        "kind": "labels",
        "prompts": prompts,
        "bfloat16": [],
        "packed": [],
    }
    return json.dumps(whole | more)


def zipped(arrays: dict[str, bytes]) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    np.save(buffer := io.BytesIO(), array)
    return buffer.getvalue()


def npy_header(dtype: str, shape: tuple[int, ...], body: bytes = b"") -> bytes:
    return _raw_header(repr({"descr": dtype, "fortran_order": False, "shape": shape})) + body


def _raw_header(text: str) -> bytes:
    content = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(content)) + content


def _json_files(suffix: str) -> Iterator[HostileFile]:
    for name, content in {
        "nothing": b"",
        "half": b'{"a": ',
        "nested lists": b"[" * 300_000,
        "closed nested lists": b"[" * 100_000 + b"]" * 100_000,
        "nested a little": b"[" * 500 + b"]" * 500,
        "nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "a number": b"3",
        "an endless number": b"9" * 500_000,
        "not a number": b"NaN",
        "text": b'"' + b"x" * 500_000 + b'"',
        "no text": b"\xff\xfe\x00",
        "zero bytes": bytes(1000),
        "many lists": b"[" + b"[]," * 300_000 + b"[]]",
    }.items():
        yield HostileFile(f"JSON: {name}", suffix, content)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(side: int, more: bytes = b"") -> bytes:
    rows = zlib.compress(bytes((1 + side) * side)) if side < 100 else zlib.compress(bytes(2**20))
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + more + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")
