"""Types of command-line arguments: each function is, or returns, a ``type`` for argparse.

Arguments are checked before any work is done; ``command_line.Parser`` says which one a LanternError is about.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from lantern_jax.decoding.fields import MOST_INT, MOST_SEED, Range
from lantern_jax.io.errors import LanternError, quoted
from lantern_jax.io.files import check_makeable, check_new_file, open_file

MOST = MOST_INT
_PORTS = {"http": 80, "https": 443}


def typed(allowed: Range) -> Callable[[str], int | float]:
    """Returns a parser of numbers in a range."""
    return partial(allowed.read, "")


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """Returns a parser of whole numbers from ``least`` to ``most``."""
    return typed(Range(int, least, most))


def number(
    least: float = 0.0, most: float = math.inf, *, above: bool = False, below: bool = False
) -> Callable[[str], float]:
    """Returns a parser of numbers from ``least`` to ``most``, exclusive with ``above`` and ``below``."""
    return typed(Range(float, least, most, above, below))


seed = whole(0, MOST_SEED)


def words(text: str) -> list[str]:
    """Returns the words of a comma-separated list: at least one, and none of them twice."""
    found = text.split(",")
    if not all(found) or len(set(found)) < len(found):
        raise LanternError(f"{quoted(text)} is not valid: give words with commas between them, each once")
    return found


def wholes(text: str) -> list[int]:
    """Returns the numbers of a comma-separated list: whole numbers from 0 on, none of them twice."""
    found = [whole(0)(word) for word in words(text)]
    if len(set(found)) < len(found):
        raise LanternError(f"{quoted(text)} is not valid: give each number once")
    return found


def file(text: str) -> Path:
    """Returns the path of a readable file."""
    path = _path(text)
    if not path.is_file():
        raise LanternError(f"{quoted(text)} is not a file: give one that is there")
    open_file(path).close()
    return path


def folder(text: str) -> Path:
    """Returns the path of an existing folder."""
    path = _path(text)
    if not path.is_dir():
        raise LanternError(f"{quoted(text)} is not a folder: give one that is there")
    return path


def model(text: str) -> str:
    """Returns ``demo`` or a checkpoint's folder."""
    return text if text == "demo" else str(folder(text))


def host_name(text: str) -> str:
    """Returns a server's name or address as requests carry it: in lower case, without a port."""
    name = urlsplit(f"//{text}").hostname
    if name is None or text.lower() not in (name, f"[{name}]"):
        raise LanternError(
            f"{quoted(text)} is no name of a server: give it without a scheme or port, pictures.example.org say"
        )
    return name


def origin(text: str) -> str:
    """Returns the origin of a web page as browsers send it, such as "https://example.org": in lower case, without its
    scheme's default port."""
    scheme, _, name = text.lower().partition("://")
    if scheme not in _PORTS or not name or "/" in name:
        raise LanternError(f"{quoted(text)} is no origin: give a scheme and a name, https://example.org say")
    return f"{scheme}://{name.removesuffix(f':{_PORTS[scheme]}')}"


def new_file(text: str) -> Path:
    """Returns the path of a file that can be written; an existing one is replaced."""
    path = _path(text)
    check_new_file(path, True)
    return path


def working_folder(text: str) -> Path:
    """Returns the path of a folder to write into: an existing one, or one that can be made."""
    path = _path(text)
    if path.exists() and not path.is_dir():
        raise LanternError(f"{quoted(text)} is a file: give a folder to work in")
    check_makeable(path)
    return path


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise LanternError(f"{quoted(text)} is not a name: give one of a file or folder")
    try:
        Path(text).exists()
    except OSError as error:
        raise LanternError(f"{quoted(text, 40)} is not a name ({error.strerror}): give another") from None
    return Path(text)
