"""Checkpoints that are missing, damaged or foreign: one line from the command and from the library, before any work."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import lantern_jax.engine.engine
from lantern_jax.checkpoints.store import describe, load, save
from lantern_jax.commands.main import main
from lantern_jax.families.llamagen_vq_weights import vq_shapes
from tests.command import assert_refused, files, must_not_run
from tests.hostile.mutated_configs import mutated, mutations
from tests.tiny_checkpoint import VQ, random_leaves, tiny_checkpoint

PROMPT = "a foggy forest"
MUTATIONS = 80


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


def drop_checksums(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["checksums"]
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
    for name, value in {"num_layers": 2, "qk_norm": "", "hidden_dim": 48}.items():
        change(folder, "target", name, to=value)


# What happened to a checkpoint, and parts of what is said about it.
DAMAGES = {
    "missing": (shutil.rmtree, ["not a directory"]),
    "a file": (lambda folder: (shutil.rmtree(folder), folder.write_text("x")), ["not a directory"]),
    "empty": (remove_all, ["no config.json"]),
    "foreign": (lambda folder: change(folder, "format", to="other"), ["not that of a lantern_jax checkpoint"]),
    "of another version": (lambda folder: change(folder, "version", to=99), ["version 99"]),
    "an array file truncated": (lambda folder: truncate(largest(folder)), ["bytes, expected"]),
    "an array file missing": (lambda folder: largest(folder).unlink(), ["is missing"]),
    "of an older version": (lambda folder: change(folder, "version", to=2), ["version 2, expected 3: convert it"]),
    "config without checksums": (lambda folder: drop_checksums(folder), ['"checksums" are not those of the files']),
    "config truncated": (lambda folder: truncate(folder / "config.json"), ["damaged"]),
    "config a list": (lambda folder: (folder / "config.json").write_text("[]"), ["not that of"]),
    "tensors missing, extra and misshapen": (
        other_sizes,
        ["missing: target.params.transformer.layer_1.", "unexpected: ", "query_norm", "[32, 16], expected [48, 16]"],
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
        monkeypatch.setattr(lantern_jax.engine.engine, name, must_not_run)
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


def test_configs_from_strangers_are_read_or_refused(saved, tmp_path):
    """Every kind of wrong value in some places: one line, quickly; what is read can be described."""
    folder = Path(shutil.copytree(saved, tmp_path / "bad"))
    config = json.loads((saved / "config.json").read_text())
    known = mutations(config)
    chosen = np.random.default_rng(12).choice(len(known), MUTATIONS, replace=False)
    refused = 0
    for path, value in [known[number] for number in chosen]:
        (folder / "config.json").write_text(mutated(config, path, value))
        try:
            describe(load(folder, abstract=True))
        except ValueError as error:
            assert str(error).isprintable() and len(str(error)) < 20_000, (path, value)
            refused += 1
    assert 0.8 * MUTATIONS < refused < MUTATIONS


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        (("target", "num_layers"), 500, "num_layers 500 does not fit the "),
        (("target", "num_layers"), 10**6, "num_layers 1000000 is not valid: give a whole number from 1 to 512"),
        (("tokenizer", "decoder_blocks"), 64, "decoder_blocks 64 does not fit the "),
        (("target", "grid"), 2**15, "grid 32768 is not valid"),
        (("tokenizer", "ch_mult"), [1] * 1000, "ch_mult "),
        (("target", "rope_base"), 1e308, "rope_base 1e+308 is not valid"),
        (("codebook", "neighbours"), -1, "its codebook lacks a number of neighbours"),
        (("wings",), 2, "unknown entries: wings"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused_before_shapes_are_made(
    path, value, part, saved, tmp_path, monkeypatch
):
    folder = Path(shutil.copytree(saved, tmp_path / "bad"))
    change(folder, *path, to=value)
    monkeypatch.setattr(jax, "eval_shape", must_not_run)
    with pytest.raises(ValueError) as error:
        load(folder, abstract=True)
    assert part in str(error.value)


def test_parts_of_other_models_are_refused_when_they_are_read(saved, tmp_path):
    """A tokenizer of another codebook draws other pictures, without a word."""
    folder = tmp_path / "bad"
    config = dataclasses.replace(VQ, codebook_size=64)
    params = random_leaves(vq_shapes(config), 0, 0.3)
    whole = tiny_checkpoint()
    parts = {"tokenizer_config": config, "tokenizer_params": params, "codebook": None}
    with pytest.raises(ValueError, match="codebook_size 64, the target's 32"):
        save(folder, dataclasses.replace(whole, **parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lantern_jax.checkpoints.store.check", lambda _: None)
        save(folder, dataclasses.replace(whole, **parts))
    with pytest.raises(ValueError, match="codebook_size 64, the target's 32"):
        load(folder, abstract=True)


def test_a_config_is_a_regular_file_of_a_sane_size(saved, tmp_path):
    folder = Path(shutil.copytree(saved, tmp_path / "bad"))
    path = folder / "config.json"
    path.write_bytes(path.read_bytes() + b" " * (1 << 22))
    with pytest.raises(ValueError, match="than 4194304 bytes"):
        load(folder, abstract=True)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        load(folder, abstract=True)


def test_names_from_files_are_escaped_on_a_terminal(saved, tmp_path, capsys):
    """In errors and in what ``info`` shows: a title, a cleared screen and a line of its own would be believed."""
    folder = Path(shutil.copytree(saved, tmp_path / "bad"))
    name = "\x1b[2J\x1b]0;title\x07lantern: all is well\u202e\r"
    change(folder, "model", to=f"{name}\n")
    change(folder, "metadata", to={name: [name, "è"], "more": name})
    assert main(["info", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n")) and "\\x1b[2J" in shown and "è" in shown
    change(folder, "target", name, to=1)
    assert main(["info", str(folder)]) == 2
    shown = capsys.readouterr().err
    assert shown[:-1].isprintable() and shown.endswith("\n") and "title" in shown
