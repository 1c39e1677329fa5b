"""Several concurrent processes: the second is refused in one line, and a killed one locks nobody out."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from lantern_jax.apps.terminal import locks
from lantern_jax.io import files
from lantern_jax.io.errors import LanternError
from tests.refused import refused

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="flock is POSIX's")

HOLDING = """
import sys, time
from pathlib import Path
from lantern_jax.io import files
from lantern_jax.io.errors import LanternError
from lantern_jax.apps.terminal import locks
with locks.sole(sys.argv[1]), files.new_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("ha")
    print("holds", flush=True)
    time.sleep(60)
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_a_killed_process_locks_nobody_out(tmp_path):
    place = tmp_path / "model"
    line = [sys.executable, "-c", HOLDING, str(place)]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "holds\n"
        before = names(tmp_path)
        with refused(r"another process writes .*model: wait for it, or give another name"):
            locks.sole(place).__enter__()
        with refused("busy"), locks.sole(place, "busy"):
            pass
        assert names(tmp_path) == before and process.poll() is None
        assert {"half", ".model.lock"} < before
    finally:
        process.kill()
        process.communicate()
    with locks.sole(place), files.new_folder(place) as folder:
        (folder / "whole").write_text("made")
    assert {"model", "whole"} < names(tmp_path) and ".model.lock" not in names(tmp_path)


def test_folders_made_for_a_lock_do_not_stay_empty(tmp_path):
    with refused("no pictures"), locks.sole(tmp_path / "new" / "folder" / "run"):
        raise LanternError("no pictures")
    assert names(tmp_path) == set()
    with locks.sole(tmp_path / "new" / "run"):
        files.write_file(tmp_path / "new" / "a", "made")
    assert names(tmp_path) == {"new", "a"}


def test_without_support_for_locks_no_process_is_refused(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", none)
    with locks.sole(tmp_path / "a"), locks.sole(tmp_path / "a"):
        files.write_file(tmp_path / "a", "made")
    assert names(tmp_path) == {"a"}
