"""The ``lantern`` command's parser."""

import argparse
import sys
from collections.abc import Sequence

from lantern_jax import __version__
from lantern_jax.apps.commands import (
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
from lantern_jax.apps.commands import set as picture_set
from lantern_jax.apps.commands.command_line import Parser, run
from lantern_jax.io import plugins
from lantern_jax.io.errors import LanternError

_DESCRIPTION = """Pictures by speculative decoding.

examples:
  lantern generate "green hills at noon with a river under clouds"
  lantern generate "a foggy forest" --compare        how much faster than plainly?
  lantern serve                                      a page to paint on"""


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0, 2 after an error, 130 when interrupted, 143 when terminated."""

    def work() -> None:
        words = (sys.argv[1:] if argv is None else argv) or ["help"]
        arguments = _parsed([*words[1:], "--help"] if words[0] == "help" else words)
        arguments.run(arguments)

    return run("lantern", work)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments; for a name that is unknown here, a format's say, other packages are loaded."""
    try:
        return make_parser(words).parse_args(words)
    except LanternError:
        if not plugins.load():
            raise
    return make_parser(words).parse_args(words)


def make_parser(words: Sequence[str] = ("convert",)) -> argparse.ArgumentParser:
    """Makes the command's parser, as far as these words need it; ``run`` of its arguments is the function to call."""
    parser = Parser(
        prog="lantern", usage="lantern COMMAND ...", description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"lantern_jax {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, prog="lantern")
    for command in (generate, serve, picture_set, tune, bench, metrics, encode, info, methods):
        command.add(commands)
    convert.add(commands, chosen="convert" in words)
    quantize.add(commands)
    return parser
