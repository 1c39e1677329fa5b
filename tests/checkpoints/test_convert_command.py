"""``lantern convert llamagen``: from published files to pictures, and one line for all that can be wrong with them.

Every bad input is given to the command and to ``convert_llamagen``.
"""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from lantern_jax.checkpoints import convert
from lantern_jax.checkpoints.convert import convert_llamagen
from lantern_jax.commands.main import main
from lantern_jax.io.locks import sole
from tests.command import assert_refused, files, must_not_run
from tests.published_files import GPT, published_tensors, write_settings

safetensors_numpy = pytest.importorskip("safetensors.numpy")

PARTS = ("gpt", "vq", "drafter")


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A folder with gpt, vq and drafter, .safetensors each, and the settings."""
    folder = tmp_path_factory.mktemp("published")
    for part, tensors in published_tensors().items():
        safetensors_numpy.save_file(tensors, folder / f"{part}.safetensors")
    write_settings(folder)
    return folder


@pytest.fixture
def folder(published, tmp_path, monkeypatch) -> Path:
    """A copy of the published files, as the current folder."""
    shutil.copytree(published, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", before or str(tmp_path / "xla"))
    yield tmp_path / "work"
    jax.config.update("jax_compilation_cache_dir", before)


def given(**changes) -> dict[str, str]:
    """The options of a conversion that works, but for ``changes``; None leaves an option out."""
    options = {part: f"{part}.safetensors" for part in PARTS} | {"config": "settings.json", "out": "new"}
    return {name: value for name, value in (options | changes).items() if value is not None}


def command(options: dict[str, str]) -> list[str]:
    return [
        "convert",
        "llamagen",
        *(word for name, value in options.items() for word in (f"--{name}", value)),
    ]


def test_published_files_become_pictures(folder, capsys):
    assert main(command(given())) == 0
    assert main(["info", "new"]) == 0
    printed = capsys.readouterr().out
    assert "LlamaGen, class-conditional" in printed and "drafter" in printed
    Path("tree.json").write_text("[[0], [1], [0, 0]]")
    before = files(folder)
    generate = ["generate", "3", "--model", "new", "--tree", "tree.json", "--compare"]
    assert main([*generate, "--out", "a.png", "--stats", "a.json"]) == 0
    assert files(folder) == before | {"a.png", "a.json"}
    statistics = json.loads(Path("a.json").read_text())
    assert statistics["same_tokens"] == 1 and statistics["tokens"] == GPT.num_tokens
    capsys.readouterr()
    with Image.open("a.png") as image:
        assert np.asarray(image).std() > 1
    assert "give a class number from 0 to 4" in assert_refused(["generate", "5", "--model", "new"], capsys)
    assert "class number" in assert_refused(["generate", "a lake", "--model", "new"], capsys)
    assert "empty prompt" in assert_refused(["generate", "", "--model", "new"], capsys)


def test_a_second_convert_into_a_folder_is_refused(folder, capsys, monkeypatch):
    with sole(Path("new")):
        monkeypatch.setattr(convert, "convert_llamagen", must_not_run)
        assert "another process writes " in assert_refused(command(given()), capsys)


class Evil:
    """Unpickles into a call that makes a file."""

    def __reduce__(self):
        return (open, ("pwned", "w"))


def write_bad_tensors(how: str, part: str) -> str:
    """Writes a bad file for a part and returns its name."""
    name = f"{part}.safetensors"
    if how == "missing file":
        return f"missing-{name}"
    if how == "unknown suffix":
        return shutil.copy(name, f"{part}.onnx")
    if how == "pickle that runs code":
        pytest.importorskip("torch")
        Path("evil.pt").write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
        return "evil.pt"
    if how == "archive that runs code":
        torch = pytest.importorskip("torch")
        torch.save({"model": {"weight": torch.zeros(2)}, "args": Evil()}, "evil.pt")
        assert zipfile.is_zipfile("evil.pt")
        return "evil.pt"
    if how == "truncated archive":
        torch = pytest.importorskip("torch")
        torch.save({"weight": torch.zeros(999)}, "cut.pt")
        Path("cut.pt").write_bytes(Path("cut.pt").read_bytes()[:1500])
        return "cut.pt"
    if how == "truncated":
        Path(name).write_bytes(Path(name).read_bytes()[:-9])
    elif how == "picture":
        Path(name).write_bytes(b"\x89PNG\r\n\x1a\n" * 9)
    elif how == "foreign":
        safetensors_numpy.save_file({"some.weight": np.zeros((2, 3), np.float32)}, name)
    else:
        assert how == "tensors missing, extra and misshapen"
        tensors = published_tensors()[part]
        # Sizes are read from the first layers and the embedding: damage elsewhere.
        matrices = [key for key in tensors if tensors[key].ndim > 1]
        lost, bent = next(key for key in tensors if tensors[key].ndim == 1), matrices[-1]
        del tensors[lost]
        tensors[bent] = tensors[bent][:-1]
        safetensors_numpy.save_file(tensors | {"vision.weight": np.zeros((2, 2), np.float32)}, name)
    return name


# What is wrong with a file -> what the error says.
BAD_FILES = {
    "missing file": "is not a file",
    "unknown suffix": "suffix",
    "pickle that runs code": "run code: refused",
    "archive that runs code": "run code: refused",
    "truncated archive": "truncated",
    "truncated": "not a whole safetensors file",
    "picture": "not a whole safetensors file",
    "foreign": "missing",
    "tensors missing, extra and misshapen": "1 missing",
}


def refused(options: dict[str, str], capsys, monkeypatch) -> str:
    """What both the command and the library say to a conversion that cannot be."""
    for name in ("make_codebook", "save"):
        monkeypatch.setattr(convert, name, must_not_run)
    line = assert_refused(command(options), capsys)
    before = files(Path())
    with pytest.raises(ValueError) as error:
        convert_llamagen(**options)
    assert "\n" not in str(error.value)
    assert files(Path()) == before
    assert not Path("pwned").exists()
    return line


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("how", BAD_FILES)
def test_bad_files_are_refused(how, part, folder, capsys, monkeypatch):
    message = refused(given(**{part: write_bad_tensors(how, part)}), capsys, monkeypatch)
    assert BAD_FILES[how] in message
    if how.startswith("tensors"):
        assert "1 unexpected: vision.weight" in message
        assert "1 misshapen" in message


def test_a_part_of_another_model_is_refused(folder, capsys, monkeypatch):
    assert "not a LlamaGen GPT" in refused(given(gpt="vq.safetensors"), capsys, monkeypatch)
    assert "not a LlamaGen VQ tokenizer" in refused(given(vq="gpt.safetensors"), capsys, monkeypatch)
    assert "not a LANTERN drafter" in refused(given(drafter="gpt.safetensors"), capsys, monkeypatch)


BAD_CONFIGS = {
    "truncated": '{"num_heads": 2',
    "no object": "[2]",
    "unknown setting": '{"num_heads": 2, "grid": 4, "wings": 2}',
    "unknown part": '{"target": {"num_heads": 2, "grid": 4}, "wings": {}}',
    "heads that do not divide": '{"num_heads": 3, "grid": 4}',
    "no heads": '{"grid": 4}',
    "heads of zero": '{"num_heads": 0, "grid": 4}',
    "heads in words": '{"num_heads": "two", "grid": 4}',
    "grid in words": '{"num_heads": 2, "grid": "four"}',
    "grid of zero": '{"num_heads": 2, "grid": 0}',
    "grid negative": '{"num_heads": 2, "grid": -4}',
    "grid fraction": '{"num_heads": 2, "grid": 4.5}',
}


@pytest.mark.parametrize("text", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_bad_configs_are_refused(text, folder, capsys, monkeypatch):
    Path("settings.json").write_text(text)
    refused(given(), capsys, monkeypatch)


@pytest.mark.parametrize("out", ["there", "settings.json", "/proc/new", "settings.json/new"])
def test_outputs_that_cannot_be_are_refused(out, folder, capsys, monkeypatch):
    Path("there").mkdir()
    refused(given(out=out), capsys, monkeypatch)


def test_folders_that_cannot_be_written_are_refused(folder, capsys, monkeypatch):
    for name in ("make_codebook", "save"):
        monkeypatch.setattr(convert, name, must_not_run)
    assert "make it first" in assert_refused(command(given(out="nowhere/new")), capsys)
    assert "cannot write into /proc" in assert_refused(command(given(out="/proc/new")), capsys)


@pytest.mark.parametrize("bad", [["convert"], ["convert", "other"], ["convert", "llamagen"]])
def test_incomplete_commands_are_refused(bad, folder, capsys):
    assert_refused(bad, capsys)
