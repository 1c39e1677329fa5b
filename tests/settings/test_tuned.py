"""Which files of tuned settings a call uses, and what is said about those that it does not."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

from lantern_jax.checkpoints.store import load_shapes, save
from lantern_jax.decoding.drafting.jacobi import Jacobi
from lantern_jax.decoding.drafting.led import Led
from lantern_jax.decoding.rules.near import Near
from lantern_jax.pipeline.pipeline import Pipeline, load
from lantern_jax.settings import tuned
from lantern_jax.settings.tuned import Found, Key, Tuned, file_name, read_files, read_tuned
from tests.tiny_checkpoint import tiny_checkpoint

OPTIONS = {"method": "jacobi:window=3"}


@pytest.fixture
def folder(tiny_folder, tmp_path) -> Path:
    """A checkpoint's folder that is a test's own."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "tiny"))


@pytest.fixture
def opened(folder):
    """tuned -> what ``load`` of the checkpoint gives; where there is no file for a call, nothing is chosen either."""
    checkpoint = load_shapes(folder)

    def opening(tuned="auto"):
        pipeline = Pipeline(checkpoint, None, tuned)
        pipeline._chooses = False
        return pipeline

    return opening


@pytest.fixture
def key(opened) -> Key:
    """Returns the key of a call for one picture."""
    pipeline = opened("off")
    return Key.of(pipeline.checkpoint, pipeline.settings({}), pipeline.dtype, 1)


@pytest.fixture
def write(folder):
    """(key, file, changed values) -> the written file, by default in the checkpoint's folder."""

    def writing(key: Key, file=None, **changed):
        made = Tuned(**{"key": key, "options": OPTIONS, "speedup": 1.5} | changed)
        file = folder / file_name(key) if file is None else file
        file.write_text(made.to_json())
        return file

    return writing


def test_a_file_for_this_very_call_is_used(folder, key, write):
    file = write(key)
    pipeline = load(folder)
    assert read_tuned(file) == Tuned(key, OPTIONS, 1.5, file=file)
    settings = pipeline.check("a lake")
    assert isinstance(settings.drafting, Jacobi) and settings.drafting.window == 3
    note = pipeline.tuning(1).note
    assert note == f"tuned: jacobi:window=3, 1.50 times as fast as plain decoding when tuned ({file})"
    # Off, or steered: as if there were no file.
    untuned = load(folder, tuned="off")
    assert isinstance(untuned.check("a lake").drafting, Led)
    assert pipeline.check("a lake", method="auto") == settings
    steered = {"drafting": "tree", "method": "gumbel", "rule": "strict", "coupling": "gumbel"}
    for options in ({name: value} for name, value in steered.items()):
        assert pipeline.check("a lake", **options) == untuned.check("a lake", **options)
        assert pipeline.tuning(1, **options) == Found()
    assert pipeline.check("a lake", guidance=None, batch=8) == settings


@pytest.mark.parametrize(("changed", "words"), [
    ({"checkpoint": "0" * 16}, "model tiny of other contents"),
    ({"device": "a faster one"}, "device a faster one, not "), ({"batch": 8}, "batch 8, not 1"),
    ({"dtype": "bfloat16"}, "dtype bfloat16, not float32"), ({"guidance": 7.5}, "guidance 7.5, not 2.0"),
    ({"temperature": 0.0}, "temperature 0.0, not 1.0"), ({"batch": 8, "top_k": 9}, "batch 8, not 1; top_k 9, not 0"),
])  # fmt: skip
def test_a_file_for_anything_else_is_ignored_with_a_note(opened, key, write, changed, words):
    file = write(dataclasses.replace(key, **changed))
    pipeline = opened()
    assert pipeline.check("a lake") == opened("off").check("a lake")
    note = pipeline.tuning(1).note
    assert note.startswith(f"{file} is tuned for {words}") and note.endswith(": not used")
    assert "\n" not in note


