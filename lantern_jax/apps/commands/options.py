"""Options that several subcommands share, each defined once, and what is made of them."""

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from lantern_jax.apps.commands.arguments import seed, typed, whole
from lantern_jax.apps.commands.command_line import hosts_joined
from lantern_jax.apps.terminal.terminal import leave_to_another, say, telling
from lantern_jax.devices.mesh import mesh_sizes
from lantern_jax.settings.settings import KNOBS

if TYPE_CHECKING:
    from lantern_jax.pipeline.pipeline import Pipeline

DTYPES = ("float32", "bfloat16", "float16")
# The knobs that most people want, by their groups in the help.
_SAMPLING, _SPEED = ("guidance", "temperature", "top_k", "top_p"), ("method", "batch")


class _KeepKnob(argparse.Action):
    """Puts a knob's value into ``knobs``, by the knob's name."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        namespace.knobs = {**namespace.knobs, self.dest: values}


def mesh(text: str) -> str:
    """Returns a ``--mesh``; raises LanternError for one that is invalid for every number of devices."""
    mesh_sizes(text)
    return text


def encoded_prompts(text: str) -> Any:
    """Returns the prompts of a file that ``lantern encode`` wrote."""
    from lantern_jax.text.encoded import load_encoded

    return load_encoded(text)


_SHARED: dict[str, dict[str, Any]] = {
    "--model": {"metavar": "demo|DIR|OWNER/NAME", "about": "checkpoint", "default": "demo"},
    "--dtype": {
        "metavar": None, "about": "of parameters and products (default: float32 on CPUs and old GPUs, else bfloat16)",
        "choices": DTYPES,
    },
    "--mesh": {
        "metavar": "data=D,model=M", "read": mesh,
        "about": "spread pictures over D groups of M devices and split the model over each M (default: all devices, "
        "each with a whole model)",
    },
    "--hosts": {
        "metavar": "ADDRESS:PORT,i/N|auto",
        "about": "be process i of N that share one mesh, the first at that address; auto: as a TPU pod or SLURM says",
    },
    "--size": {
        "metavar": "WxH", "dest": "picture_size",
        "about": "width and height of pictures in pixels, for models that can draw more than one size",
    },
    "--negative": {
        "metavar": "TEXT", "about": "what guidance leads away from, in words (default: as the model was trained)",
    },
    "--num": {"metavar": "N", "about": "pictures per prompt", "default": 1, "type": whole()},
    "--seed": {"metavar": "S", "about": "random seed", "default": 0, "type": seed},
    "--tuned": {
        "metavar": "FILE|auto|off", "default": "auto",
        "about": "settings that `lantern tune` found: those of a file, those for such calls if there are any, or none",
    },
    "--search-tilings": {"about": "on GPUs: compile ten times as long, once, for passes that take a tenth less time"},
}  # fmt: skip


class Command:
    """A subcommand, to which options are added.

    Args:
        commands: those of the parser that it is added to.
        name: its name.
        about: one line for the help.
        run: does the work, given the arguments.
        shared: flags of options that other subcommands take too.
        usage: what follows the name in the help's line of usage; every option if it is empty.
        examples: command lines for the top of the help.
    """

    def __init__(
        self, commands: Any, name: str, about: str, run: Callable[[argparse.Namespace], None], *shared: str,
        usage: str = "", examples: Sequence[str] = (),
    ):  # fmt: skip
        how: dict[str, Any] = {"usage": f"%(prog)s {usage}"} if usage else {}
        if examples:
            description = "\n  ".join([f"{about[0].upper()}{about[1:]}.\n\nexamples:", *examples])
            how |= {"description": description, "formatter_class": argparse.RawDescriptionHelpFormatter}
        self._parser = self._group = commands.add_parser(name, help=about, **how)
        self._parser.knows_all = True
        self._parser.set_defaults(run=self._begin)
        self._run, self._reads = run, {}
        self.shared(*shared)

    def shared(self, *flags: str) -> None:
        """Adds options that other subcommands take too."""
        for flag in flags:
            (self.take if "metavar" in _SHARED[flag] else self.switch)(flag, **_SHARED[flag])

    def group(self, title: str, *shared: str) -> None:
        """Begins a section of the help for the arguments that follow; ``shared`` as for a new command."""
        self._group = self._parser.add_argument_group(title)
        self.shared(*shared)

    def take(
        self, flag: str, metavar: str | None, about: str, default: Any = None, *, read: Any = None, **how: Any
    ) -> None:
        """Adds an argument with a value; the help ends with the default, if there is one.

        Args:
            read: turns the text into the value before the work begins; its errors have words of their own.
            how: further arguments of argparse.
        """
        about += "" if default is None else f" (default: {default})"
        added = self._group.add_argument(flag, metavar=metavar, help=about, default=default, **how)
        if read is not None:
            self._reads[added.dest] = read

    def _begin(self, arguments: argparse.Namespace) -> None:
        """Converts the arguments that are to be read, and does the work."""
        for name, read in self._reads.items():
            if getattr(arguments, name) is not None:
                setattr(arguments, name, read(getattr(arguments, name)))
        if getattr(arguments, "log", "text") != "text":
            # A program that reads this log takes no other lines.
            leave_to_another()
        # Of several processes only one prints, and they learn which one when they join.
        alone = getattr(arguments, "hosts", None) is None
        with telling("loading JAX and the model") if alone else nullcontext():
            self._run(arguments)

    def switch(self, flag: str, about: str, **how: Any) -> None:
        """Adds an option without a value."""
        self._group.add_argument(flag, help=about, **{"action": "store_true"} | how)

    def overwrite(self) -> None:
        """Adds ``--overwrite``."""
        self.switch("--overwrite", "replace outputs that exist")

    def strict_words(self) -> None:
        """Adds ``--strict-words``."""
        self.switch("--strict-words", "refuse words that the demo does not know (default: ignore them)")

    def knob_groups(self, *speed: str, but: Collection[str] = ()) -> None:
        """Adds the flags of all knobs in groups: sampling, speed, and the rest, which only ``--help-all`` shows.

        Args:
            speed: flags of shared options that belong to the speed group.
            but: knobs to leave out.
        """
        self.group("sampling")
        self.knobs(name for name in _SAMPLING if name not in but)
        self.group("speed", *speed)
        self.knobs(name for name in _SPEED if name not in but)
        self.group("guesses, trees, windows and rules")
        self.knobs((name for name in KNOBS if name not in {*_SAMPLING, *_SPEED, *but}), concealed=True)

    def knobs(self, names: Iterable[str] = KNOBS, concealed: bool = False, **given: Any) -> None:
        """Adds a flag for every knob of a generation, or for some; the argument ``knobs`` holds the given ones by name.

        Args:
            concealed: whether ``--help`` leaves them out and ``--help-all`` shows them.
            given: values of knobs whose flags are left out.
        """
        self._parser.set_defaults(knobs=given)
        for name in names:
            knob = KNOBS[name]
            how: dict[str, Any] = {"choices": knob.choices} if knob.choices else {"metavar": knob.metavar}
            # Two dozen names say less than the list that explains them.
            if name == "method":
                how["metavar"] = "NAME"
            if knob.type in (int, float):
                how["type"] = typed(knob)
            note = f"; {knob.note}" if knob.note else ""
            how |= {"action": _KeepKnob, "default": argparse.SUPPRESS, "help": knob.help + note}
            added = self._group.add_argument(_flag(name), **how)
            if concealed:
                self._parser.conceal(added)


def join_hosts(given: str | None) -> bool:
    """Joins this process to the others if ``--hosts`` was given; returns whether it is the one that prints and writes.

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
        leave_to_another()
    return hosts.is_first()


