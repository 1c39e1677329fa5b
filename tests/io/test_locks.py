"""Several processes at once: the second is refused in one line, killed ones leave nothing for good."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lantern_jax.io import files, locks

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="flock is POSIX's")

HOLDING = """
import sys, time
from pathlib import Path
from lantern_jax.io import files
from lantern_jax.io import locks
with locks.sole(sys.argv[1]), files.new_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("ha")
    print("holds", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that writes a folder, and the folder."""
    place = tmp_path / "model"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(place)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "holds\n"
    yield process, place
    process.kill()
    process.communicate()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_a_second_process_is_refused(holder):
    process, place = holder
    before = names(place.parent)
    with pytest.raises(
        ValueError, match=r"another process writes .*model: wait for it, or give another name"
    ):
        locks.sole(place).__enter__()
    with pytest.raises(ValueError, match="busy"), locks.sole(place, "busy"):
        pass
    assert names(place.parent) == before and process.poll() is None


def test_what_a_living_process_writes_is_left_alone(holder):
    _, place = holder
    files.write_file(place.parent / "other", "made")
    assert any(name.endswith(".part") for name in names(place.parent))


def test_what_a_killed_process_left_goes(holder):
    process, place = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert {"half", ".model.lock"} < names(place.parent)
    with locks.sole(place), files.new_folder(place) as folder:
        (folder / "whole").write_text("made")
    assert names(place.parent) == {"model", "whole"}


def test_what_was_there_is_put_back(tmp_path):
    """Killed between the two renames that swap a folder in."""
    for kind, text in (("old", "old"), ("part", "new")):
        folder = tmp_path / f".model.0123abcd.{kind}"
        folder.mkdir()
        (folder / "a").write_text(text)
    (tmp_path / ".mine.part").write_text("not of files")
    files.write_file(tmp_path / "other", "")
    assert names(tmp_path) == {"model", "a", "other", ".mine.part"}
    assert (tmp_path / "model" / "a").read_text() == "old"


def test_folders_above_go_where_nothing_is_made(tmp_path):
    with pytest.raises(OSError, match="full"), locks.sole(tmp_path / "a" / "b" / "c"):
        raise OSError("full")
    assert names(tmp_path) == set()
    with locks.sole(tmp_path / "a" / "b"):
        files.write_file(tmp_path / "a" / "b", "made")
    assert names(tmp_path) == {"a", "b"}


def test_where_there_are_no_locks_nobody_is_refused(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    (tmp_path / ".a.0123abcd.part").write_text("somebody's, perhaps")
    with locks.sole(tmp_path / "a"), locks.sole(tmp_path / "a"):
        files.write_file(tmp_path / "a", "made")
    assert names(tmp_path) == {"a", ".a.0123abcd.part"}


def test_a_lock_that_was_just_removed_is_taken_anew(tmp_path, monkeypatch):
    """The one before removes the file between our opening and our locking it."""
    flock, times = locks.fcntl.flock, []

    def removed(descriptor, how):
        times.append(how)
        if len(times) == 1:
            os.unlink(tmp_path / ".a.lock")
        return flock(descriptor, how)

    monkeypatch.setattr(locks.fcntl, "flock", removed)
    with locks.sole(tmp_path / "a"):
        assert names(tmp_path) == {".a.lock"} and len(times) == 2
    assert names(tmp_path) == set()
