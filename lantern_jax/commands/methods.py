"""``lantern methods``: the methods there are, and every knob of a generation."""

import argparse

from lantern_jax.commands.options import Command
from lantern_jax.decoding.knobs import Knob
from lantern_jax.decoding.methods import methods
from lantern_jax.io.plugins import load
from lantern_jax.settings.settings import KNOBS


def add(commands) -> None:
    """Adds ``methods`` to a parser's commands."""
    command = Command(commands, "methods", "list the methods of decoding", _run)
    command.switch("--markdown", "with all knobs, as in the documentation's tables")


def _run(arguments: argparse.Namespace) -> None:
    if arguments.markdown:
        load()
        print(_markdown_tables(), end="")
        return
    for name, method in methods().items():
        knobs = " ".join(f"--{knob.replace('_', '-')} {value}" for knob, value in method.knobs.items())
        print(f"{name:<10} {method.help}\n{'':<10} {knobs}")


def _markdown_tables() -> str:
    """Returns the methods and the knobs as two tables."""
    lines = ["| method | what it is | knobs it fixes |", "| --- | --- | --- |"]
    for title, method in methods().items():
        fixed = ", ".join(f"`{name}={value}`" for name, value in method.knobs.items())
        lines.append(f"| `{title}` | {method.help} | {fixed} |")
    lines += ["", "| knob | default | range | what it is |", "| --- | --- | --- | --- |"]
    for declared in KNOBS.values():
        note = f" ({declared.note})" if declared.note else ""
        lines.append(
            f"| `{declared.name}` | {_default_text(declared)} | {declared.range} | {declared.help}{note} |"
        )
    return "\n".join(lines) + "\n"


def _default_text(declared: Knob) -> str:
    if declared.by_platform is not None:
        return ", ".join(f"{platform} `{value}`" for platform, value in declared.by_platform.items())
    return "" if declared.default is None else f"`{declared.default}`"
