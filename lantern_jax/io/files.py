"""Reading files within bounds, and writing them whole or not at all.

Only regular files are read. What is read whole is bounded in size; numbers of JSON must be finite. Every file that a
user names is opened by ``open_file``.

New contents get a short temporary name beside their own (hidden, ending in ``.part``) and are renamed once all are
written; until then, what was there stays. The system's umask decides who may read them. A process that is killed
outright leaves its temporary files behind.
"""

import contextlib
import filecmp
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# Bytes, text (written as UTF-8), or a function that writes into the open file.
Contents = bytes | str | Callable[[BinaryIO], object]


def open_file(path: str | Path, pipe: bool = False) -> BinaryIO:
    """Opens a regular file for reading: a pipe would be waited for, and a device has no end.

    Args:
        pipe: take a pipe too.

    Raises:
        LanternError: not a regular file, one that is empty (as the endless ones of /proc seem), or one that cannot
            be read.
    """
    try:
        status = os.stat(path)
        if not (pipe and stat.S_ISFIFO(status.st_mode)):
            if not stat.S_ISREG(status.st_mode):
                raise LanternError(f"{path} is not a file: name one")
            if not status.st_size:
                raise LanternError(f"{path} is empty: name another file")
        return open(path, "rb")
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str | Path, error: OSError) -> LanternError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return LanternError(f"{path} is not a file: name one")
    return LanternError(f"{path} cannot be read ({error.strerror or error}): name another file")


def read_bounded(path: str | Path, most: int, pipe: bool = False) -> bytes:
    """Reads a file of at most ``most`` bytes; raises LanternError as ``open_file``, and for a larger one."""
    with open_file(path, pipe) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise _unreadable(path, error) from None
    if len(content) > most:
        raise LanternError(f"{path} is larger than {most} bytes: name another file")
    return content


def read_text(path: str | Path, most: int, pipe: bool = False) -> str:
    """Reads a file in UTF-8, with or without a byte order mark.

    Raises:
        LanternError: as ``read_bounded``, or another encoding.
    """
    try:
        return read_bounded(path, most, pipe).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LanternError(f"{path} is not text in UTF-8 (byte {error.start}): save it so") from None


def check_text(text: str, what: str) -> None:
    """Raises LanternError for a text that no file can hold: Python reads bytes that are not UTF-8 as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        wrong = errors.quoted(text[error.start])
        raise LanternError(f"{what} {errors.quoted(text)} is not text in UTF-8: leave out {wrong}") from None


def read_json(path: str | Path, most: int) -> Any:
    """Reads a JSON file of at most ``most`` bytes; raises what ``read_bounded`` and ``parse_json`` raise."""
    return parse_json(read_bounded(path, most), str(path))


def parse_json(content: bytes | str, place: str) -> Any:
    """Parses JSON text, which errors call ``place``.

    Raises:
        LanternError: not JSON, numbers that are not finite, or lists and objects nested too deeply.
    """
    try:
        return json.loads(content, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise LanternError(f"{place} is nested too deeply: give another file") from None
    except ValueError as error:
        raise LanternError(f"{place} is not JSON ({errors.short(error)}): give another file") from None


def read_arrays(path: str | Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Reads {name: array} from an .npz file: booleans, numbers and texts; all of them, or the ``names`` wanted.

    Raises:
        LanternError: as ``open_file``; also another kind of file, damaged arrays, and Python objects.
    """
    try:
        with open_file(path) as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files if names is None or name in names}
    except LanternError:
        raise
    # Its readers raise anything, down to a TypeError, for a file that is damaged.
    except Exception as error:
        raise LanternError(
            f"{path} is not a whole archive of arrays ({errors.short(error)}): fetch it again or name another"
        ) from error


def _finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise LanternError(f"{errors.short(word, 40)} is not a finite number")
    return number


def write_file(path: str | Path, contents: Contents, *, parents: bool = False, synced: bool = False) -> None:
    """Writes one file whole or not at all.

    Args:
        parents: make the folders above it.
        synced: have all of it on the disk before it gets its name.

    Raises:
        OSError: one line: the file cannot be written; what was there before is still there.
    """
    path = Path(path)
    if parents:
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    write_files({path: contents}, synced=synced)