def keep_programs(arguments: argparse.Namespace) -> None:
    """Makes this process keep compiled programs, and search for tilings if that was asked for."""
    from lantern_jax.devices.compilation import keep_compiled_programs, search_tilings

    keep_compiled_programs()
    if vars(arguments).get("search_tilings"):
        search_tilings()


def open_pipeline(arguments: argparse.Namespace) -> "Pipeline":
    """Opens the given checkpoint on the given mesh.

    Tuned settings are those of ``--tuned``; a command without this option uses none.
    """
    from lantern_jax.pipeline.pipeline import load

    given = vars(arguments)
    keep_programs(arguments)
    strict = given.get("strict_words", False)
    size = {"size": given["picture_size"]} if given.get("picture_size") else {}
    return load(arguments.model, arguments.dtype, given.get("tuned"), mesh_of(arguments), strict, **size)


def mesh_of(arguments: argparse.Namespace) -> str | None:
    """Returns the given mesh; for joined processes the default is a mesh of all their devices."""
    given = vars(arguments).get("mesh")
    if given is not None or not hosts_joined():
        return given
    import jax

    return f"data={jax.device_count()}"


def say_notes(notes: Iterable[str]) -> None:
    """Prints the notes of a plan on stderr, one per line, with knobs named by their flags."""
    for note in notes:
        name, _, rest = note.partition(" ")
        say(f"lantern: {_flag(name)} {rest}" if name in KNOBS else f"lantern: {note}", error=True)


def _flag(knob: str) -> str:
    return f"--{knob.replace('_', '-')}"
