"""Files from strangers: each is read or refused in one line, and none of them runs, hangs or takes memory."""

import argparse
import io
import os
import resource
import signal
import socket
import sys
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest

import lantern_jax.pipeline.pipeline
from lantern_jax.commands import arguments
from lantern_jax.commands.main import main
from lantern_jax.decoding.tree import DraftTree, DynamicTree, load_tree, resolve_tree
from lantern_jax.io import archives, errors, files
from lantern_jax.io.archives import map_array
from lantern_jax.measuring.accept_lengths import parse_accept_lengths
from lantern_jax.metrics.clip_tokenizer import load_clip_tokenizer
from lantern_jax.metrics.demo_classifier import read_classifier
from lantern_jax.metrics.features import FeatureReader
from lantern_jax.sets.plan import SetPlan, shard_paths
from lantern_jax.sets.shards import open_pictures
from lantern_jax.sets.statistics import statistics_of
from lantern_jax.settings.resolution import resolve_settings
from lantern_jax.tensors.torch_pickle import read_pickle
from lantern_jax.text.encoded import load_encoded, save_encoded
from lantern_jax.text.prompt_files import read_prompts
from lantern_jax.text.tokenizers import load_tokenizer
from tests.command import must_not_run
from tests.hostile.files import KINDS, READERS, encoded_prompts, npy, npy_header, zip_bomb
from train.feature_store import FeatureStore
from train.picture_folder import PictureFolder

LONGEST = 1000


@pytest.fixture
def memory():
    """No more than so much may be asked for: a bomb is a MemoryError, which is none of what readers raise."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_read_or_refused_in_one_line(kind, tmp_path, memory, monkeypatch):
    if kind == "torch":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    # Long pickles are followed to their bound, which takes its time.
    monkeypatch.setattr("lantern_jax.tensors.torch_pickle._MOST_INSTRUCTIONS", 20_000)
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hostile = list(KINDS[kind](seed=0))
    assert len({file.name for file in hostile}) == len(hostile) >= 35
    for number, file in enumerate(hostile):
        path = tmp_path / f"{number}{file.suffix}"
        path.write_bytes(file.content)
        try:
            READERS[kind](path)
            outcome = True
        except ValueError as error:
            text = str(error)
            outcome = False if "\n" not in text.strip() and len(text) < LONGEST else text[:LONGEST]
        path.unlink()
        if outcome not in (True, False) or file.read not in (None, outcome):
            wrong.append((file.name, outcome))
    assert not wrong
    assert not list(tmp_path.iterdir()), "a file ran code"


def test_pipes_and_devices_are_no_files(tmp_path):
    """Reading a pipe would wait for ever."""
    for kind, suffix in (
        ("tree", ".json"), ("prompts", ".txt"), ("archive", ".npz"), ("torch", ".pt"), ("picture", ".png"),
    ):  # fmt: skip
        os.mkfifo(tmp_path / f"pipe{suffix}")
        with pytest.raises(ValueError, match=r"is not a file|no file"):
            READERS[kind](tmp_path / f"pipe{suffix}")
    with pytest.raises(ValueError, match="choose one of"):
        resolve_tree("/dev/zero")
    with pytest.raises(ValueError, match="is not a file"):
        files.read_json(tmp_path, 10)


@pytest.fixture
def special(tmp_path):
    """Names of what is no regular file, and of files that say they are empty and never end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        (tmp_path / "null").symlink_to("/dev/zero")
        names = ("pipe", "folder", "loop", "socket", "null", "missing")
        yield [
            *(tmp_path / name for name in names),
            Path("/dev/zero"),
            Path("/proc/kmsg"),
            Path("/proc/self/mem"),
        ]


def test_nothing_but_a_regular_file_is_opened(special, monkeypatch):
    """A device is not even opened, and what a name stands for may change before it is."""
    opened, open_, stat_ = [], os.open, os.stat
    monkeypatch.setattr(files.os, "open", lambda path, flags: opened.append(path) or open_(path, flags))
    for path in special:
        with pytest.raises(ValueError, match=r"is not a file|cannot be read|is empty"):
            files.open_file(path)
    assert not opened
    # A file when it is looked at, a pipe when it is opened.
    monkeypatch.setattr(files.os, "stat", lambda path: stat_(__file__))
    with pytest.raises(ValueError, match="is not a file"):
        files.open_file(special[0])
    assert opened == [special[0]]


class Hung(BaseException):
    pass


def hung(*_):
    raise Hung


