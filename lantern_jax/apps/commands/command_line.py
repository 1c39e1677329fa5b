"""How commands and scripts end: with one line on stderr if something went wrong, and a status for other programs.

0     everything is done
1     a bug: its traceback, and a line that asks for a report
2     an error of the caller, reported in one line: what was given, what was expected, what to do
130   Ctrl-C
141   the reader of the output is gone, as after `| head`; nothing is printed
143   SIGTERM, which schedulers send before they take the machine away
"""

import argparse
import contextlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from lantern_jax.apps.terminal import streams, terminal
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.interruption import Signals, at_work, raise_if_signalled
from lantern_jax.settings.settings import instead_of

_INTERRUPTED = (130, 143)
_UNREAD = 141
_BUG = "this is a bug of lantern_jax: please report it with the lines above and the command"


class Parser(argparse.ArgumentParser):
    """Raises a one-line LanternError where argparse prints its usage; options may not be abbreviated or left empty.

    Attributes:
        knows_all: whether an unknown option is refused, with the nearest one named, before another parser sees it.
    """

    knows_all = False

    def __init__(self, **options):
        super().__init__(**{"allow_abbrev": False} | options)

    def parse_known_args(self, args=None, namespace=None):
        args = sys.argv[1:] if args is None else list(args)
        # Most often a shell variable that was never set.
        empty = [flag for flag, value in pairwise(args) if flag.startswith("--") and not value.strip()]
        empty += [flag[:-1] for flag in args if flag.startswith("--") and flag.endswith("=")]
        if empty:
            self.error(f"{empty[0]} is given nothing: give it a value, or leave it out")
        found, unknown = super().parse_known_args(args, namespace)
        if not self.knows_all:
            return found, unknown
        strange = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if strange:
            instead = instead_of(strange[0].lstrip("-").replace("-", "_"), "--method ")
            near = errors.nearest(strange[0], self._option_string_actions)
            self.error(
                f"{errors.quoted(strange[0])} is not an option of {self.prog}: "
                f"{instead or f'{near}see {self.prog} --help'}"
            )
        if unknown:
            # For an argument that may be given several times argparse accepts only one run of words.
            lists = [
                action.metavar for action in self._get_positional_actions() if action.nargs in ("*", "+")
            ]
            advice = (
                f"give every {lists[0]} in one place, before the options"
                if lists
                else f"see {self.prog} --help"
            )
            where = " here" if lists else ""
            self.error(f"{self.prog} does not take {errors.quoted(unknown[0])}{where}: {advice}")
        return found, unknown

    def _get_value(self, action, arg_string):
        # Argparse itself would say no more of a ValueError than that the value is invalid.
        try:
            return (
                action.type(arg_string) if callable(action.type) else super()._get_value(action, arg_string)
            )
        except LanternError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def error(self, message: str) -> NoReturn:
        choice = re.fullmatch(
            r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL
        )
        if choice:
            near = errors.nearest(choice[2], choice[3].replace("'", "").split(", "))
            message = f"{choice[1]}: {errors.quoted(choice[2])} is not valid: {near}choose from {choice[3]}"
        message = re.sub(
            r"^the following arguments are required: (.*)", rf"\1 is missing: see {self.prog} --help", message
        )
        message = re.sub(
            r"^unrecognized arguments: (.*)",
            rf"{self.prog} does not take '\1': see {self.prog} --help",
            message,
        )
        # An invalid value is reported in the same words wherever it is found.
        raise LanternError(re.sub(r"^argument (--[\w-]+): (?=.* is not valid: give)", r"\1 ", message))


def run(name: str, work: Callable[[], object], words: Sequence[str] | None = None) -> int:
    """Does a command's work; returns the exit status; a line on stderr says what went wrong.

    Args:
        name: the command's, which begins the line.
        work: parses arguments and does what they say. A bug's traceback is printed.
        words: the arguments, of which an error quotes only the beginning if they are long; None: this process's.
    """
    words = sys.argv[1:] if words is None else words
    with at_work(name) as signals, _warnings_as_lines(name):
        status = _printed(name, _run(name, work, signals, words))
    if status and hosts_joined():
        from lantern_jax.devices import hosts

        hosts.leave(status)
    return status


