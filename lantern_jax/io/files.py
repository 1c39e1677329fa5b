"""Reading and writing files: strangers' are bounded, and ours appear under their names whole or not at all.

Only regular files are read. What is read whole is bounded in size, JSON also in depth, and its numbers must be finite
and of bounded length. Every file that a user names is opened by ``open_file``.

New contents get a short temporary name beside their own (hidden, ending in ``.part``) and are renamed once all are
written; until then, what was there stays. The system's umask decides who may read them. A process that is killed
outright leaves its temporary files behind.
"""

import contextlib
import errno
import filecmp
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# Bytes, text (written as UTF-8), or a function that writes into the open file.
Contents = bytes | str | Callable[[BinaryIO], object]
# Deeper than anything that is read here, and far below Python's own recursion limit.
_DEEPEST = 32
# Digits of a whole number in JSON: no number of 64 bits has more.
_MOST_DIGITS = 20
# Opening a pipe waits for its writer, unless told not to. Not all systems have all of these.
_READING = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
)


def open_file(path: str | Path, pipe: bool = False) -> BinaryIO:
    """Opens a regular file for reading: a pipe would be waited for, and a device has no end.

    Args:
        pipe: take a pipe too; one without a writer is empty.

    Raises:
        LanternError: not a regular file, one that is empty (as the endless ones of /proc seem), or one that cannot
            be read.
    """
    try:
        # Opening a device may do something: the name is checked first, and then what was opened.
        _check_readable(path, os.stat(path), pipe)
        file = os.fdopen(os.open(path, _READING), "rb")
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        _check_readable(path, os.fstat(file.fileno()), pipe)
    except ValueError:
        file.close()
        raise
    if pipe:
        os.set_blocking(file.fileno(), True)
    return file


def _check_readable(path: str | Path, status: os.stat_result, pipe: bool) -> None:
    if pipe and stat.S_ISFIFO(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise LanternError(f"{path} is not a file: name one")
    if not status.st_size:
        raise LanternError(f"{path} is empty: name another file")


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
        LanternError: not JSON, numbers that are not finite or have too many digits, or lists and objects nested
            too deeply.
    """
    try:
        value = json.loads(content, parse_constant=_finite, parse_float=_finite, parse_int=whole_number)
        level = [value]
        for _ in range(_DEEPEST + 1):
            level = [node for node in level if isinstance(node, dict | list)]
            if not level:
                return value
            level = [part for node in level for part in (node.values() if isinstance(node, dict) else node)]
    except RecursionError:
        pass
    except ValueError as error:
        raise LanternError(f"{place} is not JSON ({errors.short(error)}): give another file") from None
    raise LanternError(f"{place} is nested too deeply: give another file")


def _finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise LanternError(f"{errors.short(word, 40)} is not a finite number")
    return number


def whole_number(word: str) -> int:
    """Reads a whole number in JSON; raises LanternError for one with too many digits."""
    if len(word.lstrip("-")) > _MOST_DIGITS:
        raise LanternError(f"a number has {len(word)} digits")
    return int(word)


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
        waiting = {path: renaming.enter_context(new_file(path, overwrite)) for path in reversed([*contents])}
        for path, data in contents.items():
            with _explained(path):
                fill_file(waiting[path], data, synced)
        for path in () if overwrite else contents:
            _check_free(path, waiting[path])


@contextlib.contextmanager
def new_file(path: Path, overwrite: bool = True) -> Iterator[Path]:
    """Yields a name to write a file under; it is renamed to ``path`` when the block ends, or removed after an error.

    Raises:
        LanternError: as ``write_files``.
    """
    temporary = _beside(path)
    try:
        yield temporary
        with _explained(path):
            (os.replace if overwrite else _take_name)(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _take_name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError:
        _check_free(path, temporary)
        if not path.exists():
            # Some file systems have no links: the last of several writers wins there.
            os.replace(temporary, path)


def _check_free(path: Path, temporary: Path) -> None:
    """Raises LanternError if there is a file with other contents: the same are ours, from before an interruption."""
    if os.path.lexists(path) and not (path.is_file() and filecmp.cmp(temporary, path, shallow=False)):
        raise errors.exists(path) from None


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yields an empty folder to fill, which becomes ``path`` at the end of the block, in place of any folder there.

    Folders above it are made. After an error the new folder is removed and the old one is where it was. Errors of the
    system are one line, which names that folder. For a link, the folder that it leads to is replaced.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _beside(path), _beside(path, "old")
    try:
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    except BaseException as error:
        if old.exists() and not path.exists():
            old.rename(path)
        if not isinstance(error, OSError):
            raise
        # Our errors are lines already; the system's have a reason and a file.
        place = str(error.filename or path)
        why = str(error) if error.strerror is None else errors.unwritable(place, error, "folder")
        raise OSError(why.replace(str(temporary), str(path))) from None
    finally:
        for folder in (temporary, old) if path.exists() else (temporary,):
            shutil.rmtree(folder, ignore_errors=True)


def check_new_file(path: Path, overwrite: bool, new_folder: bool = False) -> None:
    """Raises LanternError unless a file can be written; with ``new_folder`` its folder is made later."""
    check_link(path)
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
    check_link(path)
    if path.exists() and not path.is_dir():
        raise LanternError(f"{path} is not a folder: name a new one")
    if path.exists() and not overwrite:
        raise errors.exists(path)
    (check_makeable if with_parents else check_writable)(path.absolute().parent)


def check_link(path: Path) -> None:
    """Raises LanternError for a link to nothing, or in a loop, and for a name that is too long: no file can be made."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise LanternError(errors.unwritable(str(path), error, "file")) from None
    if path.is_symlink() and not path.exists():
        raise LanternError(f"{path} is a link that leads nowhere: remove it, or name another")


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
