"""Real workers of Ray on this machine, with a tiny checkpoint: killed, late and interrupted."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lantern_jax.checkpoints.store import save
from tests.quick_compilation import QUICK_COMPILATION
from tests.tiny_checkpoint import tiny_checkpoint

pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.exhaustive
def test_a_worker_is_killed_and_one_joins_late(tmp_path):
    model = save(tmp_path / "tiny", tiny_checkpoint())
    # Ray forks, which a process that has begun JAX must not.
    command = ["eval.set_ray", "--model", str(model), "--pictures", "420", "--shard-size", "2"]
    subprocess.run(
        [sys.executable, "-m", *command, "--out", str(tmp_path / "outcome.json")],
        cwd=ROOT, env=os.environ | {"XLA_FLAGS": " ".join(QUICK_COMPILATION)}, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["shards"] == 210 and outcome["at_kill"] < 200
    assert outcome["differing"] == {"cluster": [], "local": []}
    lost = r"worker \d is lost: its process died"
    assert sum(bool(re.match(lost, note)) for note in outcome["notes"]) == 1, outcome["notes"]
    assert outcome["workers"] >= 3
    said = r"lantern: interrupted, \d+ of 210 shards were written to .*: give the same command to go on"
    assert re.fullmatch(said, outcome["at_interrupt"])
