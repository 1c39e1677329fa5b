"""The README's commands and example are what they claim to be."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import lantern_jax
import lantern_jax.pipeline.pipeline
from lantern_jax.commands.main import make_parser
from tests.tiny_checkpoint import tiny_pipeline

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(marker: str) -> str:
    return re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", README, re.DOTALL)[1]


@pytest.mark.parametrize("name", ["generate", "test"])
def test_commands_are_one_line_with_their_own_environment(name):
    command = block(f"command: {name}").strip()
    assert "\n" not in command
    assert command.startswith("python3 -m venv .venv")


def test_the_generate_command_parses():
    words = re.search(r'lantern generate "(.+?)" (.+)', block("command: generate"))
    arguments = make_parser().parse_args(["generate", words[1], *words[2].split()])
    assert arguments.compare
    tiny_pipeline().check(arguments.prompts)


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    example = block("example: python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lantern_jax, "load", lambda model: tiny_pipeline(), raising=False)
    exec(compile(example, "README.md", "exec"), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "forest-2.png",
        "forest-3.png",
        "landscape-0.png",
        "landscape-1.png",
    ]
    assert "100% the same tokens" in capsys.readouterr().out


def test_names_are_those_of_the_package():
    names = re.findall(r"`lantern_jax\.(\w+)", README)
    assert "Drafting" in names and set(names) <= set(lantern_jax.__all__)
    listed = re.search(r"^\| Methods \| by name: (.+?);", README, re.MULTILINE)[1]
    assert re.findall(r"`(.+?)`", listed) == list(lantern_jax.methods())
    for option in re.findall(r"`(--[a-z-]+ [^`]+)`", README):
        if "FILE" not in option:
            make_parser().parse_args(["generate", "a lake", *option.split()])


def test_version_is_the_distributions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == lantern_jax.__version__


def test_the_script_is_that_of_python_m():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["scripts"]["lantern"].partition(":")
    assert module == f"{lantern_jax.__name__}.__main__" and callable(getattr(import_module(module), name))
