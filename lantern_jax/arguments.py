"""What an argument of a script may be: each function is, or makes, a ``type`` of argparse.

It checks before any work. An ``ArgumentTypeError`` is one line: what was given and what to give.
"""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from lantern_jax.files import check_new_file, check_writable, open_file

# Seeds and sizes are int32 somewhere.
MOST = 2**31 - 1


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """A whole number of that range."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ArgumentTypeError(f"{text!r} is not valid: give a whole number from {least} to {most}")
        return number

    return parse


def number(least: float = 0.0, *, above: bool = False, finite: bool = True) -> Callable[[str], float]:
    """A number that is at least so large, or larger with ``above``; infinity is one where it need not be finite."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        low = value > least if above else value >= least
        if not low or (finite and not abs(value) < 1e38):
            kind = "larger than" if above else "of at least"
            raise ArgumentTypeError(f"{text!r} is not valid: give a number {kind} {least:g}")
        return value

    return parse


def words(text: str) -> list[str]:
    """Words with commas between them, at least one, each once."""
    found = text.split(",")
    if not all(found) or len(set(found)) < len(found):
        raise ArgumentTypeError(f"{text!r} is not valid: give words with commas between them, each once")
    return found


def wholes(text: str) -> list[int]:
    """Whole numbers from 0 on with commas between them, each once."""
    return [whole(0)(word) for word in words(text)]


def file(text: str) -> Path:
    """A file that can be read."""
    path = _path(text)
    if not path.is_file():
        raise ArgumentTypeError(f"{text!r} is not a file: give one that is there")
    try:
        open_file(path).close()
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return path


def folder(text: str) -> Path:
    """A folder that is there."""
    path = _path(text)
    if not path.is_dir():
        raise ArgumentTypeError(f"{text!r} is not a folder: give one that is there")
    return path


def model(text: str) -> str:
    """``demo`` or a checkpoint's folder."""
    return text if text == "demo" else str(folder(text))


def new_file(text: str) -> Path:
    """A file that can be written; one that is there is replaced."""
    path = _path(text)
    _told(check_new_file, path, True)
    return path


def working_folder(text: str) -> Path:
    """A folder to write into: there, or to be made."""
    path = _path(text)
    if path.exists() and not path.is_dir():
        raise ArgumentTypeError(f"{text!r} is a file: give a folder to work in")
    lowest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    _told(check_writable, lowest)
    return path


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ArgumentTypeError(f"{text!r} is not a name: give one of a file or folder")
    try:
        Path(text).exists()
    except OSError as error:
        raise ArgumentTypeError(f"{text[:40]!r} is not a name ({error.strerror}): give another") from None
    return Path(text)


def _told(check: Callable[..., None], *given: object) -> None:
    try:
        check(*given)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
