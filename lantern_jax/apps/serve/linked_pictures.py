"""Pictures that answers link to, kept in memory for a while."""

import secrets
import time

SECONDS = 3600.0
_MOST_BYTES = 2**28


class LinkedPictures:
    """Files under names that cannot be guessed; used by the event loop alone.

    Attributes:
        seconds: how long a file is kept; less if there are too many bytes of newer ones.
    """

    def __init__(self, seconds: float = SECONDS, most: int = _MOST_BYTES):
        self.seconds, self._most, self._bytes = seconds, most, 0
        self._files: dict[str, tuple[float, bytes, str]] = {}

    def keep(self, file: bytes, ending: str) -> str:
        """Keeps a file; returns its name."""
        name = f"{secrets.token_urlsafe(24)}.{ending}"
        self._files[name] = (time.monotonic() + self.seconds, file, f"image/{ending}")
        self._bytes += len(file)
        self._forget()
        return name

    def find(self, name: str) -> tuple[bytes, str] | None:
        """Returns a file and its media type; None if there is none, or none any more."""
        self._forget()
        _, *found = self._files.get(name, (0.0,))
        return (found[0], found[1]) if found else None

    def _forget(self) -> None:
        while self._files:
            name, (end, file, _) = next(iter(self._files.items()))
            if end > time.monotonic() and (self._bytes <= self._most or len(self._files) == 1):
                return
            del self._files[name]
            self._bytes -= len(file)
