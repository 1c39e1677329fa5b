"""Several concurrent processes: the second is refused in one line, and killed ones leave nothing behind for good."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lantern_jax.io import files, locks
from tests.refused import refused

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


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_a_second_process_is_refused_and_a_killed_ones_leftovers_are_removed(tmp_path):
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
        # Files that a living process is writing are left alone.
        files.write_file(tmp_path / "other", "made")
        assert names(tmp_path) == before | {"other"} and {"half", ".model.lock"} < before
    finally:
        process.kill()
        process.communicate()
    with locks.sole(place), files.new_folder(place) as folder:
        (folder / "whole").write_text("made")
    assert names(tmp_path) == {"model", "whole", "other"}


def test_the_old_folder_is_put_back_after_a_kill(tmp_path):
    """A process was killed between the two renames that swap a folder in."""
    for inside, text in (("old/model", "old"), ("part", "new")):
        folder = tmp_path / f".lantern-{locks.MACHINE}0123abcd.{inside}"
        folder.mkdir(parents=True)
        (folder / "a").write_text(text)
    (tmp_path / ".mine.part").write_text("not of files")
    files.write_file(tmp_path / "other", "")
    assert names(tmp_path) == {"model", "a", "other", ".mine.part"}
    assert (tmp_path / "model" / "a").read_text() == "old"


def test_another_machines_files_are_left_alone_for_a_day(tmp_path, monkeypatch):
    """Its locks may not reach this machine."""
    left = {".lantern-0123abcd4567cdef.part", ".lantern-0123abcd89abcdef.old"}
    for name in left:
        (tmp_path / name / "b").mkdir(parents=True)
    files.write_file(tmp_path / "mine", "")
    assert names(tmp_path) == {"mine", "b"} | left
    now = time.time()
    monkeypatch.setattr(locks, "time", SimpleNamespace(time=lambda: now + 90_000))
    files.write_file(tmp_path / "mine", "")
    assert names(tmp_path) == {"mine", "b"}


def test_parent_folders_are_removed_if_nothing_is_made(tmp_path):
    with pytest.raises(OSError, match="full"), locks.sole(tmp_path / "a" / "b" / "c"):
        raise OSError("full")
    assert names(tmp_path) == set()
    with locks.sole(tmp_path / "a" / "b"):
        files.write_file(tmp_path / "a" / "b", "made")
    assert names(tmp_path) == {"a", "b"}


def test_without_support_for_locks_no_process_is_refused(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    left = f".lantern-{locks.MACHINE}0123abcd.part"
    (tmp_path / left).write_text("somebody's, perhaps")
    with locks.sole(tmp_path / "a"), locks.sole(tmp_path / "a"):
        files.write_file(tmp_path / "a", "made")
    assert names(tmp_path) == {"a", left}


def test_a_lock_file_that_was_just_removed_is_locked_anew(tmp_path, monkeypatch):
    """The previous holder removes the file after we open it and before we lock it."""
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
