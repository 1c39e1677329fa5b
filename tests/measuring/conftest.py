"""With tiny models, measuring memory bandwidth and timing drafts take longer than all else: less is enough here."""

import pytest

from lantern_jax.apps.measuring import bandwidth, costs


@pytest.fixture(autouse=True)
def quick_clock(monkeypatch):
    monkeypatch.setattr(bandwidth, "_BYTES", 1 << 20)
    monkeypatch.setattr(costs, "_CALL_SECONDS", 0.005)
