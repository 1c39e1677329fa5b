"""The README and the pages of the documentation: commands parse, examples run, names and files exist."""

import re
import shlex
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lantern_jax
from lantern_jax.apps.commands.main import make_parser
from lantern_jax.apps.convert.formats import formats
from tests.tiny_checkpoint import tiny_pipeline

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
INDEX = (ROOT / "docs" / "index.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MODELS = sorted((ROOT / "docs" / "models").glob("*.md"))


def blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def marked(name: str) -> str:
    """Returns the block of the README below a marker."""
    return re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)[1]


def execute(examples: list[str], name: str, known: dict | None = None) -> dict:
    """Runs examples in order as one program, with what is ``known`` before; returns its variables."""
    known = {} if known is None else known
    for example in examples:
        exec(compile(example, name, "exec"), known)
    return known


def test_the_readmes_commands_are_one_line_with_their_own_environment():
    for name in ("generate", "test"):
        command = marked(f"command: {name}").strip()
        assert "\n" not in command and command.startswith("python3 -m venv .venv")
    words = re.search(r'lantern generate "(.+?)" (.+)', marked("command: generate"))
    arguments = make_parser().parse_args(["generate", words[1], *words[2].split()])
    assert arguments.compare
    tiny_pipeline().check(arguments.prompts)


def test_the_readmes_example_runs(tmp_path, monkeypatch, capsys, tiny_demo):
    example = marked("example: python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    execute([example], "README.md")
    assert [path.name for path in tmp_path.iterdir()] == ["desert.png"]
    assert "100% the same tokens" in capsys.readouterr().out


def test_the_readme_is_short_and_the_index_examples_run(tmp_path, monkeypatch, capsys, tiny_demo):
    assert len(README.splitlines()) <= 120
    monkeypatch.chdir(tmp_path)
    execute(blocks(INDEX), "index.md")
    names = ["forest-2.png", "forest-3.png", "landscape.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert "of the tokens stand in for strict ones" in capsys.readouterr().out


def test_the_example_of_verification_runs():
    known = execute(blocks((ROOT / "docs" / "api" / "rules.md").read_text("utf-8")), "rules.md")
    verdict, start = known["verdict"], known["start"]
    noise = known["coupling"].draws(known["keys"], start, start, 1, 16, known["sampling"])
    log_probs = lantern_jax.process_logits(known["logits"], known["sampling"])
    plain = jnp.argmax(log_probs[0, 0] + noise.noise[0, 0])
    assert verdict.count.tolist() == [0] and verdict.bonus.tolist() == [plain], (
        "no guess is near plain decoding's"
    )


@pytest.mark.slow
def test_the_architectures_examples_run(tiny_demo):
    known = execute(blocks(ARCHITECTURE), "architecture.md")
    run, pictures = known["run"], known["pictures"]
    assert run.done and pictures.shape == (2, 16, 16, 3)
    drafted, plain = known["drafted"], known["plain"]
    assert np.array_equal(drafted.tokens, plain.tokens)
    assert known["near"].substituted.any() and not drafted.substituted.any()
    # The model drafts for itself: each round accepts as many of its four guesses as it can.
    assert np.asarray(known["decoded"].accepted)[:, -1].tolist() == [12, 12]


@cache
def own_model() -> tuple[dict, str]:
    """Runs the page on one's own model; returns its variables, and the example in Equinox, which is not run."""
    examples = blocks((ROOT / "docs" / "own_model.md").read_text("utf-8"))
    (equinox,) = (example for example in examples if "import equinox" in example)
    return as_readers_do([example for example in examples if example != equinox], "own_model.md"), equinox


def as_readers_do(examples: list[str], name: str, known: dict | None = None) -> dict:
    """Executes as on readers' machines: the tests' own JAX is stricter."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return execute(examples, name, known)


@pytest.mark.slow
def test_the_page_on_ones_own_model_runs():
    known, _ = own_model()
    assert known["difference"] < 1e-4 and "of_nnx" in known
    for name in ("window", "drafted"):
        assert np.array_equal(known[name].tokens, known["plain"].tokens)
        assert (known[name].rounds < known["plain"].rounds).all(), name


@pytest.mark.slow
def test_the_pages_model_in_equinox_runs():
    pytest.importorskip("equinox", reason="nothing else needs it")
    known, example = own_model()
    assert "of_equinox" in as_readers_do([example], "own_model.md", known)


def test_names_of_the_readme_are_those_of_the_package():
    names = re.findall(r"`lantern_jax\.(\w+)", README + INDEX)
    assert "Target" in names and set(names) <= set(lantern_jax.__all__)
    listed = re.search(r"^\| Methods \| by name: (.+?);", INDEX, re.MULTILINE)[1]
    assert re.findall(r"`(.+?)`", listed) == list(lantern_jax.METHODS)
    for option in re.findall(r"`(--[a-z-]+ [^`]+)`", README):
        if "FILE" not in option:
            make_parser().parse_args(["generate", "a lake", *option.split()])


def test_files_and_names_of_the_architecture_are_there():
    files = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|[a-z_/]+/)`", ARCHITECTURE)
    assert "decoding/loop.py" in files and "decoding/drafting/" in files
    assert not [name for name in files if not any((ROOT / at / name).exists() for at in (".", "lantern_jax"))]
    # The groups of entry points are names of the package's metadata.
    names = set(re.findall(r"lantern_jax\.(\w+)\b(?![\w.]*\"|\.\w)", ARCHITECTURE))
    assert "speculative_decode" in names and set(names) <= set(lantern_jax.__all__)
    # And of the distribution.
    assert PROJECT["version"] == lantern_jax.__version__
    module, _, name = PROJECT["scripts"]["lantern"].partition(":")
    assert module == f"{lantern_jax.__name__}.__main__" and callable(getattr(import_module(module), name))


@pytest.mark.parametrize("page", MODELS, ids=lambda page: page.stem)
def test_pages_of_models_have_commands_that_parse_and_examples_that_compile(page):
    text = page.read_text("utf-8")
    lines = [shlex.split(line) for block in blocks(text, "sh") for line in block.splitlines()]
    commands = [words[1:] for words in lines if words[0] == "lantern"]
    assert {words[0] for words in commands} == {"convert", "encode", "generate"}
    for words in commands:
        arguments = make_parser().parse_args(words)
        if words[0] == "convert":
            files = formats()[words[1]].files
            given = {file.argument for file in files if getattr(arguments, file.argument)}
            fetched = {file.argument for file in files if file.repository and arguments.from_hub}
            assert {file.argument for file in files if file.required} <= given | fetched
    examples = blocks(text)
    assert examples
    for example in examples:
        compile(example, page.name, "exec")
