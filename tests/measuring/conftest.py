"""With tiny models, measuring memory bandwidth takes longer than all else: less is enough here."""

import pytest

from lantern_jax.apps.measuring import bandwidth


@pytest.fixture(autouse=True)
def quick_clock(monkeypatch):
    monkeypatch.setattr(bandwidth, "_BYTES", 1 << 20)
