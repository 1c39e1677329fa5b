"""``eval.accelerator`` with a tiny model: one file, whole at any moment, within its time."""

import json

import pytest

from eval import accelerator


@pytest.mark.exhaustive  # A script that people run and watch where there is an accelerator.
def test_all_parts_of_a_small_run(tmp_path, monkeypatch):
    monkeypatch.setattr(accelerator, "keep_compiled_programs", lambda: None)
    monkeypatch.setattr(accelerator, "METHODS", ("gumbel:tree=chain", "jacobi:window=2"))
    file = tmp_path / "all.json"
    small = ["--sizes", "tiny", "--batch", "1", "--passes", "3", "--pictures", "3", "--no-demo"]
    accelerator.main([*small, "--out", str(file), "--accept-lengths", "2.5"])
    report = json.loads(file.read_text())
    assert report["finished"] and "cut_off" not in report and report["versions"]["jax"]
    parts = {part["name"]: part for part in report["parts"]}
    assert list(parts) == [
        "bandwidth", "tiny, batch 1, compiling", "tiny, batch 1, gumbel:tree=chain, batch 1",
        "tiny, batch 1, jacobi:window=2, batch 1",
    ]  # fmt: skip
    plain, row = parts["tiny, batch 1, gumbel:tree=chain, batch 1"]["rows"]
    assert (plain["method"], row["method"], row["nodes"], row["forced"]) == (
        "ar",
        "gumbel:tree=chain",
        5,
        True,
    )
    assert row["dtype"] == "bfloat16" and row["parts"]["score"] > 0


def test_results_are_kept_whatever_does_not_fit_fails_or_is_cut_off(tmp_path, monkeypatch):
    report = accelerator.Report(tmp_path / "some.json", 100)
    assert report.part("long", 200, lambda: pytest.fail("it did not fit")) is None

    def fails():
        raise RuntimeError("RESOURCE_EXHAUSTED: out of\nmemory")

    assert report.part("large", 1, fails) is None
    assert report.part("good", 1, lambda: [1]) >= 0
    long, large, good = json.loads((tmp_path / "some.json").read_text())["parts"]
    assert "expected to take 200 s" in long["left_out"]
    assert large["failed"] == "RESOURCE_EXHAUSTED: out of memory" and good["rows"] == [1]
    ended = []
    monkeypatch.setattr(accelerator.os, "_exit", ended.append)
    report = accelerator.Report(tmp_path / "cut.json", 100)
    report.part("first", 0, lambda: [1])
    report.part("second", 0, report.stop)
    content = json.loads((tmp_path / "cut.json").read_text())
    assert ended == [0] and content["cut_off"] == "second" and content["parts"][0]["rows"] == [1]
