"""Files from strangers: each is read or refused in one line, and none of them runs, hangs or takes memory."""

import argparse
import contextlib
import io
import os
import resource
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


# Of a damaged pickle's text; it is Python's own, and no user is shown it.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
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
            *map(Path, ("/dev/zero", "/proc/kmsg", "/proc/self/mem")),
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


def through(name: str, reader):
    """Reads a link of that name beside what it points at."""
    return lambda path: Path(path.parent, name).symlink_to(path) or reader(path.parent / name)


READ_BY_NAME = {
    "token": lambda path: main(["serve", "--token-file", str(path)]),
    "tree": lambda path: main(["generate", "lake", "--tree", str(path), "--out", "new.png"]),
    "tree at the end of a name": load_tree,
    "name of a tree": lambda path: resolve_tree(str(path)),
    "caption": through("a.txt", lambda path: PictureFolder(path.parent, 8)),
    "tokenizer": through("a.json", load_tokenizer),
    "pieces": through("a.model", load_tokenizer),
    "merges": through("a.gz", load_clip_tokenizer),
    "prompts": through("a.tsv", READERS["prompts"]),
    "encoded": through("a.npz", READERS["archive"]),
    "weights": through("a.pt", READERS["torch"]),
    "picture": through("b.png", READERS["picture"]),
    "features": map_array,
    "accept lengths": lambda path: parse_accept_lengths(str(path)),
    "classifier": read_classifier,
    "trees to export": lambda path: arguments.file(str(path)),
}


@pytest.mark.parametrize("kind", ["pipe", "null"])
def test_every_reader_refuses_what_is_no_file(kind, special, monkeypatch, deadline):
    monkeypatch.chdir(special[0].parent)
    (special[0].parent / "a.png").touch()
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", must_not_run)
    for name, reader in READ_BY_NAME.items():
        deadline(3)
        try:
            outcome = reader(special[0].with_name(kind))
        except (ValueError, OSError, argparse.ArgumentTypeError) as error:
            outcome = 2
            assert "\n" not in str(error), name
        assert outcome == 2, name


def test_numbers_in_json_are_finite_and_end():
    for text in ("NaN", "[-Infinity]", '{"a": 1e999}', "9" * 21, "-" + "9" * 5000):
        with pytest.raises(ValueError, match="it is not JSON"):
            files.parse_json(text, "it")
    assert files.parse_json("[18446744073709551615, -1.5e300, 1E-400]", "it") == [2**64 - 1, -1.5e300, 0.0]


def test_texts_that_are_quoted_are_short_and_do_not_steer_a_terminal():
    text = "\x1b]0;owned\x07\x9b2J\u202e" + "n" * 500
    for shown in (errors.short(text), errors.listed([text]), errors.printable(text, 200)):
        assert shown.isprintable() and len(shown) < 260
    told = str(errors.unknown("kind", text, ["a"]))
    assert told.isprintable() and len(told) < 300
    assert errors.short("first\nsecond") == "first" and errors.short(ValueError()) == "ValueError"
    assert errors.listed(range(7)) == "0, 1, 2, 3, 4 and 2 more"


