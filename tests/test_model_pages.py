"""The pages of the models: commands that the command line takes, examples that compile."""

import re
import shlex
from pathlib import Path

import pytest

from lantern_jax.commands.main import make_parser

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "models"
PAGES = sorted(FOLDER.glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_parse(page):
    lines = [shlex.split(line) for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [words[1:] for words in lines if words[0] == "lantern"]
    assert {words[0] for words in commands} == {"convert", "encode", "generate"}
    for words in commands:
        arguments = make_parser().parse_args(words)
        if words[0] == "convert":
            given = {file.argument for file in arguments.format.files if getattr(arguments, file.argument)}
            fetched = {
                file.argument for file in arguments.format.files if file.repository and arguments.from_hub
            }
            assert {file.argument for file in arguments.format.files if file.required} <= given | fetched


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_compile(page):
    examples = blocks(page, "python")
    assert examples
    for example in examples:
        compile(example, page.name, "exec")
