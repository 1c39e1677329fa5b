"""``lantern tune`` from end to end on the tiny checkpoint, and what ``generate`` makes of what it wrote."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import pytest

import lantern_jax.pipeline.pipeline
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.measuring import subject, tune
from lantern_jax.apps.measuring.subject import sample_prompts
from lantern_jax.checkpoints.store import save
from tests.command import assert_refused, files, must_not_run
from tests.tiny_checkpoint import sharing_programs, tiny_checkpoint, tiny_pipeline

# It compiles sooner than for all devices.
ONE_DEVICE = ("--mesh", "data=1")


@pytest.fixture(autouse=True)
def folder(tiny_folder, tmp_path, monkeypatch):
    """The tiny checkpoint in a folder of a test's own, its programs, an empty current folder, and little to measure."""
    monkeypatch.chdir(tmp_path)
    load = sharing_programs(lantern_jax.pipeline.pipeline.load)
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", load)
    for name, value in {"_WINDOWS": 1, "_ENOUGH": 2, "tree_names": lambda: ("chain",)}.items():
        monkeypatch.setattr(tune, name, value)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", before or str(tmp_path.parent / "xla"))
    yield Path(shutil.copytree(tiny_folder, tmp_path.parent / f"{tmp_path.name}-tiny"))
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.slow
def test_what_was_tuned_is_used(folder, capsys):
    common = ["--model", str(folder), "--guidance", "2", *ONE_DEVICE]
    assert main(["tune", *common, "--minutes", "30", "--batch", "2"]) == 0
    printed = capsys.readouterr()
    (file,) = folder.glob("tuned-*.json")
    lines = printed.out.splitlines()
    assert lines[-1].startswith(f"wrote {file}: ") and re.search("plain decoding .*when tuned", lines[-1])
    assert sum("(default)" in line for line in lines) == 1 == sum(" * " in line for line in lines)
    written = json.loads(file.read_text())
    assert written["key"]["batch"] == 2 and written["key"]["dtype"] == "float32" and written["budget"] is None
    rows = written["found"]["candidates"]
    methods = [row["options"]["method"] for row in rows]
    assert {"ar", "gumbel:drafter=eagle", "gumbel:drafter=eagle,tree=chain", "echo"} < set(methods)
    racing = [row for row in rows if row["turns"] > 1]
    assert written["options"] == max(racing, key=lambda row: row["times_plain"][0])["options"]
    # Without a budget nothing is relaxed.
    assert all("rule" not in row["options"] and row["substituted"] == [0, 0] for row in rows)

    one = ["generate", "a lake", *common, "--seed", "4"]
    generate = [*one, "--num", "2"]
    assert main([*generate, "--out", "two.png"]) == 0
    assert f"lantern: tuned: {written['options']['method']}, " in capsys.readouterr().err
    assert main([*one, "--out", "one.png"]) == 0
    told = capsys.readouterr().err
    assert told.startswith("lantern: auto: ") and told.endswith(
        f"; {file} is tuned for batch 2, not 1: not used\n"
    )
    assert main([*generate, "--tuned", "off", "--out", "off.png"]) == 0
    assert main([*generate, "--method", "ar", "--out", "plain.png"]) == 0
    assert capsys.readouterr().err == ""
    assert Path("two.png").read_bytes() == Path("off.png").read_bytes() == Path("plain.png").read_bytes()
    assert main([*generate, "--tuned", str(file), "--temperature", "0.5", "--out", "other.png"]) == 0
    assert "temperature 1.0, not 0.5: not used" in capsys.readouterr().err


@pytest.mark.slow
def test_a_budget_lets_relaxed_rules_in(folder, capsys, monkeypatch):
    """What they substitute is written; settings tuned into a file of one's own are used by naming it."""
    monkeypatch.setattr(tune, "RULES", ("near:tau=2", "lantern++:lam=3"))
    Path("prompts.txt").write_text("a lake\nhills at noon\n")
    # The batch of the test above, to share its programs.
    model = ["--model", str(folder), *ONE_DEVICE]
    more = "--minutes 30 --batch 2 --prompts prompts.txt --max-substituted 0.9 --out mine.json"
    assert main(["tune", *model, *more.split()]) == 0
    written = json.loads(Path("mine.json").read_text())
    assert not list(folder.glob("tuned-*")) and written["budget"] == 0.9 and written["found"]["prompts"] == 2
    relaxed = [row for row in written["found"]["candidates"] if "rule" in row["options"]]
    assert len(relaxed) == 4 and any(row["substituted"][0] > 0 for row in relaxed)
    capsys.readouterr()
    assert main(["generate", "a lake", "--num", "2", *model, "--tuned", "mine.json"]) == 0
    assert f"tuned: {' '.join(written['options'].values())}, " in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "words"), [
    (["--max-substituted", "1.5"], "--max-substituted 1.5 is not valid"),
    (["--prompts", "nowhere.txt"], "nowhere.txt is not a file"),
    (["a lake", "--prompts", "empty.txt"], "one of the two"), (["--out", "empty.txt"], "empty.txt exists"),
    (["--out", "none/x.json"], "none is not a folder"), (["--model", "none"], "none"),
    (["a flying carpet"], "unknown word"),
])  # fmt: skip
def test_bad_input_is_refused_in_one_line_before_any_work(tiny_folder, arguments, words, capsys, monkeypatch):
    Path("empty.txt").write_text("\n \n")
    monkeypatch.setattr(tune, "tune", must_not_run)
    given = arguments if "--model" in arguments else [*arguments, "--model", str(tiny_folder)]
    assert words in assert_refused(["tune", *given], capsys)


def test_a_budget_needs_a_codebook(tmp_path, capsys, monkeypatch):
    bare = save(tmp_path / "bare", dataclasses.replace(tiny_checkpoint(), codebook=None))
    monkeypatch.setattr(tune, "tune", must_not_run)
    before = files(tmp_path)
    assert main(["tune", "--model", str(bare), "--max-substituted", "0.5"]) == 2
    assert "has no codebook" in capsys.readouterr().err and files(tmp_path) == before


def test_every_checkpoint_has_prompts_of_its_own():
    checkpoint = tiny_checkpoint()
    words = sample_prompts(checkpoint, 20)
    assert len(words) == 20 and len(set(words)) > 5
    tiny_pipeline().check(words)
    assert sample_prompts(checkpoint, 20) == words != sample_prompts(checkpoint, 20, seed=1)
    dry = (("terrain", ("desert",)), ("water", ("lake", "river", "sea")))
    possible = dataclasses.replace(checkpoint.vocabulary, impossible=(dry,))
    for prompt in sample_prompts(dataclasses.replace(checkpoint, vocabulary=possible), 40):
        possible.completed(possible.parse(prompt))
    config = dataclasses.replace(checkpoint.target_config, label_slots=1, null_labels=None)
    classes = dataclasses.replace(checkpoint, vocabulary=None, target_config=config)
    numbers = sample_prompts(classes, 12)
    assert sorted(numbers) == sorted(set(numbers)) and 0 <= min(numbers) < max(numbers) < config.num_labels
    assert len(sample_prompts(classes, 50)) == 50
    config = dataclasses.replace(config, num_labels=0, caption_dim=8)
    captions = dataclasses.replace(classes, target_config=config)
    assert sample_prompts(captions, 5) == list(subject.CAPTIONS[:5])
    assert sample_prompts(captions, 50)[12:14] == list(subject.CAPTIONS[:2])
