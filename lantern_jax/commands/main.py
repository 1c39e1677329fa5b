"""The ``lantern`` command's parser."""

import argparse

from lantern_jax import __version__
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
from lantern_jax.commands.command_line import Parser, run


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0, 2 after an error, 130 when interrupted, 143 when terminated."""

    def work() -> None:
        arguments = make_parser().parse_args(argv)
        arguments.run(arguments)

    return run("lantern", work, argv)


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of the whole command; ``run`` of what it parses is the function to call."""
    parser = Parser(prog="lantern", description="Pictures by speculative decoding.")
    parser.add_argument("--version", action="version", version=f"lantern_jax {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        generate, serve, picture_set, tune, bench, metrics, encode, info, methods, convert, quantize,
    ):  # fmt: skip
        command.add(commands)
    return parser
