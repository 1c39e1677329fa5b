"""Errors of the caller, one line each: what was given, what was expected, what to do."""

import contextlib
import difflib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Characters of a value that an error quotes.
MOST_QUOTED = 200


class LanternError(ValueError):
    """An error that the caller can fix, in one line: what was given, what was expected, what to do.

    The command prints it without a traceback; any other error is a bug, and keeps its traceback.

    Example:
        >>> try:
        ...     lantern_jax.load("demo").check("a lake", top_p=2)
        ... except lantern_jax.LanternError as error:
        ...     print(error)
        top_p 2 is not valid: give a number in (0, 1] (1 turns it off)
    """


class MissingExtra(LanternError, ImportError):
    """Tells which optional packages a call needs, and how to install them."""


class IgnoredWords(UserWarning):
    """A warning of words in a prompt that change nothing: it names the known words nearest to them, or where the prompt
    is cut.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", lantern_jax.IgnoredWords)  # for words alone: load(..., strict_words=True)
    """


class Assumed(UserWarning):
    """A warning of what a conversion took because its files leave a choice; it says what else there is."""


def warn_of_ignored(lines: Iterable[str]) -> None:
    for line in lines:
        warnings.warn(line, IgnoredWords, stacklevel=1)


def invalid(name: str, value: Any, wanted: str) -> LanternError:
    """Returns the error for a value out of its range; ``wanted`` says what to give."""
    return LanternError(f"{name} {quoted(value)} is not valid: give {wanted}".lstrip())


def unknown(kind: str, value: Any, known: Iterable[str], more: str = "") -> LanternError:
    """Returns the error for a name that is none of ``known``; ``more`` is what else could be given."""
    known = list(known)
    near = nearest(value[:MOST_QUOTED], known) if isinstance(value, str) else ""
    return LanternError(f"unknown {kind} {quoted(value)}: {near}choose one of {', '.join(known)}{more}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns "did you mean ...? " with the known name that is most like this one, or "" if none is close."""
    known = list(known)
    found = difflib.get_close_matches(word, known, 1, 0.8) or [
        name for name in known if name in word.split("_")
    ]
    return f"did you mean {found[0]}? " if found else ""


def exists(path: str | Path) -> LanternError:
    """Returns the error for a path for new files at which something exists."""
    return LanternError(f"{path} exists: give --overwrite to replace it, or another name")


def damaged(path: str | Path, why: str = "") -> LanternError:
    """Returns the error for a checkpoint, or a file of it, that cannot be read."""
    why = f" ({printable(why)})" if why else ""
    return LanternError(f"{path} is damaged{why}: fetch or convert the checkpoint again")


@contextlib.contextmanager
def of_negatives() -> Iterator[None]:
    """Makes errors about prompts in a block say that they are about negative prompts."""
    try:
        yield
    except LanternError as error:
        raise LanternError(f"negative_prompt: {str(error).removeprefix('prompt: ')}") from None


def quoted(value: Any, most: int = MOST_QUOTED) -> str:
    """Quotes a given value as Python writes it, on one line, cut after ``most`` characters."""
    # What is cut anyway is not looked at: it may be megabytes.
    longer = len(value) - most if isinstance(value, str | bytes) else 0
    if longer > 0:
        return f"{printable(repr(value[:most]), 2 * most)} ... ({longer} characters more)"
    return printable(repr(value), most)


def printable(text: Any, most: int = 4000) -> str:
    """Escapes what might steer a terminal in a text from a file: line breaks, control characters, escape sequences and
    marks that change the direction of writing; cuts the text after ``most`` characters.
    """
    text = str(text)
    more = f" ... ({len(text) - most} characters more)" if len(text) > most else ""
    shown = (mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text[:most])
    return "".join(shown) + more


def unwritable(place: str, error: OSError, kind: str) -> str:
    """Returns the line for a file or folder that the system does not let us write."""
    return f"cannot write {place} ({error.strerror or error}): name another {kind}"


def short(text: object, most: int = 120) -> str:
    """Returns the first line of a text that is not ours, such as a name in a file, ``printable`` and cut if long."""
    lines = str(text)[: 4 * most].strip().splitlines() or [type(text).__name__]
    shown = printable(lines[0])
    return shown if len(shown) <= most else f"{shown[:most]}..."


def listed(names: Iterable[object], most: int = 5, each: int = 80) -> str:
    """Lists the first names of many, each cut after ``each`` characters, and says how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(short(name, each) for name in names[:most]) + more
