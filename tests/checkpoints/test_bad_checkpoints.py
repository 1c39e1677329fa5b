"""Missing, damaged or foreign checkpoints: the command and the library refuse each in one line, before any work."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import pytest

import lantern_jax.engine.engine
from lantern_jax.checkpoints.store import load_shapes, save
from lantern_jax.engine import compiler
from lantern_jax.models.vq import vq_shapes
from tests.command import assert_refused, files, must_not_run
from tests.refused import refused
from tests.tiny_checkpoint import VQ, random_leaves, tiny_checkpoint


@pytest.fixture
def folder(tiny_folder, tmp_path, monkeypatch) -> Path:
    """A copy to damage, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(tiny_folder, tmp_path / "bad"))


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
    (folder / "config.json").write_text(json.dumps(config))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def other_sizes(folder: Path) -> None:
    """Changes the config so that a layer is missing, query and key norms are unexpected and a matrix is misshapen."""
    for name, value in {"num_layers": 2, "qk_norm": "", "hidden_dim": 48}.items():
        change(folder, "target", name, to=value)


# Damage to a checkpoint (or a wrong value in its config), and parts of the error.
DAMAGES = {
    "missing": (shutil.rmtree, ["not a directory"]),
    "a file": (lambda folder: (shutil.rmtree(folder), folder.write_text("x")), ["not a directory"]),
    "empty": (lambda folder: (shutil.rmtree(folder), folder.mkdir()), ["no config.json"]),
    "an array file truncated": (lambda folder: truncate(folder / "model.safetensors"), ["bytes, expected"]),
    "an array file missing": (lambda folder: (folder / "model.safetensors").unlink(), ["is missing"]),
    "config truncated": (lambda folder: truncate(folder / "config.json"), ["damaged"]),
    "config a list": (lambda folder: (folder / "config.json").write_text("[]"), ["not that of"]),
    "tensors missing, extra and misshapen": (
        other_sizes,
        [
            "missing: target.params.transformer.layer_1.", "unexpected: ", "layer_0.query_norm.scale",
            "target.params.transformer.layer_0.down.kernel is [32, 16], expected [48, 16]",
        ],
    ),
    "a drafter's array misshapen": (
        lambda folder: change(folder, "drafters", "eagle", "hidden_dim", to=48),
        ["drafters.eagle.params.transformer.layer_0.down.kernel is [32, 16], expected [48, 16]"],
    ),
}  # fmt: skip
CONFIGS = {
    ("format",): ("other", "not that of a lantern_jax checkpoint"),
    ("version",): (99, "version 99"),
    ("family",): (None, "unknown family None"),
    ("target", "dim"): ("wide", "dim 'wide'"),
    ("tokenizer", "wings"): (2, "wings"),
    ("codebook",): ({"neighbours": 3}, "channels"),
    ("vocabulary", "words"): (3, "vocabulary"),
    ("files",): (None, '"files" are not those of a checkpoint'),
    ("files", "../model.safetensors"): (1, '"files" are not those of a checkpoint'),
    ("files", "model.safetensors"): (7, "files: 'int'"),
    ("drafters",): ([1], "drafters: "),
    ("drafters", "eagle"): (None, "8 unexpected: drafters.eagle.params.fc.bias"),
    ("drafters", "owl"): ({}, "unknown kind of drafter 'owl': choose one of eagle, eagle3, medusa, parallel"),
    ("drafters", "eagle", "num_heads"): (0, "num_heads 0"),
    ("drafters", "eagle", "grid"): (5, "eagle drafter's grid 5, the target's 4"),
}  # fmt: skip


def assert_not_loaded(parts) -> None:
    before = files(Path())
    with refused(".") as error:
        lantern_jax.load("bad")
    assert all(part in str(error.value) for part in parts), error
    assert files(Path()) == before


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_checkpoints_are_refused(what, folder, capsys, monkeypatch):
    for place, name in ((compiler, "compile_ahead"), (lantern_jax.engine.engine, "run_timed")):
        monkeypatch.setattr(place, name, must_not_run)
    damage, parts = DAMAGES[what]
    damage(folder)
    line = assert_refused(["generate", "a foggy forest", "--model", "bad"], capsys)
    assert all(part in line for part in parts), line
    assert_not_loaded(parts)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: " ".join(path)[:30])
def test_configs_with_a_wrong_entry_are_refused(path, folder):
    value, part = CONFIGS[path]
    change(folder, *path, to=value)
    assert_not_loaded([part])


@pytest.mark.parametrize(("path", "value", "part"), [
    (("target", "num_layers"), 10**6, "num_layers 1000000 is not valid: give a whole number from 1 to 512"),
    (("target", "grid"), 2**15, "grid 32768 is not valid"),
])  # fmt: skip
def test_impossible_sizes_are_refused_before_shapes_are_computed(path, value, part, folder, monkeypatch):
    change(folder, *path, to=value)
    monkeypatch.setattr(jax, "eval_shape", must_not_run)
    with refused(part):
        load_shapes(folder)


def test_parts_of_other_models_are_refused_when_saved_and_when_read(tmp_path, monkeypatch):
    """A tokenizer with another codebook would silently draw other pictures."""
    config = dataclasses.replace(VQ, codebook_size=64)
    parts = {"tokenizer_config": config, "tokenizer_params": random_leaves(vq_shapes(config), 0, 0.3)}
    other = dataclasses.replace(tiny_checkpoint(), **parts, codebook=None)
    with refused("codebook_size 64, the target's 32"):
        save(tmp_path / "bad", other)
    with monkeypatch.context() as unchecked:
        unchecked.setattr("lantern_jax.checkpoints.store.check", lambda _: None)
        save(tmp_path / "bad", other)
    with refused("codebook_size 64, the target's 32"):
        load_shapes(tmp_path / "bad")
