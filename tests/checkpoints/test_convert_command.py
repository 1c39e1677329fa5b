"""``lantern convert llamagen`` as a command: what it writes and says; what can be wrong with files: test_convert.py."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lantern_jax.checkpoints import convert
from lantern_jax.commands.main import main
from lantern_jax.io.locks import sole
from tests.command import assert_refused, must_not_run
from tests.published_files import GPT


@pytest.fixture
def folder(published, tmp_path, monkeypatch) -> Path:
    """A copy of the published files, as the current folder."""
    monkeypatch.chdir(shutil.copytree(published["gpt"].parent, tmp_path / "work"))
    return tmp_path / "work"


def command(**changes) -> list[str]:
    """A conversion that works, but for ``changes``."""
    options = {
        "gpt": "gpt.pt",
        "vq": "vq.pt",
        "drafter": "drafter",
        "config": "settings.json",
        "out": "new",
    } | changes
    return [
        "convert",
        "llamagen",
        *(word for name, value in options.items() for word in (f"--{name}", value)),
    ]


def test_published_files_become_pictures(folder, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "new")
    assert main(command(out=out)) == 0
    assert main(["info", out]) == 0
    printed = capsys.readouterr().out
    assert "LlamaGen, class-conditional" in printed and "drafter" in printed
    (tmp_path / "tree.json").write_text("[[0], [1], [0, 0]]")
    monkeypatch.chdir(tmp_path)
    generate = ["generate", "3", "--model", out, "--tree", "tree.json", "--compare"]
    assert main([*generate, "--out", "a.png", "--stats", "a.json"]) == 0
    statistics = json.loads(Path("a.json").read_text())
    assert statistics["same_tokens"] == 1 and statistics["tokens"] == GPT.num_tokens
    with Image.open("a.png") as image:
        assert np.asarray(image).std() > 1
    capsys.readouterr()
    for prompt, line in (("5", "give a class number from 0 to 4"), ("", "empty prompt")):
        assert line in assert_refused(["generate", prompt, "--model", out], capsys)


class Evil:
    """Unpickles into a call that makes a file."""

    def __reduce__(self):
        return (open, ("pwned", "w"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"gpt": "missing.safetensors"}, "is not a file"),
        ({"drafter": "evil.pt"}, "run code: refused"),
        ({"vq": "gpt.pt"}, "not a LlamaGen VQ tokenizer"),
        ({"config": "gpt.pt"}, "is not JSON"),
        ({"out": "settings.json"}, "settings.json"),
        ({"out": "there"}, "there exists"),
        ({"out": "settings.json/new"}, "settings.json"),
        ({"out": "nowhere/new"}, "make it first"),
        ({"out": "/proc/new"}, "cannot write into /proc"),
    ],
)
def test_what_cannot_be_converted_is_refused_before_any_work(changes, match, folder, capsys, monkeypatch):
    for name in ("make_codebook", "save"):
        monkeypatch.setattr(convert, name, must_not_run)
    (folder / "there").mkdir()
    (folder / "evil.pt").write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
    assert match in assert_refused(command(**changes), capsys)


def test_a_second_convert_into_a_folder_is_refused(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(convert, "convert_llamagen", must_not_run)
    with sole(tmp_path / "new"):
        assert "another process writes " in assert_refused(command(out=str(tmp_path / "new")), capsys)


@pytest.mark.parametrize("bad", [["convert"], ["convert", "other"], ["convert", "llamagen"]])
def test_incomplete_commands_are_refused(bad, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(bad, capsys)
