"""Checkpoints of several files as somebody may send them who wants to deceive: indices, shards and headers that lie.

Sizes and checksums in their configs are right, for whoever changes a file can compute them.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from lantern_jax.checkpoints import arrays
from lantern_jax.checkpoints.store import Checkpoint, save
from lantern_jax.tensors import checksums
from tests.hostile.files import CONTROL, index_files, safetensors_files

INDEX = "model.safetensors.index.json"
# What is wrong with an entry of a header, beside what its values may be.
_ODD = (0, 1, 7, -1, 2**31, 2**62, 2**64, 0.5, True, None, "4", [], [4], {}, CONTROL)
# Names that a config may list.
NAMES = (
    "../out.safetensors", "/etc/hostname", "config.json", "model.pt", "model.safetensors/../config.json", "text/..",
    "text/" + "è" * 255, "text/a/b", "text/\ud800", f"text/{CONTROL}", "model-1-of-2.safetensors", "", ".", "text/",
    "text_encoder.safetensors", "model-00001-of-00001.safetensors", "model.safetensors",
)  # fmt: skip


def save_sharded(folder: Path, checkpoint: Checkpoint) -> Path:
    """Saves a checkpoint whose arrays fill several files, small as they are."""
    with mock.patch.object(arrays.write_arrays, "__defaults__", (lambda _: None, 20_000)):
        return save(folder, checkpoint)


def replace(folder: Path, name: str, content: bytes | None) -> None:
    """Writes one file of a checkpoint anew, or forgets it, and puts the config right."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if content is None:
        del config["files"][name], config["checksums"][name]
    else:
        (folder / name).write_bytes(content)
        config["files"][name] = len(content)
        config["checksums"][name] = checksums.file_checksum(folder / name)
    config["checksums"].pop("config.json", None)
    path.write_text(json.dumps(config))


def hostile_folders(folder: Path, seed: int) -> Iterator[str]:
    """Changes a sharded checkpoint, yields what was done, and puts it right again, many times."""
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for what, changes in _cases(folder, random.Random(seed), seed):
        for name, content in changes.items():
            if name in NAMES and not isinstance(content, bytes):
                _list(folder, name)
            else:
                replace(folder, name, content)
        yield what
        for path in set(folder.iterdir()) - set(whole):
            path.unlink()
        for path, content in whole.items():
            path.write_bytes(content)


def _cases(
    folder: Path, chance: random.Random, seed: int
) -> Iterator[tuple[str, dict[str, bytes | int | None]]]:
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    shards = sorted(set(places.values()))
    content = {name: (folder / name).read_bytes() for name in shards}
    for name in (INDEX, *shards):
        yield f"{name} is not listed", {name: None}
    for name in NAMES:
        yield f"{name[:40]!r} is listed", {name: 0}
    yield (
        "a shard too many",
        {f"model-{len(shards) + 1:05}-of-{len(shards):05}.safetensors": content[shards[0]]},
    )
    yield "one file beside shards", {"model.safetensors": content[shards[0]]}
    yield "a shard twice", {shards[1]: content[shards[0]]}
    for tensor in chance.sample(sorted(places), 5):
        for to in (
            *chance.sample(shards, 2),
            "model.safetensors",
            "config.json",
            "/dev/zero",
            f"../{shards[0]}",
        ):
            changed = {"weight_map": places | {tensor: to}}
            yield f"{tensor} in {to}", {INDEX: json.dumps(changed).encode()}
        missing = {name: place for name, place in places.items() if name != tensor}
        yield f"{tensor} is not named", {INDEX: json.dumps({"weight_map": missing}).encode()}
    for file in index_files(seed):
        yield f"an index: {file.name}", {INDEX: file.content}
    for file in safetensors_files(seed):
        yield f"a shard: {file.name}", {chance.choice(shards): file.content}
    for number in range(100):
        name = chance.choice(shards)
        yield f"header {number} of {name}", {name: _with_header(content[name], chance)}


def _with_header(content: bytes, chance: random.Random) -> bytes:
    """A shard one of whose entries has another value in it, or another's."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name, field = chance.choice(sorted(header)), chance.choice(("dtype", "shape", "data_offsets", "name"))
    other = header[chance.choice(sorted(header))]
    if field == "name":
        header[chance.choice(sorted(header))] = header.pop(name)
    elif chance.random() < 0.5:
        header[name] = header[name] | {field: other[field]}
    else:
        value = header[name][field]
        odd = chance.choice(_ODD)
        if isinstance(value, list) and value:
            value = list(value)
            value[chance.randrange(len(value))] = odd
        header[name] = header[name] | {field: value if isinstance(value, list) else odd}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def _list(folder: Path, name: str) -> None:
    """Lists a file that is none of the checkpoint's."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["files"][name], config["checksums"][name] = 0, "00000000"
    config["checksums"].pop("config.json", None)
    path.write_text(json.dumps(config))
