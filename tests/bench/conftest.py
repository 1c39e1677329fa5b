"""Reading memory for its bandwidth takes longer than all else with tiny models: a small array does here."""

import pytest

from lantern_jax.bench import bandwidth


@pytest.fixture(autouse=True)
def small_array(monkeypatch):
    monkeypatch.setitem(bandwidth._BYTES, "cpu", 1 << 20)