READ_BY_NAME = {
    "token": lambda path: main(["serve", "--token-file", str(path)]),
    "tree": lambda path: main(["generate", "lake", "--tree", str(path), "--out", "new.png"]),
    "tree at the end of a name": lambda path: load_tree(path),
    "caption": lambda path: Path(path.parent, "a.txt").symlink_to(path) or PictureFolder(path.parent, 8),
    "tokenizer": lambda path: Path(path.parent, "a.json").symlink_to(path) or load_tokenizer(path.parent / "a.json"),
    "pieces": lambda path: Path(path.parent, "a.model").symlink_to(path) or load_tokenizer(path.parent / "a.model"),
    "merges": lambda path: Path(path.parent, "a.gz").symlink_to(path) or load_clip_tokenizer(path.parent / "a.gz"),
    "features": map_array,
    "accept lengths": lambda path: parse_accept_lengths(str(path)),
    "classifier": read_classifier,
    "trees to export": lambda path: arguments.file(str(path)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "null"])
@pytest.mark.parametrize("reader", READ_BY_NAME)
def test_every_reader_refuses_what_is_no_file(reader, kind, special, monkeypatch):
    monkeypatch.chdir(special[0].parent)
    (special[0].parent / "a.png").touch()
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", must_not_run)
    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(3)
    try:
        outcome = READ_BY_NAME[reader](special[0].with_name(kind))
    except (ValueError, OSError, argparse.ArgumentTypeError) as error:
        outcome = 2
        assert "\n" not in str(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert outcome == 2


def test_numbers_in_json_are_finite_and_end(tmp_path):
    for text in ("NaN", "[-Infinity]", '{"a": 1e999}', "9" * 21, "-" + "9" * 5000):
        with pytest.raises(ValueError, match="it is not JSON"):
            files.parse_json(text, "it")
    assert files.parse_json("[18446744073709551615, -1.5e300, 1E-400]", "it") == [2**64 - 1, -1.5e300, 0.0]


def test_texts_that_are_quoted_do_not_steer_a_terminal():
    text = "\x1b]0;owned\x07\x9b2J\u202e" + "n" * 500
    for shown in (errors.short(text), errors.listed([text]), errors.printable(text, 200)):
        assert shown.isprintable() and len(shown) < 260
    assert (
        str(errors.unknown("kind", text, ["a"])).isprintable()
        and len(str(errors.unknown("k", text, ["a"]))) < 300
    )


def test_json_is_bounded_in_size_and_depth(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[[1, {}], [0.5]]")
    assert files.read_json(path, 16) == [[1, {}], [0.5]]
    with pytest.raises(ValueError, match=r"a\.json is larger than 15 bytes"):
        files.read_json(path, 15)
    path.write_text("[" * 32 + "]" * 32)
    assert files.read_json(path, 100)
    path.write_text("[" * 33 + "]" * 33)
    with pytest.raises(ValueError, match=r"a\.json is nested too deeply"):
        files.read_json(path, 100)


def test_trees_have_bounds(memory):
    """Of trees and windows alike, and counted before a node is made."""
    assert DraftTree.chain(64).max_depth == DraftTree.window(64).max_depth == 64
    assert DraftTree.window(64, 15, 3).num_nodes == 15 + 15**2 + 15**3 + 61 + 1
    for make in (
        lambda: DraftTree.chain(65),
        lambda: DraftTree.chain(10**9),
        lambda: DraftTree.window(65),
        lambda: DraftTree.window(10**9),
        lambda: DraftTree.window(64, 8, 8),
        lambda: DraftTree.window(64, 16, 3),
        lambda: DraftTree.window(64, 10**5000, 64),
        lambda: resolve_settings({"drafting": "jacobi", "window": 256, "branches": 8, "levels": 8}, {},
                                 platform="cpu", vocab_size=512, drafters=()),
        lambda: resolve_settings({"drafting": "jacobi", "window": 64, "branches": 64, "levels": 8}, {},
                                 platform="cpu", vocab_size=512, drafters=()),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"is not valid|more than 4096 nodes"):
            make()
    with pytest.raises(ValueError, match="deeper than 64"):
        DraftTree.from_paths((0,) * length for length in range(1, 66))
    with pytest.raises(ValueError, match="more than 4096 nodes"):
        DraftTree.from_paths((rank,) for rank in iter(int, 1))
    for knobs in (
        {"nodes": 10**9, "depth": 3},
        {"nodes": 3, "depth": 10**9},
        {"nodes": 3, "depth": 3, "frontier": 2**70},
    ):
        with pytest.raises(ValueError, match="of a dynamic tree is not valid"):
            DynamicTree(**knobs)


def test_prompts_in_an_archive_are_texts(tmp_path):
    path = tmp_path / "prompts.npz"
    path.write_bytes(encoded_prompts(["207", "a lake"]))
    found = load_encoded(path)
    assert found.prompts == ("207", "a lake")
    for prompts in (["207", 207], "ab"):
        path.write_bytes(encoded_prompts(prompts))
        with pytest.raises(ValueError, match="does not hold encoded prompts"):
            load_encoded(path)
        with pytest.raises(ValueError, match="prompts are not a list of texts"):
            save_encoded(path, "labels", prompts, found.arrays)


def test_lists_of_prompts_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("lantern_jax.text.prompt_files._LARGEST", 5)
    (tmp_path / "a.txt").write_text("lakes")
    assert read_prompts(tmp_path / "a.txt") == ("lakes",)
    (tmp_path / "a.txt").write_text("forest")
    with pytest.raises(ValueError, match="larger than 5 bytes"):
        read_prompts(tmp_path / "a.txt")


def test_compressed_archives_are_read_within_their_bound(tmp_path):
    """Statistics of other programs are compressed."""
    path, values = tmp_path / "a.npz", np.arange(12.0).reshape(3, 4)
    np.savez_compressed(path, mu=values, columns=np.asfortranarray(values), names=np.array(["a", "é"]))
    found = archives.read_arrays(path)
    np.testing.assert_array_equal(found["mu"], values)
    np.testing.assert_array_equal(found["columns"], values)
    assert list(found["names"]) == ["a", "é"] and list(archives.read_arrays(path, {"mu"})) == ["mu"]


def test_statistics_are_checked_as_other_archives_are(tmp_path):
    reader = FeatureReader("three", 3, lambda picture: picture, lambda pictures: pictures)
    for start, bomb in (({"mu": np.zeros(3)}, "sigma"), ({"readers": np.array(["three"])}, "0/outer")):
        entries = {f"{name}.npy": npy(array) for name, array in start.items()}
        content = zip_bomb(entries, f"{bomb}.npy", npy_header("<f8", (2**12, 2**12)), 2**27)
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz is not a whole archive .*declares"):
            statistics_of(tmp_path / "a.npz", reader)
    np.savez(tmp_path / "b.npz", mu=np.array(["a"] * 3), sigma=np.eye(3))
    with pytest.raises(ValueError, match=r"b\.npz"):
        statistics_of(tmp_path / "b.npz", reader)


def test_shards_of_sets_hold_plain_files(tmp_path):
    """A link may point at itself, a sparse file be larger than any memory."""
    plan = SetPlan(("a",), 1, 0, "", "float32", {}, "png", 1, None)
    _, path = shard_paths(tmp_path, 0)
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
        with tarfile.open(path, "w") as tar:
            entry = tarfile.TarInfo("00000000.png")
            entry.type, entry.linkname = kind, "00000000.png"
            tar.addfile(entry)
        with pytest.raises(ValueError, match="is damaged"):
            list(open_pictures(tmp_path, plan, 0))
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("00000000.png")
        entry.size = 9
        tar.addfile(entry, io.BytesIO(b"%!PS-Adob"))
    with pytest.raises(ValueError, match="cannot identify"):
        list(open_pictures(tmp_path, plan, 0))


def test_shards_of_features_fit_each_other(tmp_path):
    parts = {"features": np.zeros((2, 2, 3, 4), np.float16), "prefix": np.zeros((2, 2, 1), np.int32)}
    for tokens, wrong in (
        (np.zeros((2, 3), np.int32), None),
        (np.zeros((1, 3), np.int32), "do not fit"),
        (np.array(["a", "b"]), "do not fit"),
        (np.int32(3), "is not a whole array"),
    ):
        for name, array in (parts | {"tokens": tokens}).items():
            np.save(tmp_path / f"{name}_00000.npy", array)
        if wrong is None:
            assert len(FeatureStore(tmp_path)) == 2
            continue
        with pytest.raises(ValueError, match=wrong):
            FeatureStore(tmp_path)
    (tmp_path / "tokens_00000.npy").write_bytes(npy_header("<i4", (2**40, 3)))
    with pytest.raises(ValueError, match="is not a whole array"):
        FeatureStore(tmp_path)


def test_long_descriptions_are_not_followed_to_their_end(tmp_path, monkeypatch):
    monkeypatch.setattr("lantern_jax.tensors.torch_pickle._MOST_INSTRUCTIONS", 100)
    code = b"\x80\x02" + b"N0" * 48 + b"}."
    assert read_pickle(io.BytesIO(code), bool) == {}
    with pytest.raises(ValueError, match="more than 100 instructions"):
        read_pickle(io.BytesIO(code[:2] + b"N0" + code[2:]), bool)
    np.savez(tmp_path / "a.npz", mu=np.zeros(3))
    monkeypatch.setattr(archives._Archive, "longest", 40)
    with pytest.raises(ValueError, match=r"its directory has \d+ bytes"):
        archives.read_arrays(tmp_path / "a.npz")


def test_long_names_are_cut():
    assert errors.short("n" * 500, 10) == "n" * 10 + "..."
    assert errors.short("first\nsecond") == "first" and errors.short(ValueError()) == "ValueError"
    assert errors.listed(range(7)) == "0, 1, 2, 3, 4 and 2 more"
