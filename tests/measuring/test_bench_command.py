"""``lantern bench`` in process: rows, files, one-line errors before any work."""

import json
from pathlib import Path

import jax
import pytest

import lantern_jax.pipeline.pipeline
from lantern_jax.apps.commands import bench
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.measuring import measure
from lantern_jax.apps.measuring.rows import row_of
from lantern_jax.engine.engine import Engine
from tests.command import assert_refused, files, must_not_run
from tests.tiny_checkpoint import tiny_pipeline

QUICK = ["bench", "--methods", "gumbel", "--pictures", "1"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty current folder, and the tiny checkpoint in place of the demo."""
    monkeypatch.chdir(tmp_path)
    load = lantern_jax.pipeline.pipeline.load
    tiny = lambda model, dtype=None, *_: tiny_pipeline() if model == "demo" else load(model, dtype)  # noqa: E731
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", tiny)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", before or str(tmp_path.parent / "xla"))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def read_rows(file):
    return [row_of(json.loads(line)) for line in Path(file).read_text().splitlines()]


def test_rows_go_to_the_table_and_to_a_file(folder, capsys):
    assert main([*QUICK, "--batch", "1", "--guidance", "2,3", "--out", "old.jsonl"]) == 0
    printed = capsys.readouterr().out
    rows = read_rows("old.jsonl")
    assert [(row.method, row.batch, row.guidance) for row in rows] == [
        (method, 1, guidance) for guidance in (2.0, 3.0) for method in ("ar", "gumbel")
    ]
    assert all(row.speedup > 0 for row in rows)
    assert "efficiency" not in printed and all(len(line) <= 80 for line in printed.splitlines())
    for text in ("gumbel", "speed-up", "picture", "demo, 16 px, float32", "wrote old.jsonl"):
        assert text in printed
    Path("prompts.txt").write_text("a lake\na foggy forest\n")
    more = ["--methods", "gumbel", "medusa", "--guidance", "2", "--prompts", "prompts.txt", "--verbose"]
    assert main([*QUICK, *more]) == 0
    printed = capsys.readouterr().out
    assert "left out: medusa" in printed and "efficiency" in printed
    assert files(folder) == {"old.jsonl", "prompts.txt"}


@pytest.mark.slow
def test_a_random_model_with_forced_acceptance(folder, capsys):
    given = "--methods gumbel:tree=chain --accept-lengths 3 --pictures 1 --passes 6 --temperature 0.9"
    given += " --size tiny --random --mesh data=1 --out b.jsonl"
    assert main(["bench", *given.split()]) == 0
    rows = read_rows("b.jsonl")
    assert [row.method for row in rows] == ["ar", "gumbel:tree=chain"]
    assert [row.forced for row in rows] == [False, True] and [row.nodes for row in rows] == [0, 5]
    assert all(row.options["temperature"] == 0.9 for row in rows)
    told = capsys.readouterr()
    assert "(forced)" in told.out and "stopped after 6 passes" in told.out
    assert files(folder) == {"b.jsonl"}


def test_results_are_shown_when_their_file_cannot_be_written(capsys, monkeypatch):
    def full(*given):
        raise OSError("cannot write c.jsonl: the disk is full")

    monkeypatch.setattr(bench, "write_file", full)
    assert main([*QUICK, "--out", "c.jsonl"]) != 0
    printed = capsys.readouterr()
    assert "gumbel" in printed.out and "disk is full" in printed.err


@pytest.mark.parametrize(("arguments", "line"), [
    (["--methods", "owl"], "unknown method 'owl'"), (["--methods", ""], "--methods is given nothing"),
    (["--methods", "led,jacobi"], "give methods with spaces between them"),
    (["--methods", "led:batch=2"], "method led has no field 'batch'"), (["--rules", "lax"], "unknown rule 'lax'"),
    (["--pictures", "0"], "--pictures 0 is not valid"), (["--size", "llamagen-b"], "--size and --random go together"),
    (["--size", "llamagen-b", "--random", "--model", "x"], "takes no --model and no --prompts"),
    (["--prompts", "nowhere.txt"], "nowhere.txt is not a file"),
    (["--out", "there.jsonl"], "there.jsonl exists: give --overwrite"),
    (["--out", "no/folder.jsonl"], "no is not a folder"),
    (["--model", "nowhere"], "nowhere"),
    (["--methods", "led:window=0"], "window 0 is not valid"),
    (["--accept-lengths", "9", "--methods", "gumbel"], "need a tree of depth 8"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")  # fmt: skip
def test_bad_input_is_refused_in_one_line_and_nothing_is_done(arguments, line, capsys, monkeypatch):
    Path("there.jsonl").write_text("what was there\n")
    monkeypatch.setattr(Engine, "start", must_not_run)
    assert line in assert_refused(["bench", *arguments], capsys)
    assert Path("there.jsonl").read_text() == "what was there\n"


def test_an_interruption_between_two_groups_keeps_the_first(monkeypatch, capsys):
    original, calls = measure.measure, []

    def once(*arguments, **options):
        calls.append(0)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(measure, "measure", once)
    assert main([*QUICK, "--batch", "1,2", "--out", "c.jsonl"]) == 130
    printed = capsys.readouterr()
    assert "wrote 2 rows to c.jsonl" in printed.err and "gumbel" in printed.out
    assert [(row.method, row.batch) for row in read_rows("c.jsonl")] == [("ar", 1), ("gumbel", 1)]
