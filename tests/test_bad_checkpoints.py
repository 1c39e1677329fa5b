"""Checkpoints that are missing, damaged or foreign: one line from the command and from the library, before any work."""

import json
import shutil
from pathlib import Path

import pytest

import lantern_jax.engine
from lantern_jax.checkpoints.store import save
from tests.command import assert_refused, files, must_not_run
from tests.tiny_checkpoint import tiny_checkpoint

PROMPT = "a foggy forest"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The tiny checkpoint as a directory."""
    return save(tmp_path_factory.mktemp("saved") / "tiny", tiny_checkpoint())


def change(folder: Path, *path: str, to) -> None:
    """Changes one entry of a checkpoint's config.json; None drops it."""
    config = json.loads((folder / "config.json").read_text())
    *parents, name = path
    entry = config
    for parent in parents:
        entry = entry[parent]
    if to is None:
        del entry[name]
    else:
        entry[name] = to
    # As the error of a changed config advises.
    config["checksums"].pop("config.json", None)
    (folder / "config.json").write_text(json.dumps(config))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def remove_all(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def other_sizes(folder: Path) -> None:
    """With this config a layer is missing, the norms of queries and keys are too much, a matrix has another shape."""
    for name, value in {"num_layers": 2, "qk_norm": False, "hidden_dim": 48}.items():
        change(folder, "target", name, to=value)


# What happened to a checkpoint, and parts of what is said about it.
DAMAGES = {
    "missing": (shutil.rmtree, ["not a directory"]),
    "a file": (lambda folder: (shutil.rmtree(folder), folder.write_text("x")), ["not a directory"]),
    "empty": (remove_all, ["no config.json"]),
    "foreign": (lambda folder: change(folder, "format", to="other"), ["not that of a lantern_jax checkpoint"]),
    "of another version": (lambda folder: change(folder, "version", to=99), ["version 99"]),
    "an array file truncated": (lambda folder: truncate(largest(folder / "arrays")), ["bytes, expected"]),
    "an array file missing": (lambda folder: largest(folder / "arrays").unlink(), ["is missing"]),
    "arrays missing": (lambda folder: shutil.rmtree(folder / "arrays"), ["arrays", "missing"]),
    "config truncated": (lambda folder: truncate(folder / "config.json"), ["damaged"]),
    "config a list": (lambda folder: (folder / "config.json").write_text("[]"), ["not that of"]),
    "tensors missing, extra and misshapen": (
        other_sizes,
        ["missing: target.transformer.layer_1.", "unexpected: ", "query_norm.scale", "[32, 16], expected [48, 16]"],
    ),
    "a part extra": (lambda folder: change(folder, "tokenizer", to=None), ["unexpected: tokenizer."]),
    "a size in words": (lambda folder: change(folder, "target", "dim", to="wide"), ["dim 'wide'"]),
    "a size of zero": (lambda folder: change(folder, "drafters", "eagle", "num_heads", to=0), ["num_heads 0"]),
    "an unknown size": (lambda folder: change(folder, "tokenizer", "wings", to=2), ["wings"]),
    "defaults of numbers": (lambda folder: change(folder, "defaults", to=3), ["defaults"]),
    "a vocabulary of numbers": (lambda folder: change(folder, "vocabulary", "words", to=3), ["vocabulary"]),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGES)
def test_bad_checkpoints_are_refused(what, saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("compile_ahead", "run_timed"):
        monkeypatch.setattr(lantern_jax.engine, name, must_not_run)
    damage, parts = DAMAGES[what]
    damage(Path(shutil.copytree(saved, "bad")))
    for command in (["info", "bad"], ["generate", PROMPT, "--model", "bad"]):
        line = assert_refused(command, capsys)
        assert all(part in line for part in parts), line
    before = files(Path())
    with pytest.raises(ValueError) as error:
        lantern_jax.load("bad")
    assert "\n" not in str(error.value)
    assert all(part in str(error.value) for part in parts)
    assert files(Path()) == before
