"""The table of devices, and its slices and meshes."""

import re

import pytest

from eval.ahead import topology
from eval.ahead.sheets import SHEETS, target_config
from eval.ahead.slices import slice_of
from lantern_jax.apps.measuring.data_sheets import DEVICES, GPU
from lantern_jax.io.errors import MissingExtra


@pytest.mark.parametrize(
    ("text", "mesh", "shape", "grid"),
    [
        ("v5e", None, "1x1", (1, 1)),
        ("V5E:4x4", "data=4,model=4", "4x4", (4, 4)),
        ("v5e:2x4", None, "2x4", (8, 1)),
        ("v5p:4x8x8", "model=256", "4x8x8", (1, 256)),
        ("tpu7x:2x2x1", "model=8", "2x2x1", (1, 8)),
        ("h100", None, "1", (1, 1)),
        ("h100:8", "data=2,model=4", "8", (2, 4)),
        ("h100:2x8", "data=2,model=8", "2x8", (2, 8)),
    ],
)
def test_slices(text, mesh, shape, grid):
    found = slice_of(text, mesh)
    assert (found.shape, (found.data, found.model)) == (shape, grid)
    assert slice_of(found.name, found.mesh) == found


def test_facts_are_plausible():
    """Memory of tens of GB, hundreds of operations per byte, clocks of 1 to 2.5 GHz; fields as protobuf has them."""
    for device in DEVICES.values():
        assert 12e9 < device.memory < 200e9
        sheet = SHEETS[device.name]
        assert 90 < sheet.peak / sheet.bandwidth < 700
        if device.platform == GPU:
            text = target_config(device)
            assert text.count("{") == text.count("}") and f"device_memory_size: {device.memory} " in text
            assert re.search(r"cuda_compute_capability \{ major: \d+ minor: \d ", text)
        else:
            assert 0.9e9 < sheet.clock < 2.5e9


def test_a_missing_compiler_names_its_extra(monkeypatch):
    monkeypatch.setattr(topology, "find_spec", lambda name: None)
    monkeypatch.setattr(topology.metadata, "entry_points", lambda group: ())
    with pytest.raises(MissingExtra, match=r"jax\[tpu\]"):
        topology.devices_of(slice_of("v5e"))
    with pytest.raises(MissingExtra, match=r"jax\[cuda13\]"):
        topology.devices_of(slice_of("h100"))
