"""A package beside ours that provides a rule, a drafting, a kind of drafter, a family and a metric."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

import lantern_jax
from lantern_jax.apps.commands.main import main
from lantern_jax.checkpoints.store import save
from lantern_jax.io import plugins
from tests.refused import refused
from tests.tiny_checkpoint import tiny_checkpoint

PACKAGE = Path(__file__).resolve().parents[1] / "fixtures" / "plugin"
BROKEN = "[lantern_jax.plugins]\nowl = lantern_nothing:register\n"


@pytest.fixture
def forgotten(monkeypatch):
    """Entry points are read again, and what they register is forgotten afterwards."""
    monkeypatch.setattr(plugins, "_broken", None)
    for table in plugins._tables:
        monkeypatch.setattr(table, "theirs", {})


@pytest.fixture
def package(forgotten, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("lantern_owl")]:
        del sys.modules[name]


def test_the_command_knows_all_five_by_name(package, capsys):
    save("tiny", tiny_checkpoint())
    assert main(["convert", "owl", "--model", "tiny", "--out", "own"]) == 0, capsys.readouterr().err
    assert json.loads(Path("own/config.json").read_text())["family"] == "owl"
    generate = ["generate", "a lake", "--model", "own", "--batch", "1"]
    Path("tree.json").write_text("[[0], [0, 0]]")
    rule = ["--rule", "owl", "--hoot", "0.25", "--drafting", "owl-window", "--window", "2"]
    assert main([*generate, *rule, "--out", "rule.png", "--stats", "rule.json"]) == 0, capsys.readouterr().err
    tree = ["--drafting", "owl-drafter", "--tree", "tree.json"]
    assert main([*generate, *tree, "--out", "drafter.png"]) == 0, capsys.readouterr().err
    made = json.loads(Path("rule.json").read_text())
    assert made["substituted"] > 0, made
    Path("pictures").mkdir()
    for number in range(2):
        Image.new("RGB", (16, 16)).save(f"pictures/{number}.png")
    Path("prompts.txt").write_text("a lake\na lake\n")
    words = ["metrics", "pictures", "--scores", "owls", "--prompts", "prompts.txt", "--out", "owls.json"]
    assert main(words) == 0, capsys.readouterr().err
    assert json.loads(Path("owls.json").read_text())["scores"][0]["mean"] == 0


def test_errors_and_help_show_what_is_registered(package, capsys):
    for line, status, said in (
        ("generate lake --rule crow", 2, "owl"),
        ("generate lake --rule owl --hoot 2", 2, "hoot 2.0 is not valid: give a number in [0, 1]"),
        ("generate --help-all", 0, "--hoot"),
        ("methods --markdown", 0, "| `hoot` | `0.5` |"),
    ):
        assert main(line.split()) == status and said in capsys.readouterr()[status // 2]
    for name, said in (
        ("owl", "there is a rule owl already"),
        ("An Owl", "rule 'An Owl' is not valid: give a name"),
    ):
        with refused(said):
            lantern_jax.register_rule(name, lantern_jax.RuleKind(lantern_jax.Strict))


def test_a_broken_package_is_a_one_line_error(forgotten, monkeypatch, tmp_path, capsys):
    info = tmp_path / "lantern_crow-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lantern-crow\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["generate", "a lake", "--rule", "crow"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "the plug-in package lantern-crow failed (ModuleNotFoundError" in said
    with refused("the plug-in package lantern-crow failed"):
        lantern_jax.rule_from_name("crow")


def test_known_names_do_not_read_entry_points(package):
    assert lantern_jax.rule_from_name("near").k == 1 and main(["methods"]) == 0
    assert plugins._broken is None and "lantern_owl" not in sys.modules
