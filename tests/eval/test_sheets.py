"""The demo's sheets: the same prompt in the same place, and the words that a classifier does not find."""

import numpy as np
import pytest
from PIL import Image

from eval import sheets
from lantern_jax.apps.metrics.agreement import shipped_classifier
from lantern_jax.apps.metrics.landscapes import ATTRIBUTES, LANDSCAPES
from tests.tiny_checkpoint import SIDE
from train.painter.landscapes import render


def test_the_prompts_are_possible_and_have_every_value():
    assert len(set(sheets.PROMPTS)) == 36
    said = [LANDSCAPES.labels(LANDSCAPES.parse(prompt)).items() for prompt in sheets.PROMPTS]
    shown = set().union(*said)
    usual = set(LANDSCAPES.usual.items())
    assert {(name, value) for name, values in ATTRIBUTES.items() for value in values} - shown <= usual
    for prompt, scene in zip(sheets.PROMPTS, sheets.scenes(sheets.PROMPTS, 0), strict=True):
        assert all(
            getattr(scene, name) == value
            for name, value in LANDSCAPES.labels(LANDSCAPES.parse(prompt)).items()
        )


def test_a_word_is_missing_where_another_is_seen():
    prompts = ["a foggy lake at dusk", "a town"]
    found = np.array([LANDSCAPES.completed(LANDSCAPES.parse(prompt)) for prompt in prompts])
    assert sheets.missing(prompts, found) == {}
    found[0, list(ATTRIBUTES).index("water")] = ATTRIBUTES["water"].index("sea")
    # What a prompt does not name may have any value.
    found[1, list(ATTRIBUTES).index("style")] = 2
    assert sheets.missing(prompts, found) == {"a foggy lake at dusk": [("lake", "sea")]}


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_demo")
def test_sheets_have_each_prompt_in_the_same_place(tmp_path, capsys, monkeypatch):
    prompts = sheets.PROMPTS[:7]
    monkeypatch.setattr(sheets, "PROMPTS", prompts)
    monkeypatch.setattr(
        sheets, "seen", lambda classifier, pictures: np.zeros((len(pictures), len(ATTRIBUTES)), int)
    )
    sheets.main(["--out", str(tmp_path / "sheets"), "--seed", "3"])
    sizes = {}
    for path in (tmp_path / "sheets").iterdir():
        with Image.open(path) as sheet:
            sizes[path.stem] = sheet.size
    assert len(set(sizes.values())) == 1 and set(sizes) == {"rendered", "decoded", "generated"}
    assert sizes["rendered"][0] > 6 * SIDE
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "rendered: every word in 0 of 7" and "for river" in said[1]


def test_a_classifier_sees_what_is_rendered():
    prompts = sheets.PROMPTS[:4]
    pictures = np.stack([render(scene, shipped_classifier().side) for scene in sheets.scenes(prompts, 5)])
    assert len(sheets.missing(prompts, sheets.seen(shipped_classifier(), pictures))) <= 1
