"""Checkpoints of several files that somebody may send to deceive: indices, shards and headers that lie.

Sizes and checksums in their configs are right, for whoever changes a file can compute them.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from lantern_jax.checkpoints import arrays
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import save
from lantern_jax.tensors import checksums
from tests.hostile.files import CONTROL, as_bytes, index_files, safetensors, safetensors_files
from tests.hostile.mutations import MISSING, at, places, renamed, replaced

INDEX = "model.safetensors.index.json"
# Wrong values for an entry of a header, beside the values of other entries.
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
    """Rewrites one file of a checkpoint, or unlists it, and corrects the config; may list one that is no part of it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if name in NAMES and not content:
        config["files"][name], config["checksums"][name] = 0, "00000000"
    elif content is None:
        del config["files"][name], config["checksums"][name]
    else:
        (folder / name).write_bytes(content)
        config["files"][name] = len(content)
        config["checksums"][name] = checksums.file_checksum(folder / name)
    config["checksums"].pop("config.json", None)
    path.write_text(json.dumps(config))


def hostile_folders(folder: Path, seed: int) -> Iterator[str]:
    """Changes a sharded checkpoint, yields what was done, and restores it, many times."""
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for what, changes in _cases(folder, random.Random(seed), seed):
        for name, content in changes.items():
            replace(folder, name, content)
        yield what
        for path in set(folder.iterdir()) - set(whole):
            path.unlink()
        for path, content in whole.items():
            # Reading is quicker than writing.
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)


def _cases(folder: Path, chance: random.Random, seed: int) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    where = json.loads((folder / INDEX).read_text())["weight_map"]
    shards = sorted(set(where.values()))
    content = {name: (folder / name).read_bytes() for name in shards}
    yield from ((f"{name} is not listed", {name: None}) for name in (INDEX, *shards))
    yield from ((f"{name[:40]!r} is listed", {name: b""}) for name in NAMES)
    more = f"model-{len(shards) + 1:05}-of-{len(shards):05}.safetensors"
    yield "a shard too many", {more: content[shards[0]]}
    yield "one file beside shards", {"model.safetensors": content[shards[0]]}
    yield "a shard twice", {shards[1]: content[shards[0]]}
    elsewhere = ("model.safetensors", "config.json", "/dev/zero", f"../{shards[0]}")
    for tensor in chance.sample(sorted(where), 5):
        for to in (*chance.sample(shards, 2), *elsewhere):
            yield f"{tensor} in {to}", {INDEX: as_bytes({"weight_map": where | {tensor: to}})}
        missing = replaced({"weight_map": where}, ("weight_map", tensor), MISSING)
        yield f"{tensor} is not named", {INDEX: as_bytes(missing)}
    for file in index_files(seed):
        yield f"an index: {file.name}", {INDEX: file.content}
    for file in safetensors_files(seed):
        yield f"a shard: {file.name}", {chance.choice(shards): file.content}
    for number in range(100):
        name = chance.choice(shards)
        yield f"header {number} of {name}", {name: _with_header(content[name], chance)}


def _with_header(content: bytes, chance: random.Random) -> bytes:
    """Returns a shard whose header has one entry with an odd value, another entry's value, or another entry's name."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    path, other = chance.sample(list(places(header)), 2)
    if len(path) == 1:
        header = renamed(header, path, other[0])
    else:
        header = replaced(header, path, chance.choice((at(header, other), chance.choice(_ODD))))
    return safetensors(header, content[8 + length :])
