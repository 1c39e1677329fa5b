"""``lantern methods``: the methods there are, and every knob of a generation."""

import argparse

from lantern_jax.commands.options import add_command
from lantern_jax.decoding.methods import methods
from lantern_jax.io.plugins import load
from lantern_jax.settings.tables import markdown_tables


def add(commands) -> None:
    """Adds ``methods`` to a parser's commands."""
    parser = add_command(commands, "methods", "list the methods of decoding", _run)
    parser.add_argument(
        "--markdown", action="store_true", help="with all knobs, as in the documentation's tables"
    )


def _run(arguments: argparse.Namespace) -> None:
    if arguments.markdown:
        load()
        print(markdown_tables(), end="")
        return
    for name, method in methods().items():
        knobs = " ".join(f"--{knob.replace('_', '-')} {value}" for knob, value in method.knobs.items())
        print(f"{name:<10} {method.help}\n{'':<10} {knobs}")
