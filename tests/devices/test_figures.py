"""What a device does per second: by its data sheet's name, or measured once and kept."""

import json
from functools import cache

import jax
import numpy as np
import pytest

from lantern_jax.devices import figures
from lantern_jax.devices.figures import data_sheet, figures_of


@pytest.mark.parametrize(("kind", "name"), [
    ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("Tesla T4", "t4"), ("NVIDIA L4", "l4"),
    ("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e"), ("TPU7x", "tpu7x"), ("cpu", None),
    ("NVIDIA L40S", None), ("TPU v5p", "v5p"), ("TPU v4", "v4"), ("TPU v4 lite", None),
    ("NVIDIA A100-SXM4-40GB", None), ("NVIDIA A100 80GB PCIe", None), ("NVIDIA H100 PCIe", None),
    ("NVIDIA H100 NVL", None), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None), ("NVIDIA H200", "h200"),
])  # fmt: skip
def test_devices_are_known_by_their_kind(kind, name):
    sheet = data_sheet(kind)
    assert (sheet and sheet.name) == name


def test_figures_are_measured_once_and_kept(tmp_path, monkeypatch):
    grid, taken = np.array(jax.devices()[:1])[:, None], []
    measured = cache(figures._measured)
    monkeypatch.setattr(figures, "_SECONDS", 0.0)
    # The device is really measured only once: that takes seconds.
    monkeypatch.setattr(figures, "_measured", lambda *given: taken.append(given) or measured(*given))
    figures._measured_once.cache_clear()
    first = figures_of(grid, True, tmp_path)
    assert first.bandwidth > 1e8 and first.rate > 1e8
    seconds = [first.products[rows] for rows in sorted(first.products)]
    assert len(seconds) > 2 and seconds == sorted(seconds)
    assert first.bandwidth == pytest.approx(1 / seconds[0])
    assert figures_of(grid, True, tmp_path) == first and len(taken) == 1
    for damaged in (
        "",
        "[]",
        "{",
        json.dumps({"cpu": 1}),
        (tmp_path / "figures.json").read_text().replace("e", "x"),
        (tmp_path / "figures.json").read_text().replace('"nodes": 8', '"nodes": "8"'),
    ):
        (tmp_path / "figures.json").write_text(damaged)
        assert figures_of(grid, True, tmp_path).rate > 0
    nowhere = tmp_path / "figures.json" / "no folder"
    assert figures_of(grid, True, nowhere) == figures_of(grid, True, nowhere) == first
    assert len(taken) == 1, "this process has already measured it"
