"""The table of devices, and its slices and meshes."""

import re

import pytest

from eval.ahead import topology
from eval.ahead.sheets import SHEETS, target_config
from eval.ahead.slices import slice_of
from lantern_jax.apps.measuring.data_sheets import DEVICES, GPU
from lantern_jax.io.errors import LanternError, MissingExtra


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


@pytest.mark.parametrize(
    ("text", "mesh", "line"),
    [
        ("v9", None, "unknown device 'v9': choose one of v4, v5e"),
        ("v5e:3x3", None, "unknown slice 'v5e:3x3': choose one of v5e, v5e:2x2, v5e:2x4"),
        ("v5p:2x3x1", None, "or longer ones by multiples of 4"),
        ("v5e:", "model=4", "mesh model=4 takes 4 devices and v5e: has 1"),
        ("h100:9", None, "h100:8"),
        ("v5e:x", None, "unknown slice"),
        ("v5e:4x4", "data=3,model=4", "has 16: give axes that multiply to 16, such as data=4,model=4"),
        ("v5e:4x4", "rows=4", "mesh 'rows=4' is not valid"),
    ],
)
def test_unknown_devices_slices_and_meshes_are_refused_in_one_line(text, mesh, line):
    with pytest.raises(LanternError, match=re.escape(line)):
        slice_of(text, mesh)


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
