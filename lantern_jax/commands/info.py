"""``lantern info``: what a checkpoint holds."""

import argparse


def add(commands) -> None:
    """Adds ``info`` to a parser's commands."""
    info = commands.add_parser("info", help="describe a checkpoint", allow_abbrev=False)
    info.add_argument(
        "model", nargs="?", default="demo", metavar="DIR", help="checkpoint (default: the demo)"
    )
    info.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from lantern_jax.checkpoints.store import describe, load, model_directory
    from lantern_jax.commands.report import show_description

    show_description(describe(load(model_directory(arguments.model), abstract=True)))
