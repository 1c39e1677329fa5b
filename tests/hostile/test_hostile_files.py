"""Files from strangers: each is read or refused in one line, and none of them runs code, hangs or fills memory."""

import json
import os
import resource
import shutil
import socket
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.apps.commands.prompt_files import read_prompts
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.draftings import DynamicTree
from lantern_jax.io import errors, files
from tests.hostile.files import CONTROL, KINDS, READERS
from train.feature_store import map_array

LONGEST = 1000


@pytest.fixture
def memory():
    """Limits how much memory may be asked for: a bomb is a MemoryError, which readers never raise."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


# Python's own warning about a damaged pickle's text; no user is shown it.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_read_or_refused_in_one_line(kind, tmp_path, memory, monkeypatch):
    if kind == "torch":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hostile = list(KINDS[kind](seed=0))
    assert len({file.name for file in hostile}) == len(hostile) >= 20
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
    """Yields paths of what is no regular file, and of files that claim to be empty and never end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        (tmp_path / "null").symlink_to("/dev/zero")
        names = ("pipe", "folder", "loop", "socket", "null", "missing")
        others = map(Path, ("/dev/zero", "/proc/kmsg", "/proc/self/mem"))
        yield [*(tmp_path / name for name in names), *others]


def test_nothing_but_a_regular_file_is_opened(special):
    for path in special:
        with pytest.raises(ValueError, match=r"is not a file|cannot be read|is empty"):
            files.open_file(path)


def test_quoted_texts_are_short_and_printable():
    text = "\x1b]0;owned\x07\x9b2J\u202e" + "n" * 500
    for shown in (errors.short(text), errors.listed([text]), errors.printable(text, 200)):
        assert shown.isprintable() and len(shown) < 260
    told = str(errors.unknown("kind", text, ["a"]))
    assert told.isprintable() and len(told) < 300
    assert errors.short("first\nsecond") == "first" and errors.short(ValueError()) == "ValueError"
    assert errors.listed(range(7)) == "0, 1, 2, 3, 4 and 2 more"


@pytest.mark.parametrize(
    "text", [f"a{CONTROL}lantern: all is well", "[/x][bold]:smile:[link=http://a.b]\u202e"]
)
def test_no_text_of_a_config_steers_a_terminal(text, tiny_folder, tmp_path, capsys):
    folder = shutil.copytree(tiny_folder, tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    shown = 0
    for changed in (
        {"model": text}, {"metadata": {text: [text]}}, {"metadata": {"by": text}}, {"family": text}, {"format": text},
        {"drafters": {text: {}}}, {"defaults": {text: 1}}, {text: 1},
    ):  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config | changed))
        for words in (["info"], ["info", "--verbose"]):
            shown += main([*words, str(folder)]) == 0
            printed = capsys.readouterr()
            assert all(line.isprintable() for line in (printed.out + printed.err).split("\n")), changed
    assert shown >= 4


def test_json_prompts_and_descriptions_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("lantern_jax.apps.commands.prompt_files._LARGEST", 5)
    np.save(tmp_path / "a.npy", np.int32(3))
    path, prompts = tmp_path / "a.json", tmp_path / "a.txt"
    assert read_prompts(written(prompts, "lakes")) == ("lakes",)
    assert files.read_json(written(path, "[" * 32 + "]" * 32), 64)
    assert files.parse_json("[18446744073709551615, -1.5e300, 1E-400]", "it") == [2**64 - 1, -1.5e300, 0.0]
    for wrong, read in {
        "larger than 5 bytes": lambda: read_prompts(written(prompts, "forest")),
        r"a\.json is larger than 15 bytes": lambda: files.read_json(written(path, "[[1, {}], [0.5]]"), 15),
        r"a\.json is nested too deeply": lambda: files.read_json(written(path, "[" * 10**5), 10**6),
        "no list of arrays": lambda: map_array(tmp_path / "a.npy"),
    }.items():
        with pytest.raises(ValueError, match=wrong):
            read()
    for text in ("NaN", "[-Infinity]", '{"a": 1e999}', "-" + "9" * 5000):
        with pytest.raises(ValueError, match="it is not JSON"):
            files.parse_json(text, "it")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("make", [
    lambda: DraftTree.chain(65), lambda: DraftTree.window(65),
    lambda: DraftTree.from_paths((rank,) for rank in iter(int, 1)), lambda: DynamicTree(10**9, 3),
])  # fmt: skip
def test_trees_have_bounds(make, memory):
    """Nodes are counted before one is made."""
    with pytest.raises(ValueError, match=r"is not valid|more than 4096 nodes|deeper than 64"):
        make()
