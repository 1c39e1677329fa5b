"""``lantern methods``: all methods, and every knob of a generation."""

import argparse
import textwrap
from collections.abc import Mapping
from typing import Any

from lantern_jax.apps.commands.options import Command
from lantern_jax.decoding.knobs import Knob
from lantern_jax.decoding.methods import methods
from lantern_jax.io.plugins import load
from lantern_jax.settings.resolution import for_platform
from lantern_jax.settings.settings import KNOBS

_INDENT = " " * 13


def add(commands) -> None:
    """Adds ``methods`` to a parser's commands."""
    command = Command(commands, "methods", "list the methods of decoding", _run)
    command.switch("--verbose", "with the knobs that each fixes")
    command.switch("--markdown", "with all knobs, as in the documentation's tables")


def _run(arguments: argparse.Namespace) -> None:
    if arguments.markdown:
        load()
        print(_markdown_tables(), end="")
        return
    for name, method in methods().items():
        print(textwrap.fill(method.help, 80, initial_indent=f"{name:<13}", subsequent_indent=_INDENT))
        text = " ".join(f"--{knob.replace('_', '-')} {_shown(value)}" for knob, value in method.knobs.items())
        if arguments.verbose and text:
            print(textwrap.fill(text, 80, initial_indent=_INDENT, subsequent_indent=_INDENT))


def _shown(value: Any) -> str:
    """Returns a value as it is typed; if it differs by platform, the CPU's and then the accelerators'."""
    if not isinstance(value, Mapping):
        return str(value)
    others = {platform: for_platform(value, platform) for platform in ("gpu", "tpu")}
    same = len(set(others.values())) == 1
    told = f"gpu, tpu: {others['gpu']}" if same else f"gpu: {others['gpu']}, tpu: {others['tpu']}"
    return f"{for_platform(value, 'cpu')} ({told})"


def _markdown_tables() -> str:
    """Returns three tables: the methods, what they set differently by platform, and the knobs."""
    lines = ["| method | what it is | knobs it fixes |", "| --- | --- | --- |"]
    by_platform = ["", "| method | knob | CPU | GPU | TPU |", "| --- | --- | --- | --- | --- |"]
    for title, method in methods().items():
        fixed = []
        for name, value in method.knobs.items():
            if isinstance(value, Mapping):
                values = " | ".join(
                    f"`{for_platform(value, platform)}`" for platform in ("cpu", "gpu", "tpu")
                )
                by_platform.append(f"| `{title}` | `{name}` | {values} |")
            else:
                fixed.append(f"`{name}={value}`")
        lines.append(f"| `{title}` | {method.help} | {', '.join(fixed)} |")
    lines += by_platform
    lines += ["", "| knob | default | range | what it is |", "| --- | --- | --- | --- |"]
    for declared in KNOBS.values():
        note = f" ({declared.note})" if declared.note else ""
        lines.append(
            f"| `{declared.name}` | {_default_text(declared)} | {declared.range} | {declared.help}{note} |"
        )
    return "\n".join(lines) + "\n"


def _default_text(declared: Knob) -> str:
    if (values := declared.by_platform) is not None:
        told = {platform: for_platform(values, platform) for platform in ("cpu", "gpu", "tpu")}
        if told["gpu"] == told["tpu"]:
            told = {"cpu": told["cpu"], "gpu and tpu": told["gpu"]}
        return ", ".join(f"{platform} `{value}`" for platform, value in told.items())
    return "" if declared.default is None else f"`{declared.default}`"