def test_a_file_is_for_what_is_decoded_together(opened, key, write):
    """One picture is a batch of one, however many a batch may have."""
    write(key)
    pipeline = opened()
    for call, kind in (
        ({"batch": 8}, Jacobi), ({"num": 2}, Led), ({"num": 2, "batch": 1}, Jacobi), ({"guidance": 3.0}, Led)
    ):  # fmt: skip
        assert isinstance(pipeline.check("a lake", **call).drafting, kind)
    assert "is tuned for batch 1, not 2" in pipeline.tuning(2).note


def test_files_for_other_models_are_mentioned_only_when_named(opened, key, write, tmp_path):
    other = write(dataclasses.replace(key, model="another", checkpoint="1" * 16))
    assert opened().tuning(1).note == ""
    assert opened(other).tuning(1).note == f"{other} is tuned for model another: not used"
    # The nearest is named, and one that fits is taken.
    near = write(dataclasses.replace(key, batch=4))
    write(dataclasses.replace(key, batch=8, dtype="bfloat16"))
    assert opened().tuning(1).note.startswith(str(near))
    write(key)
    assert opened().tuning(1).options == OPTIONS
    with pytest.raises(ValueError, match="there is no such file"):
        opened(tmp_path / "none.json")


def test_a_damaged_file_is_ignored_with_a_note(opened, key, write):
    file = write(key)
    file.write_text(file.read_text()[:-40])
    pipeline = opened()
    assert isinstance(pipeline.check("a lake").drafting, Led)
    assert pipeline.tuning(1).note.startswith(f"{file} holds no tuned settings or is damaged")


WRONG = {
    "speedup": [None, "1.5", [1.5]],
    "key": [None, {}, []],
    "version": [1, 2],
    "key.guide": [1.0],
    "key.batch": [None, 0, 1.0, "1", True, 2**40],
    "key.guidance": [None, -1, "4", True],
    "key.top_k": [0.5, -1, None],
    "options": [None, [], "led", {"widow": "3"}, {"method": "best"}, {"method": 3}, {"method": ["led"]},
                {"method": "gumbel:tree=x.json"}, {"method": "led:window=1000000"},
                {"guidance": 3.0}, {"batch": "4"}],
}  # fmt: skip


@pytest.mark.parametrize("place", WRONG)
def test_every_part_of_a_file_is_checked(key, write, tmp_path, place):
    """A wrong one is reported when it is read, not when something stumbles over it later."""
    file = write(key, tmp_path / "a.json")
    read_tuned(file)
    values = json.loads(file.read_text())
    *above, name = place.split(".")
    for wrong in WRONG[place]:
        changed = json.loads(json.dumps(values))
        (changed[above[0]] if above else changed)[name] = wrong
        file.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match="holds no tuned settings or is damaged"):
            read_tuned(file)
    for word in ("NaN", "Infinity", "-1e999"):
        file.write_text(json.dumps(values).replace("1.5", word))
        with pytest.raises(ValueError, match="holds no tuned settings or is damaged"):
            read_tuned(file)


def test_a_relaxed_rule_is_used_with_its_budget_and_says_so(opened, key, write):
    write(key, options=OPTIONS | {"rule": "near:tau=1"}, substituted=0.031, budget=0.05)
    pipeline = opened()
    assert pipeline.check("a lake").rule == Near(tau=1.0)
    assert "3.1% of tokens substituted" in pipeline.tuning(1).note


def test_checkpoints_in_memory_and_others_have_keys_of_their_own(tiny_folder, key, tmp_path):
    again = save(tmp_path / "again", dataclasses.replace(tiny_checkpoint(), defaults={"guidance": 3.0}))
    digests = {tuned.digest(load_shapes(folder)) for folder in (tiny_folder, again)}
    assert len(digests) == 2 and tuned.digest(tiny_checkpoint()) == ""
    assert Pipeline(tiny_checkpoint()).tuning(1).note == ""
    assert read_files("off", tiny_folder) == ([], [], False)
    files = {file_name(dataclasses.replace(key, batch=batch, dtype=dtype))
             for batch in (1, 8) for dtype in ("float32", "bfloat16")}  # fmt: skip
    assert len(files) == 4 and json.loads(Tuned(key, OPTIONS, 1.0).to_json())["key"]["batch"] == 1
    assert key.dtype == jnp.dtype(jnp.float32).name