def write_files(contents: Mapping[Path, Contents], *, overwrite: bool = True, synced: bool = False) -> None:
    """Writes several files as ``write_file`` does; none is renamed before every one is written.

    Raises:
        LanternError: without ``overwrite``, a file of other contents exists, perhaps only since its name was checked.
        OSError: one line: a file cannot be written.
    """
    with contextlib.ExitStack() as renaming:
        # What is entered last is renamed first.
        waiting = {path: renaming.enter_context(new_file(path)) for path in reversed([*contents])}
        for path, data in contents.items():
            with _explained(path):
                fill_file(waiting[path], data, synced)
        for path in () if overwrite else contents:
            # A file of the same contents is ours, from before an interruption.
            if os.path.lexists(path) and not (
                path.is_file() and filecmp.cmp(waiting[path], path, shallow=False)
            ):
                raise errors.exists(path)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields a name to write a file under; it is renamed to ``path`` when the block ends, or removed after an error.

    Raises:
        OSError: one line: the file cannot be written.
    """
    temporary = _beside(path)
    try:
        yield temporary
        with _explained(path):
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yields an empty folder to fill, which becomes ``path`` at the end of the block, in place of any folder there.

    Folders above it are made. After an error the new folder is removed and the old one is where it was. Errors of the
    system are one line, which names that folder. For a link, the folder that it leads to is replaced.
    """
    path = Path(path).resolve()
    temporary, old = _beside(path), _beside(path, "old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    except OSError as error:
        if error.strerror is None:  # A line of ours.
            raise
        raise OSError(errors.unwritable(str(path), error, "folder")) from error
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)


def check_new_file(path: Path, overwrite: bool, new_folder: bool = False) -> None:
    """Raises LanternError unless a file can be written; with ``new_folder`` its folder is made later."""
    if path.is_dir():
        raise LanternError(f"{path} is a folder: name a file in it")
    # Replacing a device would take it away from every program.
    if path.exists() and not path.is_file():
        raise LanternError(f"{path} is not a file: name a new one")
    if path.exists() and not overwrite:
        raise errors.exists(path)
    if not new_folder:
        check_writable(path.absolute().parent)


def check_new_folder(path: Path, overwrite: bool, with_parents: bool = False) -> None:
    """Raises LanternError unless a folder can be made: nothing there (or ``overwrite``), a writable folder above.

    Args:
        with_parents: whether folders above it that do not exist are made too.
    """
    if path.exists() and not path.is_dir():
        raise LanternError(f"{path} is not a folder: name a new one")
    if path.exists() and not overwrite:
        raise errors.exists(path)
    (check_makeable if with_parents else check_writable)(path.absolute().parent)


def check_writable(folder: Path) -> None:
    """Raises LanternError unless files can be made in ``folder``."""
    if not folder.is_dir():
        raise LanternError(f"{folder} is not a folder: make it first, or name another")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise LanternError(errors.unwritable(f"into {folder}", error, "folder")) from None


def check_makeable(folder: Path) -> None:
    """Raises LanternError unless files can be made in ``folder``, or in the nearest one above it if it is missing."""
    folder = folder.absolute()
    check_writable(next(place for place in (folder, *folder.parents) if place.exists()))


def _beside(path: Path, kind: str = "part") -> Path:
    return path.with_name(f".lantern-{secrets.token_hex(8)}.{kind}")


def fill_file(path: Path, contents: Contents, synced: bool = False) -> None:
    """Writes a new file, never over an existing one; as with ``open``, the umask decides its mode.

    Files that must appear whole are made under a temporary name, or in a folder that has one.
    """
    with path.open("xb") as file:
        if callable(contents):
            contents(file)
        else:
            file.write(contents.encode() if isinstance(contents, str) else contents)
        if synced:
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.parent.exists():
            raise OSError(f"cannot write {path.name}: its folder {path.parent} is gone") from error
        raise OSError(errors.unwritable(str(path), error, "file")) from error
