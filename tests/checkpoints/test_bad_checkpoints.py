"""Missing, damaged or foreign checkpoints: the command and the library refuse each in one line, before any work."""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path

import jax
import numpy as np
import pytest

import lantern_jax.engine.engine
from lantern_jax.apps.commands.report import describe
from lantern_jax.checkpoints.store import load_shapes, save
from lantern_jax.engine import compiler
from lantern_jax.models.vq import vq_shapes
from tests.command import assert_refused, files, must_not_run
from tests.hostile.folders import replace
from tests.refused import refused
from tests.tiny_checkpoint import VQ, random_leaves, tiny_checkpoint

MUTATIONS = 80


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
    # As the error for a changed config advises.
    config.get("checksums", {}).pop("config.json", None)
    (folder / "config.json").write_text(json.dumps(config))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def other_sizes(folder: Path) -> None:
    """Changes the config so that a layer is missing, query and key norms are unexpected and a matrix is misshapen."""
    for name, value in {"num_layers": 2, "qk_norm": "", "hidden_dim": 48}.items():
        change(folder, "target", name, to=value)


LONG = f"text/{'è' * 200}"
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
    ("version", ""): (2, "version 2, expected 3: convert it again"),
    ("family",): (None, "unknown family None"),
    ("target",): (None, "no model and target"),
    ("target", "dim"): ("wide", "dim 'wide'"),
    ("tokenizer", "wings"): (2, "wings"),
    ("codebook",): ({"neighbours": 3}, "channels"),
    ("defaults",): (3, "defaults"),
    ("vocabulary", "words"): (3, "vocabulary"),
    ("checksums",): (None, '"checksums" are not those of the files'),
    ("checksums", "model.safetensors"): (0, '"checksums" are not those of the files'),
    ("files",): (None, '"files" are not those of a checkpoint'),
    ("files", "../model.safetensors"): (1, '"files" are not those of a checkpoint'),
    ("files", LONG): (1, "è is missing"),
    ("drafters",): ([1], "drafters are not an object"),
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
    (folder / "text").mkdir()
    if path == ("files", LONG):
        change(folder, "checksums", LONG, to="0")
    change(folder, *filter(None, path), to=value)
    assert_not_loaded([part])


MISSING, UNKNOWN = object(), object()
# What replaces an entry of a config; text that JSON has no value for is written as it is.
VALUES = {
    "missing": MISSING, "unknown": UNKNOWN, "null": None, "true": True, "minus one": -1, "zero": 0, "one more": 7,
    "2**31": 2**31, "2**62": 2**62, "10**400": 10**400, "1e308": 1e308, "a half": 0.5,
    "not a number": float("nan"), "infinity": float("inf"), "text": "wide", "long text": "x" * 100_000,
    "escapes": "\x1b[2J\x1b]0;title\x07\nsecond line\u202e", "empty list": [], "empty object": {},
    "list": [1, [2, [3]]], "many": list(range(20_000)), "object": {"a": {"b": [None]}},
    "deep": json.loads("[" * 60 + "]" * 60), "deeper": "[" * 100_000 + "]" * 100_000,
}  # fmt: skip
# Entries whose contents are many and alike, or meant for people.
CLOSED = {"words", "attributes", "ignored", "defaults", "metadata", "checksums"}


def places(values: dict, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the path of every entry, at any depth."""
    for name, value in values.items():
        yield (*above, name)
        if isinstance(value, dict) and name not in CLOSED:
            yield from places(value, (*above, name))


def mutated(config: dict, path: tuple[str, ...], value: str) -> str:
    """Returns the text of a config with one of ``VALUES`` there; its checksum is dropped, as anybody can compute it."""
    changed, to = json.loads(json.dumps(config)), VALUES[value]
    entry = reduce(getitem, path[:-1], changed)
    if to is UNKNOWN:
        entry[f"{path[-1]}\x1b[2J"] = 1
    elif to is MISSING:
        del entry[path[-1]]
    else:
        entry[path[-1]] = to
    return json.dumps(changed).replace(json.dumps(VALUES["deeper"]), VALUES["deeper"])


def test_untrusted_configs_are_read_or_refused(tiny_folder, folder):
    """Every kind of wrong value, in random places: refused quickly in one line, or read and then describable."""
    config = json.loads((tiny_folder / "config.json").read_text())
    known = [(path, value) for path in places(config) for value in VALUES]
    chosen = np.random.default_rng(12).choice(len(known), MUTATIONS, replace=False)
    refusals = 0
    for path, value in [known[number] for number in chosen]:
        (folder / "config.json").write_text(mutated(config, path, value))
        try:
            describe(load_shapes(folder))
        except ValueError as error:
            assert str(error).isprintable() and len(str(error)) < 20_000, (path, value)
            refusals += 1
    assert 0.8 * MUTATIONS < refusals < MUTATIONS


@pytest.mark.parametrize(("path", "value", "part"), [
    (("target", "num_layers"), 10**6, "num_layers 1000000 is not valid: give a whole number from 1 to 512"),
    (("target", "grid"), 2**15, "grid 32768 is not valid"),
    (("codebook", "neighbours"), -1, "its codebook lacks a number of neighbours"),
    (("wings",), 2, "unknown entries: wings"),
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


def test_a_config_must_be_a_regular_file_of_a_sane_size(folder):
    path = folder / "config.json"
    path.write_bytes(path.read_bytes() + b" " * (1 << 22))
    with refused("than 4194304 bytes"):
        load_shapes(folder)
    path.unlink()
    os.mkfifo(path)
    with refused(r"it has no config\.json"):
        load_shapes(folder)


def test_arrays_of_other_layouts_are_refused(folder):
    """Arrays that hold no numbers, and numbers that do not start at a multiple of their size."""
    content = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length].rstrip(), content[8 + length :]
    truths = header.replace(b'"U16","shape":[32,12]', b'"BOOL","shape":[64,12]')
    for changed in (header + b" " * (1 - len(header) % 2), truths + b" " * (-len(truths) % 8)):
        replace(folder, "model.safetensors", len(changed).to_bytes(8, "little") + changed + data)
        with refused("laid out otherwise"):
            load_shapes(folder)
