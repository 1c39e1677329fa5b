"""What fits on a device, beside what its own compiler said of the same programs (docs/scale.md)."""

import pytest

from lantern_jax.apps.measuring.data_sheets import DEVICES
from lantern_jax.apps.measuring.fitting import largest, limit_of, need
from lantern_jax.apps.measuring.shapes import size_shapes


def test_a_v5e_takes_as_much_as_its_compiler_says():
    limit = limit_of(DEVICES["v5e"])
    found = largest(size_shapes("chameleon-7b", "bfloat16"), {"method": "ar"}, limit, platform="tpu")
    assert found.pictures == 2
    assert found.total == pytest.approx(16.67e9, rel=0.02)


def test_a_tpu_pads_caches_of_narrow_heads():
    """The compiler refuses 128 of LlamaGen-XL: heads of 64 take 24.3 GB there instead of 12.2."""
    device = DEVICES["v5e"]
    shapes, limit = size_shapes("llamagen-xl", "bfloat16"), limit_of(device)
    job = shapes.job({"method": "ar"})
    most, twice = (need(shapes, job, 1, count, platform=device.platform) for count in (64, 128))
    assert most.total <= limit < twice.total
    assert most.state == pytest.approx(12.17e9, rel=0.01)


def test_devices_share_pictures_and_a_model():
    shapes = size_shapes("llamagen-b", "bfloat16")
    job = shapes.job({"method": "ar"})
    one, two = need(shapes, job, 1, 2), need(shapes, job, 1, 4, data=2, model=2)
    assert two.pictures == 4 and two.state == one.state // 2
    assert one.parameters / 2 < two.parameters < one.parameters, "the tokenizer is whole on each"


def test_of_a_gpu_jax_takes_a_share(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert limit_of(DEVICES["h100"]) == DEVICES["h100"].memory // 2
