"""``lantern info --fit``: what it prints, and what it refuses."""

import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.apps.measuring.fitting import MOST
from tests.command import assert_refused


def test_the_command_counts_for_a_size_and_reads_nothing(capsys):
    assert main(["info", "--fit", "1", "--size", "tiny", "--methods", "ar", "--dtype", "float32"]) == 0
    printed = capsys.readouterr().out
    assert "in 1 GB" in printed and f"{MOST}" in printed


@pytest.mark.parametrize(("line", "said"), [
    ("--fit", "--fit has no number"), ("--fit nan", "--fit nan is not valid"),
    ("--fit 8 --mesh model=4", "--mesh is for --for"), ("--fit 8 --verify", "--verify and --fit cannot be combined"),
    ("--fit 8 --for v5e", "--for v5e knows its memory: leave 8 out"), ("--for v5e", "--for is for --fit"),
    ("--size tiny", "--size is for --fit"), ("--fit 8 --size huge", "unknown size 'huge'"),
    ("--fit --for v9", "unknown device 'v9'"), ("--fit --for v5e --mesh rows=3", "mesh 'rows=3' is not valid"),
    ("--fit 8 --methods owl", "unknown method 'owl'"), ("--fit --for v5e --methods owl", "unknown method 'owl'"),
    ("--fit 8 nowhere", "nowhere"),
    ("--fit --for v5e --size tiny demo", "--size tiny takes no checkpoint"),
])  # fmt: skip
def test_bad_input_is_refused_in_one_line(line, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in assert_refused(["info", *line.split()], capsys)
