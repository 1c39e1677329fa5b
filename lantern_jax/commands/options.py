"""Options that several subcommands take."""

import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any

from lantern_jax.commands.arguments import typed
from lantern_jax.commands.command_line import hosts_joined
from lantern_jax.devices.mesh import mesh_sizes
from lantern_jax.io.terminal import say
from lantern_jax.settings.settings import KNOBS

DTYPES = ("float32", "bfloat16", "float16")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds ``--model`` and ``--dtype``."""
    add = parser.add_argument
    add("--model", default="demo", metavar="demo|DIR|OWNER/NAME", help="checkpoint (default: demo)")
    add(
        "--dtype", choices=DTYPES, help="of parameters and products (default: float32 on CPUs, else bfloat16)"
    )


def add_mesh(parser: argparse.ArgumentParser, hosts: bool = True) -> None:
    """Adds ``--mesh``, and ``--hosts`` for what several processes can do together."""
    parser.add_argument(
        "--mesh",
        metavar="data=D,model=M",
        help="spread pictures over D groups of M devices and split the model over each M (default: all devices, each "
        "with a whole model)",
    )
    if hosts:
        parser.add_argument(
            "--hosts",
            metavar="ADDRESS:PORT,i/N|auto",
            help="be process i of N that share one mesh, the first at that address; auto: as a TPU pod or SLURM says",
        )


def check_mesh(mesh: str | None, hosts: str | None = None) -> None:
    """Raises LanternError for a ``--mesh`` or ``--hosts`` that is valid with no number of devices."""
    if mesh is not None:
        mesh_sizes(mesh)
    if hosts is not None:
        from lantern_jax.devices.hosts import check

        check(hosts)


def join_hosts(given: str | None, mesh: str | None = None) -> bool:
    """Joins this process to others where ``--hosts`` was given; returns whether it is the one that prints and writes.

    The others print nothing but errors from here on. Call it before anything is computed.

    Raises:
        LanternError: as ``hosts.join``, or a mesh that is valid with no number of devices.
    """
    check_mesh(mesh)
    if given is None:
        return True
    from lantern_jax.devices import hosts

    hosts.join(given)
    if not hosts.is_first():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return hosts.is_first()


def mesh_of(arguments: argparse.Namespace) -> str | None:
    """Returns the mesh that was given; for processes that joined, by default one of all their devices."""
    if arguments.mesh is not None or not hosts_joined():
        return arguments.mesh
    import jax

    return f"data={jax.device_count()}"


def add_knobs(parser: argparse.ArgumentParser, names: Iterable[str] = KNOBS) -> None:
    """Adds a flag for every knob of a generation, or for some."""
    for name in names:
        knob = KNOBS[name]
        options: dict[str, Any] = {"choices": knob.choices} if knob.choices else {"metavar": knob.metavar}
        if knob.type in (int, float):
            options["type"] = typed(knob)
        note = f"; {knob.note}" if knob.note else ""
        parser.add_argument(flag_of(name), help=knob.help + note, **options)


def given_knobs(arguments: argparse.Namespace, names: Iterable[str] = KNOBS) -> dict[str, Any]:
    """Returns the values of those flags by the knobs' names, None where one was left out."""
    return {name: getattr(arguments, name) for name in names}


def say_notes(notes: Iterable[str]) -> None:
    """Prints the notes of a plan on stderr, a line for each, a knob by its flag."""
    for note in notes:
        name, _, rest = note.partition(" ")
        say(f"lantern: {flag_of(name)} {rest}" if name in KNOBS else f"lantern: {note}", error=True)


def flag_of(knob: str) -> str:
    """Returns the flag that sets a knob."""
    return f"--{knob.replace('_', '-')}"
