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
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NoReturn

from lantern_jax.apps.terminal import streams, terminal
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.interruption import Signals, at_work, raise_if_signalled
from lantern_jax.settings.settings import instead_of

_INTERRUPTED = (130, 143)
_UNREAD = 141
# The most letters of a line.
_LONGEST = 2000
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
        for flag, value in pairwise([*args, "-"]):
            # Most often a shell variable that was never set.
            if flag.startswith("--") and (flag.endswith("=") or not value.strip()):
                self.error(f"{flag.removesuffix('=')} is given nothing: give it a value, or leave it out")
        found, unknown = super().parse_known_args(args, namespace)
        if self.knows_all and unknown:
            self._refuse(unknown)
        return found, unknown

    def _refuse(self, unknown: list[str]) -> NoReturn:
        where, advice = "", f"see {self.prog} --help"
        strange = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
        if strange is not None:
            near = errors.nearest(strange, self._option_string_actions)
            advice = instead_of(strange.lstrip("-").replace("-", "_"), "--method ") or f"{near}{advice}"
            self.error(f"{errors.quoted(strange)} is not an option of {self.prog}: {advice}")
        # For an argument that may be given several times argparse accepts only one run of words.
        lists = [action.metavar for action in self._get_positional_actions() if action.nargs in ("*", "+")]
        if lists:
            where, advice = " here", f"give every {lists[0]} in one place, before the options"
        self.error(f"{self.prog} does not take {errors.quoted(unknown[0])}{where}: {advice}")

    def _get_value(self, action, arg_string):
        # Argparse itself would say no more of a ValueError than that the value is invalid.
        try:
            return (
                action.type(arg_string) if callable(action.type) else super()._get_value(action, arg_string)
            )
        except LanternError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def error(self, message: str) -> NoReturn:
        wrong = r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)"
        if choice := re.fullmatch(wrong, message, re.DOTALL):
            near = errors.nearest(choice[2], choice[3].replace("'", "").split(", "))
            message = f"{choice[1]}: {errors.quoted(choice[2])} is not valid: {near}choose from {choice[3]}"
        advice = f"see {self.prog} --help"
        for theirs, ours in (
            ("^the following arguments are required: (.*)", rf"\1 is missing: {advice}"),
            ("^unrecognized arguments: (.*)", rf"{self.prog} does not take '\1': {advice}"),
            # An invalid value is reported in the same words wherever it is found.
            (r"^argument (--[\w-]+): (?=.* is not valid: give)", r"\1 "),
        ):
            message = re.sub(theirs, ours, message)
        raise LanternError(message)


def run(name: str, work: Callable[[], object]) -> int:
    """Does a command's work, which parses its arguments; returns the exit status.

    A line on stderr, which begins with the command's name, says what went wrong; a bug's traceback is printed too.
    """
    with at_work(name) as signals, _warnings_as_lines(name):
        status = _printed(name, _run(name, work, signals))
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


def _run(name: str, work: Callable[[], object], signals: Signals) -> int:
    try:
        work()
        raise_if_signalled()
    except SystemExit as stop:
        # Rich exits like this when a pipe is broken.
        return _UNREAD if isinstance(stop.__context__, BrokenPipeError) else int(stop.code or 0)
    except KeyboardInterrupt as stop:
        return _say(f"{signals.name}: {str(stop) or signals.word}", signals.status)
    except Exception as error:
        # Libraries turn an interrupt into errors of their own, and other processes that it ended make this one fail.
        if signals.came is not None:
            return _say(f"{signals.name}: {signals.word}", signals.status)
        line = _line(error) or _platform_line()
        if line is None:
            traceback.print_exception(error)
            return _say(f"{name}: {_BUG}", 1)
        return _UNREAD if isinstance(error, BrokenPipeError) else _say(f"{name}: error: {line}", 2)
    return 0


def _printed(name: str, status: int) -> int:
    """Returns the status once all output has been written, or another one if it cannot be."""
    failed = streams.flushed()
    if status or failed is None:
        return status
    if isinstance(failed, BrokenPipeError):
        return _UNREAD
    return _say(f"{name}: error: its output cannot be written ({failed.strerror}): check where it goes", 2)


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
    terminal.say(errors.printable(" ".join(words), _LONGEST), error=True)
    streams.flushed()
    return status
