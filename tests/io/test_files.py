"""Files and folders appear whole or not at all, and a failure leaves what was there before."""

import os
import stat
from pathlib import Path

import pytest

from lantern_jax.io import files
from lantern_jax.io.errors import LanternError
from tests.refused import refused


def contents(folder: Path) -> dict[str, bytes]:
    """Returns all files under a folder by name, including hidden ones."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Killed(BaseException):
    pass


def half(file):
    file.write(b"ha")
    file.flush()
    raise Killed


def test_contents_are_bytes_text_or_what_a_function_writes(tmp_path):
    files.write_file(tmp_path / "a", b"\xff\n")
    files.write_file(tmp_path / "b", "Möwe\n")
    files.write_file(tmp_path / "c", lambda file: file.write(b"made"))
    assert contents(tmp_path) == {"a": b"\xff\n", "b": "Möwe\n".encode(), "c": b"made"}
    files.write_file(tmp_path / "deep" / "er" / "d", "d", parents=True)
    assert (tmp_path / "deep" / "er" / "d").read_text() == "d"


def test_a_crash_midway_leaves_the_old_contents(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(Killed):
        files.write_file(tmp_path / "a", half)
    with pytest.raises(Killed), files.new_file(tmp_path / "a") as temporary:
        temporary.write_bytes(b"ha")
        raise Killed
    with pytest.raises(Killed):
        files.write_files({tmp_path / "b": b"new", tmp_path / "a": half})
    assert contents(tmp_path) == {"a": b"old"}


def test_names_may_be_as_long_as_the_file_system_allows(tmp_path):
    long = tmp_path / ("x" * 251 + ".png")
    files.check_new_file(long, False)
    files.write_files({long: b"made"})
    with files.new_folder(tmp_path / ("y" * 255)) as folder:
        (folder / "a").write_text("made")
    assert sorted(len(path.name) for path in tmp_path.iterdir()) == [255, 255]


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(OSError, match=f"^cannot write a: its folder {tmp_path}/set is gone$"):
        files.write_file(tmp_path / "set" / "a", b"")


def test_none_of_several_files_appears_before_all_are_written(tmp_path):
    (tmp_path / "b").write_bytes(b"old")
    names = [tmp_path / name for name in "abc"]

    def full(file):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"cannot write .*c \(No space left on device\): name another file"):
        files.write_files(dict.fromkeys(names, b"new") | {names[2]: full})
    assert contents(tmp_path) == {"b": b"old"}
    files.write_files(dict.fromkeys(names, b"new"))
    assert contents(tmp_path) == dict.fromkeys("abc", b"new")
    (tmp_path / "a").unlink()
    with pytest.raises(LanternError, match="b exists"):
        files.write_files(dict.fromkeys(names, b"newer"), overwrite=False)
    assert contents(tmp_path) == dict.fromkeys("bc", b"new")
    # After an interruption between two renames the rest is written again.
    files.write_files({names[0]: b"newer", names[1]: b"new"}, overwrite=False)
    assert contents(tmp_path) == {"a": b"newer", "b": b"new", "c": b"new"}


def test_a_place_that_cannot_be_written_is_a_one_line_error(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    for call in (
        lambda: files.write_file(tmp_path / "nowhere" / "b", b""),
        lambda: files.write_files({tmp_path / "a": b"new", tmp_path / "nowhere" / "b": b""}),
        lambda: files.write_file(tmp_path / "a" / "b", b"", parents=True),
    ):
        with pytest.raises(OSError, match=r"^cannot write .*$"):
            call()
    assert contents(tmp_path) == {"a": b"old"}
    with refused("not a folder: make it first"):
        files.check_writable(tmp_path / "nowhere")
    with refused("cannot write into /proc"):
        files.check_writable(Path("/proc"))


def test_the_lowest_existing_folder_decides_whether_one_can_be_made(tmp_path):
    files.check_makeable(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists()
    with refused("cannot write into .*proc"):
        files.check_makeable(Path("/proc/new/folder"))
    (tmp_path / "a").write_bytes(b"old")
    with refused("not a folder: make it first"):
        files.check_makeable(tmp_path / "a" / "b")


@pytest.mark.parametrize(("mask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_permissions_follow_the_umask(tmp_path, monkeypatch, mask, file_mode, folder_mode):
    """The umask is not changed meanwhile: it belongs to the whole process."""
    before = os.umask(mask)
    try:
        with monkeypatch.context() as unchanged:
            unchanged.setattr(os, "umask", None)
            files.write_file(tmp_path / "a", b"")
            files.write_files({tmp_path / "b": b"", tmp_path / "c": b""})
            with files.new_folder(tmp_path / "folder"):
                pass
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "abc"} == {file_mode}
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == folder_mode


def test_a_new_folder_replaces_the_old_one(tmp_path):
    for text in ("old", "new"):
        with files.new_folder(tmp_path / "above" / "folder") as temporary:
            (temporary / text).write_text(text)
        assert contents(tmp_path) == {f"above/folder/{text}": text.encode()}
    assert [path.name for path in (tmp_path / "above").iterdir()] == ["folder"]


def test_a_folder_behind_a_link_is_replaced_where_it_is(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    for text in ("old", "new"):
        with files.new_folder(tmp_path / "link") as temporary:
            (temporary / text).write_text(text)
    assert (tmp_path / "link").is_symlink() and contents(tmp_path / "disk") == {"new": b"new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]


@pytest.mark.parametrize("when", ["filling", "renaming"])
def test_a_folder_that_fails_keeps_the_old_one(tmp_path, monkeypatch, when):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("old")
    rename = Path.rename

    def fail(source, target):
        if source.name.endswith(".part") and (source / "b").exists():
            raise OSError(28, "No space left on device")
        return rename(source, target)

    if when == "renaming":
        monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises((Killed, OSError)), files.new_folder(tmp_path / "folder") as temporary:
        (temporary / "b").write_text("new")
        if when == "filling":
            raise Killed
    assert contents(tmp_path) == {"folder/a": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
