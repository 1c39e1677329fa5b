"""Several processes in one place: which one may work there. A lock ends with its process, however that ends."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_makeable

# Errors of network file systems without locks: there no process is refused.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)


@contextlib.contextmanager
def sole(place: str | Path, busy: str = "") -> Iterator[None]:
    """Keeps other processes away from ``place``, a file or folder that need not exist, in a block.

    The lock is a hidden file beside it, which is removed at the end of the block, or taken over from a killed process.
    Missing folders above are made, and removed at the end if nothing was put there.

    Raises:
        LanternError: another process is in such a block; the message is ``busy`` if given. Or the folder around it
            cannot be written.
    """
    # Not every command needs it, and importing it takes a while.
    from filelock import FileLock, Timeout

    place = Path(place).absolute()
    check_makeable(place.parent)
    file = place.with_name(f".{place.name}.lock")
    missing = [above for above in place.parents if not above.exists()]
    lock = FileLock(file, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise LanternError(
            busy or f"another process writes {place}: wait for it, or give another name"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        # While it is held: whoever waits for this very file sees that it is gone. Not every system removes open files.
        with contextlib.suppress(OSError):
            file.unlink()
        lock.release()
        with contextlib.suppress(OSError):
            for above in missing:
                above.rmdir()
