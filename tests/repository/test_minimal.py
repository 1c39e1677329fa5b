"""The example that a reader copies draws what the library draws."""

import dataclasses
import json
import runpy
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from lantern_jax.checkpoints.store import save
from lantern_jax.text.encoded import EncodedPrompts
from tests.tiny_checkpoint import TARGET, tiny_checkpoint, tiny_pipeline

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "minimal.py"


def run(monkeypatch, *words) -> None:
    monkeypatch.setattr(sys, "argv", ["minimal.py", *map(str, words)])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.slow
def test_it_draws_the_librarys_picture(tmp_path, monkeypatch, capsys):
    tiny = tiny_checkpoint()
    # As in the demo: a drafter that reads codes from the target's table, which is stored once, and defaults of its own.
    (sizes, own), table = tiny.drafters["eagle"], tiny.target_params["params"]["tokens"]
    drafters = {"eagle": (sizes, {"params": own["params"] | {"tokens": table}})}
    defaults = tiny.defaults | {"guidance": 3.0, "temperature": 0.8}
    checkpoint = dataclasses.replace(tiny, drafters=drafters, defaults=defaults)
    folder = save(tmp_path / "tiny", checkpoint)
    assert "shared" in json.loads((folder / "config.json").read_text())
    labels = np.array([[0, 5, 12, 18, 24, 29, 35, 38]], np.int32)
    assert labels.shape[1] == TARGET.label_slots
    run(monkeypatch, folder, *labels[0], "--out", tmp_path / "a.png", "--seed", 3)
    encoded = EncodedPrompts("labels", ("a scene",), {"labels": labels})
    expected = tiny_pipeline().generate(encoded, seed=3, guidance=3.0, temperature=0.8, method="ar")
    drawn = np.asarray(Image.open(tmp_path / "a.png"), int)
    assert np.abs(drawn - expected.pictures[0]).max() <= 1
    said = capsys.readouterr().out
    assert "the same tokens" in said and "per pass" in said


def test_another_family_is_refused(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"family": "chameleon"}')
    with pytest.raises(SystemExit, match="no class-conditional LlamaGen"):
        run(monkeypatch, tmp_path, 1)
