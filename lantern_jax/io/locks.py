"""Several processes in one place: which one may work there, and what becomes of the files that killed ones left.

Locks are the system's, so that they end with the process that holds them, however that ends. Some network file systems
have none: there no process is refused, and what killed processes left stays. On others they hold on one machine only:
unfinished files bear the machine in their names, and another machine's are left alone for a day.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# This machine, in names.
MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
# Names that ``files`` gives to unfinished files and folders, and to the ones that new folders replace.
_LEFTOVER = re.compile(r"\.lantern-([0-9a-f]{8})[0-9a-f]{8}\.(part|old)")
# Seconds without a change.
_ABANDONED = 24 * 3600


def _lock(descriptor: int, shared: bool = False) -> bool:
    """Locks an open file or folder, waiting only for a shared lock; tells whether it did.

    Raises:
        OSError: there are no such locks here.
    """
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextlib.contextmanager
def sole(place: str | Path, busy: str = "") -> Iterator[None]:
    """Keeps other processes away from ``place``, a file or folder that need not exist, in a block.

    The lock is a hidden file beside it, which is removed at the end of the block, or taken over from a killed process.
    Missing folders above are made; those still empty at the end are removed.

    Raises:
        LanternError: another process is in such a block; the message is ``busy`` if given.
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
            # The process before may have removed the file between opening and locking it.
            if file.exists() and os.path.samestat(os.fstat(descriptor), file.stat()):
                break
            closing.close()
        try:
            yield
        finally:
            # Not every system removes an open file; then it stays, and locks no process out.
            with contextlib.suppress(OSError):
                file.unlink()


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Keeps unfinished files and folders that a block makes in ``folder`` from being removed by other processes.

    What killed processes of this machine left there is removed first, as is what others have not changed for a day,
    unless another process is in such a block.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            held.callback(os.close, descriptor)
            if _lock(descriptor):
                _remove_leftovers(folder)
            # A process that has the folder to itself is done with it soon.
            _lock(descriptor, shared=True)
        yield


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        found = _LEFTOVER.fullmatch(path.name)
        if found is None:
            continue
        # Another user's files may stay.
        with contextlib.suppress(OSError):
            if found[1] != MACHINE and time.time() - path.lstat().st_ctime < _ABANDONED:
                continue
            # Killed between two renames: the old folder, which was whole, is put back.
            for whole in path.iterdir() if found[2] == "old" else ():
                if not (folder / whole.name).exists():
                    whole.rename(folder / whole.name)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
