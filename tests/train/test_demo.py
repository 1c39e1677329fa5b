"""The stages of the one command that retrains the demo."""

import subprocess
from pathlib import Path

import pytest

from train import demo

ROOT = Path(__file__).parents[2]


def test_every_stage_reads_what_an_earlier_one_wrote(tmp_path):
    written = set()
    for name, arguments in demo.stages("demo", tmp_path):
        flags = dict(argument.removeprefix("--").split("=", 1) for argument in arguments[2:])
        assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").is_file()
        for flag, value in flags.items():
            if flag == "config":
                assert (ROOT / value).is_file()
            elif value.startswith(str(tmp_path)) and flag not in ("workdir", "out"):
                assert Path(value).relative_to(tmp_path).parts[0] in written
        assert flags.get("workdir", flags.get("out")) == str(tmp_path / name)
        written.add(name)
    with pytest.raises(ValueError, match="unknown experiment 'huge': choose one of demo, tiny"):
        demo.stages("huge", tmp_path)


def test_done_stages_are_skipped_and_a_failed_one_stops(tmp_path, monkeypatch):
    names = [name for name, _ in demo.stages("tiny", tmp_path)]
    ran = []

    def run(command, **_):
        ran.append(command[2])
        if len(ran) == 2:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(demo.subprocess, "run", run)
    with pytest.raises(subprocess.CalledProcessError):
        demo.train("tiny", tmp_path)
    assert ran == ["train.tokenizer", "train.encode"]
    demo.train("tiny", tmp_path)
    assert ran[2:] == [arguments[1] for _, arguments in demo.stages("tiny", tmp_path)[1:]]
    assert all((tmp_path / f"{name}.done").exists() for name in names)
