"""What devices are called, and the error when JAX is asked for a platform that is not here."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from lantern_jax.devices import platform
from tests.refused import refused

ROOT = Path(__file__).parents[2]
# One command looks for devices first, the other reads arrays.
COMMANDS = """
from lantern_jax.apps.commands.main import main
for words in ["generate", "lake"], ["encode", "lake", "--out", "a.npz"]:
    assert main(words) == 2
"""


def test_a_name_tells_the_number_of_devices_and_how_a_model_is_split():
    cores = f"cpu of {platform.core_count()} cores"
    assert platform.device_name(np.array(jax.devices()[:1])[:, None]) == cores
    assert platform.device_name() == f"8 x {cores}"
    assert platform.device_name(np.array(jax.devices()).reshape(2, 4)) == f"8 x {cores}, a model over 4"


@pytest.mark.slow
def test_commands_report_a_missing_platform_in_one_line(tmp_path):
    made = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=tmp_path, capture_output=True, text=True, check=True,
        env=os.environ | {"JAX_PLATFORMS": "nonsense", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    # Other lines are printed while it loads, and by libtpu where that is installed.
    lines = [line for line in made.stderr.splitlines() if line.startswith("lantern: error")]
    assert len(lines) == 2 and not any(tmp_path.iterdir())
    for line in lines:
        assert line.startswith("lantern: error: JAX is asked for 'nonsense'")


@pytest.mark.parametrize(
    "error", [AssertionError(), RuntimeError("Unable to initialize backend 'cuda': no driver\nsee there")]
)
def test_any_error_of_jax_becomes_one_line(error, monkeypatch):
    """JAX fails an assertion where a platform's extra is not installed."""

    def fail():
        raise error

    monkeypatch.setattr(jax, "devices", fail)
    with refused("which is not here .*: name another platform in JAX_PLATFORMS"):
        platform.check_platform()
