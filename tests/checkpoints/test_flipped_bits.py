"""A checkpoint whose files changed since it was written: a one-line error or the same result, never another."""

import dataclasses
import re
import shutil
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import load, load_drafter, load_shapes, load_text_encoder, save, verify
from lantern_jax.families.llamagen.weights import gpt_shapes
from lantern_jax.models.t5 import T5Config, t5_shapes
from lantern_jax.tensors import checksums
from tests.refused import refused
from tests.tiny_checkpoint import DRAFTER, TARGET, drafter_parameters, random_leaves, tiny_checkpoint

FLIPS, PAGES, PAGE = 12, 4, 4096
T5 = T5Config(8, 1, 2, 4, 16, 40, 8, 20)
CAPTIONS = dataclasses.replace(TARGET, num_labels=0, null_labels=None, caption_dim=8, caption_length=4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    (folder / "spiece.model").write_bytes(bytes(range(256)) * 30)
    checkpoint = dataclasses.replace(
        tiny_checkpoint(),
        target_config=CAPTIONS,
        target_params=random_leaves(gpt_shapes(CAPTIONS), 0, 0.5),
        drafters={"eagle": (dataclasses.replace(DRAFTER, prefix_length=4), drafter_parameters())},
        tokenizer_config=None,
        tokenizer_params=None,
        codebook=None,
        vocabulary=None,
        text_encoder_config=T5,
        text_encoder_params=random_leaves(t5_shapes(T5), 1, 0.5),
        text_tokenizer=folder / "spiece.model",
        metadata={"recipe": "none"},
    )
    return save(folder / "tiny", checkpoint)


@pytest.fixture
def copied(saved, tmp_path, monkeypatch) -> Path:
    # Leftover files are looked for here, not where other tests work.
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(saved, tmp_path / "copied")


def read(folder: Path) -> tuple[dict, list[np.ndarray], bytes]:
    checkpoint = load(folder)
    values = {field.name: getattr(checkpoint, field.name) for field in dataclasses.fields(Checkpoint)}
    tokenizer = values.pop("text_tokenizer").read_bytes()
    del values["directory"]
    arrays = [values.pop(name) for name in ("target_params", "drafters")]
    arrays.append(load_text_encoder(checkpoint))
    leaves = [leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, np.ndarray)]
    return values, leaves, tokenizer


def equal(left, right) -> bool:
    pairs = zip(left[1], right[1], strict=True)
    return left[0] == right[0] and left[2] == right[2] and all(map(np.array_equal, *zip(*pairs, strict=True)))


def test_flipped_bits_and_lost_pages_are_detected(saved, copied):
    """At random places in every file that the config lists."""
    whole, random = read(saved), np.random.default_rng(12)
    assert equal(whole, read(copied))
    files = [path for path in sorted(copied.rglob("*")) if path.is_file() and path.name != "config.json"]
    assert len(files) == 3
    for file in files:
        content = file.read_bytes()
        for number in range(FLIPS + PAGES):
            damaged = bytearray(content)
            place = int(random.integers(len(content)))
            if number < FLIPS:
                damaged[place] ^= 1 << int(random.integers(8))
            else:
                start = place // PAGE * PAGE
                damaged[start : start + PAGE] = bytes(len(damaged[start : start + PAGE]))
            file.write_bytes(damaged)
            if damaged != content:
                with refused(re.escape(str(copied))):
                    read(copied)
        file.write_bytes(content)
    assert equal(whole, read(copied))


@pytest.mark.parametrize("part", ["model", "text_encoder"])
def test_parameters_that_are_read_later_are_verified_then(part, saved, copied):
    """Reading only shapes does not read large files; parameters are verified as they are read."""
    name = f"{part}.safetensors"
    content = bytearray((copied / name).read_bytes())
    content[-300] ^= 4
    (copied / name).write_bytes(content)
    checkpoint = load_shapes(copied)
    with pytest.raises(ValueError, match=f"{name} is damaged .*another checksum"):
        load_drafter(checkpoint, "eagle") if part == "model" else load_text_encoder(checkpoint)
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        verify(copied)
    (copied / name).write_bytes((saved / name).read_bytes())
    load_drafter(checkpoint, "eagle"), load_text_encoder(checkpoint)


def test_a_file_is_read_and_verified_once(copied, monkeypatch):
    """Reading another part later does not read its whole file again; ``verify`` reads everything."""
    monkeypatch.setattr(checksums, "_right", set()), monkeypatch.setattr(checksums, "BLOCK", 4096)
    folder = save(copied.with_name("small blocks"), tiny_checkpoint())
    seen, read_block = Counter(), checksums.read_block

    def read(path, start, targets=()):
        seen[start] += 1
        return read_block(path, start, targets)

    monkeypatch.setattr(checksums, "read_block", read)
    size = (folder / "model.safetensors").stat().st_size
    whole = dict.fromkeys(range(0, size, 4096), 1)
    checkpoint = load(folder, drafters=())
    assert seen == whole
    seen.clear(), load_drafter(checkpoint, "eagle")
    assert 0 < len(seen) < len(whole)
    seen.clear()
    assert verify(folder) == size and seen == whole


def test_a_checksum_covers_all_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "BLOCK", 64)
    content, sums = np.random.default_rng(0).bytes(1000), set()
    changes = [content, content[64:128] + content[:64] + content[128:], content[:-1], content + b"\0", b""]
    changes += [content[:place] + b"\0" + content[place + 1 :] for place in (0, 63, 64, 500, 999)]
    changes += [content[:64], content[:128]]
    for change in changes:
        (tmp_path / "file").write_bytes(change)
        sums.add(checksums.file_checksum(tmp_path / "file"))
        summing = checksums.Summing()
        for part in (change[:3], change[3:200], b"", change[200:]):
            summing.add(memoryview(part))
        assert summing.checksum == checksums.file_checksum(tmp_path / "file")
    assert len(sums) == len(changes)


def test_a_copy_corrupted_by_the_disk_is_not_kept(saved, tmp_path, monkeypatch):
    """Written files are compared with what they should hold, including the text tokenizer."""
    copy = shutil.copyfile

    def spoil(source, target):
        copy(source, target)
        if Path(target).name == "spiece.model":
            Path(target).write_bytes(b"other")

    monkeypatch.setattr(shutil, "copyfile", spoil)
    with pytest.raises(OSError, match=r"spiece\.model does not hold what was written"):
        save(tmp_path / "again", load(saved, None))
    assert not list(tmp_path.iterdir())