@contextlib.contextmanager
def _warnings_as_lines(name: str) -> Iterator[None]:
    """Prints warnings of ours as lines of the command, and other warnings as Python does."""
    usual = warnings.showwarning

    def show(message, category, *where: Any) -> None:
        if issubclass(category, errors.IgnoredWords | errors.Assumed):
            _say(f"{name}: {message}", 0)
        else:
            usual(message, category, *where)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def run_script(main: Callable[[], object]) -> NoReturn:
    """Runs ``main``, the work of ``python -m PACKAGE.SCRIPT``, and ends the process."""
    leave(run(sys.modules["__main__"].__spec__.name.removesuffix(".__main__"), main))


def leave(status: int) -> NoReturn:
    """Ends the process; immediately after an interruption, since threads of a running program may crash."""
    if status in _INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    raise SystemExit(status)


def hosts_joined() -> bool:
    """Tells whether this process is one of several, without importing JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _run(name: str, work: Callable[[], object], signals: Signals, words: Sequence[str]) -> int:
    try:
        work()
        raise_if_signalled()
    except SystemExit as stop:
        # Rich exits like this when a pipe is broken.
        return _UNREAD if isinstance(stop.__context__, BrokenPipeError) else int(stop.code or 0)
    except KeyboardInterrupt as stop:
        return _interrupted(signals, str(stop))
    except Exception as error:
        # Libraries turn an interrupt into errors of their own, and other processes that it ended make this one fail.
        if signals.came is not None:
            return _interrupted(signals, "")
        line = _line(error) or _platform_line()
        if line is None:
            traceback.print_exception(error)
            return _say(f"{name}: {_BUG}", 1)
        if isinstance(error, BrokenPipeError):
            return _UNREAD
        return _say(f"{name}: error: {_shortened(line, words)}", 2)
    return 0


def _printed(name: str, status: int) -> int:
    """Returns the status once all output has been written, or another one if it cannot be."""
    failed = streams.flushed()
    if status or failed is None:
        return status
    if isinstance(failed, BrokenPipeError):
        return _UNREAD
    return _say(f"{name}: error: its output cannot be written ({failed.strerror}): check where it goes", 2)


def _interrupted(signals: Signals, said: str) -> int:
    return _say(f"{signals.name}: {said or signals.word}", signals.status)


def _line(error: Exception) -> str | None:
    """Returns the line to print for an error, or None if it is a bug rather than something the caller can mend."""
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f"{errors.printable(error.filename, 200)}: "
        return f"{place}{error.strerror}"
    if isinstance(error, LanternError | OSError):
        return str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        return "not enough memory on this machine: use a smaller model or batch"
    if not isinstance(error, RuntimeError):
        return None
    if "RESOURCE_EXHAUSTED" in str(error):
        return (
            "the device has too little memory for this: give a smaller --batch, or a method with fewer nodes"
        )
    if not hosts_joined():
        return None
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"this process and the others of --hosts lost each other, look for the first that failed: {why}"


def _shortened(line: str, words: Iterable[str]) -> str:
    """Returns the line with long arguments cut, which argparse and file names show in full."""
    for word in words:
        for value in (word, word.partition("=")[2]):
            if len(value) > errors.MOST_QUOTED:
                line = line.replace(repr(value), value).replace(value, errors.quoted(value))
    return line


def _platform_line() -> str | None:
    """Returns what is wrong with the platform that JAX was asked for; None if it is available."""
    if "jax" not in sys.modules:
        return None
    from lantern_jax.devices.platform import check_platform

    try:
        check_platform()
    except ValueError as error:
        return str(error)
    return None


def _say(line: str, status: int) -> int:
    # A line may quote a file or an argument: names of tensors, words, sizes.
    # The longest word is a quoted value with its quotation marks.
    words = (errors.printable(word, errors.MOST_QUOTED + 2) for word in line.split())
    terminal.say(" ".join(words), error=True)
    streams.flushed()
    return status