def test_json_and_lists_of_prompts_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("lantern_jax.text.prompt_files._LARGEST", 5)
    path, prompts = tmp_path / "a.json", tmp_path / "a.txt"
    for text, most, wrong in (
        ("[[1, {}], [0.5]]", 16, None),
        ("[[1, {}], [0.5]]", 15, r"a\.json is larger than 15 bytes"),
        ("[" * 32 + "]" * 32, 100, None),
        ("[" * 33 + "]" * 33, 100, r"a\.json is nested too deeply"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=wrong) if wrong else contextlib.nullcontext():
            assert files.read_json(path, most)
    prompts.write_text("lakes")
    assert READERS["prompts"](prompts) == ("lakes",)
    prompts.write_text("forest")
    with pytest.raises(ValueError, match="larger than 5 bytes"):
        READERS["prompts"](prompts)


def test_trees_have_bounds(memory):
    """Of trees and windows alike, and counted before a node is made."""
    assert DraftTree.chain(64).max_depth == DraftTree.window(64).max_depth == 64
    assert DraftTree.window(64, 15, 3).num_nodes == 15 + 15**2 + 15**3 + 61 + 1
    for make, sizes in (
        (DraftTree.chain, [(65,), (10**9,)]),
        (DraftTree.window, [(65,), (10**9,), (64, 8, 8), (64, 16, 3), (64, 10**5000, 64)]),
    ):
        for given in sizes:
            with pytest.raises(ValueError, match=r"is not valid|more than 4096 nodes"):
                make(*given)
    for window, branches in ((256, 8), (64, 64)):
        knobs = {"drafting": "jacobi", "window": window, "branches": branches, "levels": 8}
        with pytest.raises(ValueError, match=r"is not valid|more than 4096 nodes"):
            resolve_settings(knobs, {}, platform="cpu", vocab_size=512, drafters=())
    with pytest.raises(ValueError, match="deeper than 64"):
        DraftTree.from_paths((0,) * length for length in range(1, 66))
    with pytest.raises(ValueError, match="more than 4096 nodes"):
        DraftTree.from_paths((rank,) for rank in iter(int, 1))
    for nodes, depth, frontier in ((10**9, 3, 2), (3, 10**9, 2), (3, 3, 2**70)):
        with pytest.raises(ValueError, match="of a dynamic tree is not valid"):
            DynamicTree(nodes, depth, frontier)


def test_prompts_in_an_archive_are_texts(tmp_path):
    path = tmp_path / "prompts.npz"
    path.write_bytes(encoded_prompts(["207", "a lake"]))
    found = load_encoded(path)
    assert found.prompts == ("207", "a lake")
    for prompts in (["207", 207], "ab"):
        with pytest.raises(ValueError, match="prompts are not a list of texts"):
            save_encoded(path, "labels", prompts, found.arrays)


def test_compressed_archives_are_read_within_their_bound(tmp_path):
    """Statistics of other programs are compressed, and are checked as other archives are."""
    path, values = tmp_path / "a.npz", np.arange(12.0).reshape(3, 4)
    np.savez_compressed(path, mu=values, columns=np.asfortranarray(values), names=np.array(["a", "é"]))
    found = archives.read_arrays(path)
    np.testing.assert_array_equal(found["mu"], values)
    np.testing.assert_array_equal(found["columns"], values)
    assert list(found["names"]) == ["a", "é"] and list(archives.read_arrays(path, {"mu"})) == ["mu"]
    reader = FeatureReader("three", 3, lambda picture: picture, lambda pictures: pictures)
    for start, bomb in (({"mu": np.zeros(3)}, "sigma"), ({"readers": np.array(["three"])}, "0/outer")):
        entries = {f"{name}.npy": npy(array) for name, array in start.items()}
        path.write_bytes(zip_bomb(entries, f"{bomb}.npy", npy_header("<f8", (2**12, 2**12)), 2**27))
        with pytest.raises(ValueError, match=r"a\.npz is not a whole archive .*declares"):
            statistics_of(path, reader)
    np.savez(path, mu=np.array(["a"] * 3), sigma=np.eye(3))
    with pytest.raises(ValueError, match=r"a\.npz"):
        statistics_of(path, reader)


def test_shards_of_sets_hold_plain_files(tmp_path):
    """A link may point at itself, a sparse file be larger than any memory."""
    plan = SetPlan(("a",), 1, 0, "", "float32", {}, "png", 1, None)
    _, path = shard_paths(tmp_path, 0)
    for kind, wrong in (
        (tarfile.SYMTYPE, "is damaged"),
        (tarfile.LNKTYPE, "is damaged"),
        (tarfile.DIRTYPE, "is damaged"),
        (tarfile.FIFOTYPE, "is damaged"),
        (tarfile.REGTYPE, "cannot identify"),
    ):
        with tarfile.open(path, "w") as tar:
            entry = tarfile.TarInfo("00000000.png")
            entry.type, entry.linkname, entry.size = kind, "00000000.png", 9 * (kind == tarfile.REGTYPE)
            tar.addfile(entry, io.BytesIO(b"%!PS-Adob"))
        with pytest.raises(ValueError, match=wrong):
            list(open_pictures(tmp_path, plan, 0))


def test_shards_of_features_fit_each_other(tmp_path):
    parts = {"features": np.zeros((2, 2, 3, 4), np.float16), "prefix": np.zeros((2, 2, 1), np.int32)}
    for name, array in parts.items():
        np.save(tmp_path / f"{name}_00000.npy", array)
    for tokens, wrong in (
        (npy(np.zeros((1, 3), np.int32)), "do not fit"),
        (npy(np.array(["a", "b"])), "do not fit"),
        (npy(np.int32(3)), "is not a whole array"),
        (npy_header("<i4", (2**40, 3)), "is not a whole array"),
    ):
        (tmp_path / "tokens_00000.npy").write_bytes(tokens)
        with pytest.raises(ValueError, match=wrong):
            FeatureStore(tmp_path)
    np.save(tmp_path / "tokens_00000.npy", np.zeros((2, 3), np.int32))
    assert len(FeatureStore(tmp_path)) == 2


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
