"""The ``lantern`` command's parser and errors: one line on stderr and exit status 2."""

import argparse
import sys
from typing import NoReturn

from lantern_jax import __version__, errors
from lantern_jax.commands import (
    bench,
    convert,
    encode,
    generate,
    info,
    methods,
    metrics,
    quantize,
    serve,
    tune,
)
from lantern_jax.commands import set as picture_set
from lantern_jax.commands.options import hosts_joined


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(message)
        raise SystemExit(2)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0, 2 after an error, 130 when interrupted."""
    status = _run(argv)
    if status and hosts_joined():
        from lantern_jax import hosts

        hosts.leave(status)
    return status


def _run(argv: list[str] | None) -> int:
    try:
        arguments = make_parser().parse_args(argv)
        arguments.run(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    except (ValueError, OSError, ImportError) as error:
        return _fail(str(error))
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return _fail("the device has too little memory for this: give a smaller --batch or --tree")
        if not hosts_joined():
            raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return _fail(
            f"this process and the others of --hosts lost each other, look for the first that failed: {why}"
        )
    except KeyboardInterrupt as stop:
        print(f"lantern: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command; ``run`` of what it parses is the function to call."""
    parser = _Parser(prog="lantern", description="Pictures by speculative decoding.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"lantern_jax {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        generate, serve, picture_set, tune, bench, metrics, encode, info, methods, convert, quantize,
    ):  # fmt: skip
        command.add(commands)
    return parser


def _fail(message: str) -> int:
    # What a message says may come from a file: names of tensors, words, sizes.
    print(f"lantern: error: {errors.printable(' '.join(message.split()))}", file=sys.stderr)
    return 2
