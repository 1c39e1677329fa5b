"""The transcript of a user's first ten minutes: the command answers what the page shows."""

import re
import shlex
from pathlib import Path

import pytest

from lantern_jax.apps.commands.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first_ten_minutes.md"


def transcript() -> list[tuple[str, str]]:
    """Returns each command of the page and the pattern of its answer; three dots stand for anything."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    split = (part.partition("\n")[::2] for part in parts)
    return [(line, re.escape(answer.strip()).replace(re.escape("..."), "(?s:.*)")) for line, answer in split]


@pytest.mark.filterwarnings("default::lantern_jax.IgnoredWords")
def test_each_command_is_answered_as_the_page_says(tiny_demo, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = transcript()
    assert len(said) >= 10
    for line, pattern in said:
        status = main(shlex.split(line)[1:])
        printed = capsys.readouterr()
        answer = (printed.err + printed.out).strip()
        assert re.fullmatch(pattern, answer), f"{line}\n{answer}"
        assert status == (2 if "error" in pattern else 0)
        if status:
            assert answer.count("\n") == 0, "one line"
    assert {path.name for path in tmp_path.iterdir()} == {"a-foggy-forrest-at-dawn-0.png", "forest.png"}
