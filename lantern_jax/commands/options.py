"""Options that several subcommands take, each said once, and what becomes of them."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lantern_jax.commands.arguments import seed, typed, whole
from lantern_jax.commands.command_line import hosts_joined
from lantern_jax.devices.mesh import mesh_sizes
from lantern_jax.io.terminal import say
from lantern_jax.settings.settings import KNOBS

if TYPE_CHECKING:
    from lantern_jax.pipeline.pipeline import Pipeline

DTYPES = ("float32", "bfloat16", "float16")


class Read(argparse.Action):
    """Keeps what a function makes of an option's text, as the command line is read; its errors keep their words."""

    def __init__(self, *, read: Callable[[str], Any], **options: Any):
        super().__init__(**options)
        self._read = read

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        setattr(namespace, self.dest, self._read(values))


class _KeepKnob(argparse.Action):
    """Puts a knob's value into ``knobs``, by the knob's name."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        namespace.knobs = {**namespace.knobs, self.dest: values}


def mesh(text: str) -> str:
    """Returns a ``--mesh``; LanternError for one that is valid with no number of devices."""
    mesh_sizes(text)
    return text


def hosts(text: str) -> str:
    """Returns a ``--hosts``; LanternError for one that no process can be."""
    from lantern_jax.devices.hosts import check

    check(text)
    return text


def encoded_prompts(text: str) -> Any:
    """Returns the prompts of a file that ``lantern encode`` wrote."""
    from lantern_jax.text.encoded import load_encoded

    return load_encoded(text)


_SHARED: dict[str, dict[str, Any]] = {
    "--model": {"default": "demo", "metavar": "demo|DIR|OWNER/NAME", "help": "checkpoint (default: demo)"},
    "--dtype": {
        "choices": DTYPES, "help": "of parameters and products (default: float32 on CPUs, else bfloat16)",
    },
    "--mesh": {
        "action": Read, "read": mesh, "metavar": "data=D,model=M",
        "help": "spread pictures over D groups of M devices and split the model over each M (default: all devices, "
        "each with a whole model)",
    },
    "--hosts": {
        "action": Read, "read": hosts, "metavar": "ADDRESS:PORT,i/N|auto",
        "help": "be process i of N that share one mesh, the first at that address; auto: as a TPU pod or SLURM says",
    },
    "--num": {"type": whole(), "default": 1, "metavar": "N", "help": "pictures a prompt (default: 1)"},
    "--seed": {"type": seed, "default": 0, "metavar": "S", "help": "random seed (default: 0)"},
    "--tuned": {
        "default": "auto", "metavar": "FILE|auto|off",
        "help": "settings that `lantern tune` found: of a file, of such calls if there are any, or none "
        "(default: auto)",
    },
    "--overwrite": {"action": "store_true", "help": "replace outputs that exist"},
}  # fmt: skip


def add_command(
    commands: Any, name: str, about: str, run: Callable[[argparse.Namespace], None], *shared: str
) -> argparse.ArgumentParser:
    """Adds a subcommand that ``run`` does, with some of the shared options; returns its parser."""
    parser = commands.add_parser(name, help=about)
    parser.set_defaults(run=run)
    for option in shared:
        parser.add_argument(option, **_SHARED[option])
    return parser


def add_knobs(parser: argparse.ArgumentParser, names: Iterable[str] = KNOBS) -> None:
    """Adds a flag for every knob of a generation, or for some; ``knobs`` holds those that are given, by name."""
    parser.set_defaults(knobs={})
    for name in names:
        knob = KNOBS[name]
        options: dict[str, Any] = {"choices": knob.choices} if knob.choices else {"metavar": knob.metavar}
        if knob.type in (int, float):
            options["type"] = typed(knob)
        note = f"; {knob.note}" if knob.note else ""
        parser.add_argument(
            _flag(name), action=_KeepKnob, default=argparse.SUPPRESS, help=knob.help + note, **options
        )


def join_hosts(given: str | None) -> bool:
    """Joins this process to others where ``--hosts`` was given; returns whether it is the one that prints and writes.

    The others print nothing but errors from here on. Call it before anything is computed.

    Raises:
        LanternError: as ``hosts.join``.
    """
    if given is None:
        return True
    from lantern_jax.devices import hosts

    hosts.join(given)
    if not hosts.is_first():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return hosts.is_first()


def open_pipeline(arguments: argparse.Namespace, keep: bool = True) -> "Pipeline":
    """Opens the checkpoint that was given, on the mesh that was.

    Tuned settings are those of ``--tuned``, none for a command without it.

    Args:
        keep: whether programs are kept for later processes, and those of earlier ones found.
    """
    from lantern_jax.devices.compilation import keep_compiled_programs
    from lantern_jax.pipeline.pipeline import load

    if keep:
        keep_compiled_programs()
    tuned, mesh = vars(arguments).get("tuned"), mesh_of(arguments)
    return load(arguments.model, arguments.dtype, tuned, mesh)


def mesh_of(arguments: argparse.Namespace) -> str | None:
    """Returns the mesh that was given; for processes that joined, by default one of all their devices."""
    given = vars(arguments).get("mesh")
    if given is not None or not hosts_joined():
        return given
    import jax

    return f"data={jax.device_count()}"


def say_notes(notes: Iterable[str]) -> None:
    """Prints the notes of a plan on stderr, a line for each, a knob by its flag."""
    for note in notes:
        name, _, rest = note.partition(" ")
        say(f"lantern: {_flag(name)} {rest}" if name in KNOBS else f"lantern: {note}", error=True)


def _flag(knob: str) -> str:
    return f"--{knob.replace('_', '-')}"
