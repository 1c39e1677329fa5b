"""Several processes at once: who may work at a place, and what killed ones left there.

Locks are the system's, so that they end with the process that holds them, however that ends. Some network file systems
have none: there nobody is refused, and what killed processes left stays.
"""

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# Names that ``files`` gives to what is not finished, and to what a new folder takes the place of.
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>part|old)", re.DOTALL)
# How often, and how long after each other, a folder is asked for that somebody is looking through.
_TRIES, _WAIT_SECONDS = 50, 0.01

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int, shared: bool = False) -> bool:
        """Whether the lock was got. Raises OSError where there are none."""
        if shared:
            raise OSError("no shared locks")
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def _lock(descriptor: int, shared: bool = False) -> bool:
        """Whether the lock was got. Raises OSError where there are none."""
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextlib.contextmanager
def sole(place: str | Path, busy: str = "") -> Iterator[None]:
    """A block in which no other process has the same ``place``: a file or folder, which need not be there.

    The lock is a hidden file beside it, which goes at the end of the block, and is taken over from a killed process.
    Folders above are made; those that are empty at the end go too.

    Raises:
        ValueError: one line: another process is in such a block; ``busy`` where that says more.
        OSError: one line: the folder around it cannot be written.
    """
    place = Path(place).absolute()
    file = place.with_name(f".{place.name}.lock")
    with contextlib.ExitStack() as held:
        for folder in reversed([folder for folder in place.parents if not folder.exists()]):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
            held.callback(_remove_empty, folder)
        while True:
            try:
                descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise OSError(errors.unwritable(f"into {place.parent}", error, "folder")) from error
            closing = held.enter_context(contextlib.ExitStack())
            closing.callback(os.close, descriptor)
            try:
                free = _lock(descriptor)
            except OSError:
                free = True
            if not free:
                raise LanternError(
                    busy or f"another process writes {place}: wait for it, or give another name"
                )
            # The one before may have removed the file between the two.
            if file.exists() and os.path.samestat(os.fstat(descriptor), file.stat()):
                break
            closing.close()
        try:
            yield
        finally:
            # An open file cannot be removed everywhere; then it stays, and locks nobody out.
            with contextlib.suppress(OSError):
                file.unlink()


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A block that makes unfinished files or folders in a folder; nobody removes them meanwhile.

    Those that killed processes left there are removed first, unless somebody else is in such a block.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            held.callback(os.close, descriptor)
            if _lock(descriptor):
                _remove_leftovers(folder)
            # Whoever has the folder alone is done with it at once.
            for _ in range(_TRIES):
                if _lock(descriptor, shared=True):
                    break
                time.sleep(_WAIT_SECONDS)
        yield


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        found = _LEFTOVER.fullmatch(path.name)
        if found is None:
            continue
        # Somebody else's may stay.
        with contextlib.suppress(OSError):
            # Killed between two renames: the old folder, which was whole, is put back.
            if found["kind"] == "old" and not (folder / found["name"]).exists():
                path.rename(folder / found["name"])
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
