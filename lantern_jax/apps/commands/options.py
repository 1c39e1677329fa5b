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
from lantern_jax.decoding.fields import MOST_PICTURES
from lantern_jax.decoding.methods import AUTO, Method
from lantern_jax.settings.settings import NUMBERS, OPTIONS, PARTS, SAMPLING, check_names

if TYPE_CHECKING:
    from lantern_jax.pipeline.pipeline import Pipeline

DTYPES = ("float32", "bfloat16", "float16")
# The options of decoding, by name: a placeholder, and what it is.
_DECODING = {
    "guidance": ("F", "classifier-free guidance scale; 1 turns it off"),
    "temperature": ("F", "how flat the distribution is made; 0 is greedy"),
    "top_k": ("K", "sample from the K most probable codes; 0: all"),
    "top_p": ("P", "sample from the most probable codes of mass P; 1: all"),
    "min_p": ("P", "sample from codes at least P times the best; 0: all"),
    "method": ("NAME", "how to decode, with fields if need be: led:nodes=25,refine=2; see `lantern methods`"),
    "rule": ("NAME", "another rule for what is accepted: near:tau=1"),
    "drafting": ("NAME", "another source of guesses: dynamic:nodes=25"),
    "coupling": ("NAME", "another way to share randomness: rejection"),
    "batch": ("B", "pictures decoded together"),
}


class _KeepOption(argparse.Action):
    """Puts the value of an option of decoding into ``options``, by its name."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        namespace.options = {**namespace.options, self.dest: values}


def mesh(text: str) -> str:
    """Returns a ``--mesh``; raises LanternError for one that is invalid for every number of devices."""
    from lantern_jax.devices.partition import mesh_sizes

    mesh_sizes(text)
    return text


def encoded_prompts(text: str) -> Any:
    """Returns the prompts of a file that ``lantern encode`` wrote."""
    from lantern_jax.text.encoded import load_encoded

    return load_encoded(text)


_SHARED: dict[str, dict[str, Any]] = {
    "--model": {"metavar": "NAME", "about": "demo, a folder or OWNER/NAME", "default": "demo"},
    "--dtype": {
        "metavar": "NAME", "choices": DTYPES,
        "about": f"{', '.join(DTYPES)} (default: float32 on CPUs and old GPUs, else bfloat16)",
    },
    "--mesh": {
        "metavar": "data=D,model=M", "read": mesh,
        "about": "D groups of devices, each M devices for one model (default: all devices, a model on each)",
    },
    "--hosts": {
        "metavar": "PLACE",
        "about": "ADDRESS:PORT,i/N: be process i of N on one mesh, the first there; auto: as a TPU pod or SLURM says",
    },
    "--size": {"metavar": "WxH", "dest": "picture_size", "about": "in pixels, for models that draw several sizes"},
    "--negative": {"metavar": "TEXT", "about": "what guidance leads away from (default: as trained)"},
    "--num": {"metavar": "N", "about": "pictures per prompt", "default": 1, "type": whole(1, MOST_PICTURES)},
    "--seed": {"metavar": "S", "about": "random seed", "default": 0, "type": seed},
    "--tuned": {
        "metavar": "FILE|auto|off", "default": "auto",
        "about": "what `lantern tune` found: in a file, for such calls if there is any (auto), or nothing",
    },
    "--strict-words": {"about": "refuse words that the demo does not know"},
    "--overwrite": {"about": "replace outputs that exist"},
    "--search-tilings": {"about": "on GPUs: compile ten times as long, once, for passes that are a tenth shorter"},
}  # fmt: skip


class Command:
    """A subcommand, to which options are added.

    Args:
        commands: those of the parser that it is added to.
        name, about: its name, and one line for the help.
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
        """Begins a section of the help for the arguments that follow, with ``shared`` ones."""
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

    def switch(self, flag: str, about: str) -> None:
        """Adds an option without a value."""
        self._group.add_argument(flag, help=about, action="store_true")

    def decoding_groups(self, *speed: str, but: Collection[str] = ()) -> None:
        """Adds the options of decoding, without those of ``but``, in two groups, sampling and speed.

        Args:
            speed: flags of shared options that belong to the speed group.
        """
        self.group("sampling")
        self.decoding(name for name in SAMPLING if name not in but)
        self.group("speed", *speed)
        self.decoding(name for name in OPTIONS if name not in {*SAMPLING, *but})

    def decoding(self, names: Iterable[str], **given: Any) -> None:
        """Adds these options of decoding; the argument ``options`` holds values ``given`` here or by the user."""
        self._parser.set_defaults(options=given)
        for name in names:
            metavar, about = _DECODING[name]
            how: dict[str, Any] = {"action": _KeepOption, "default": argparse.SUPPRESS, "help": about}
            if name in NUMBERS:
                how["type"] = typed(NUMBERS[name].metadata["allowed"])
            self._group.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, **how)

    def _begin(self, arguments: argparse.Namespace) -> None:
        """Converts the arguments that are to be read, and does the work."""
        check_names(vars(arguments).get("options", {}))
        for name, read in self._reads.items():
            if getattr(arguments, name) is not None:
                setattr(arguments, name, read(getattr(arguments, name)))
        # Of several processes only one prints, and they learn which one when they join.
        alone = getattr(arguments, "hosts", None) is None
        with telling("loading JAX and the model") if alone else nullcontext():
            self._run(arguments)


def join_hosts(given: str | None) -> bool:
    """Joins this process to the others if ``--hosts`` was given; returns whether it is the one that prints and writes.

    The others print nothing but errors from here on. Call it before anything is computed. Raises as ``hosts.join``.
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

    given, mesh = vars(arguments), mesh_of(arguments)
    # A text that no model accepts is refused before one is opened.
    options = given.get("options", {})
    method = options.get("method", AUTO)
    Method.of("ar" if method == AUTO else method, **{part: options.get(part) for part in PARTS})
    keep_programs(arguments)
    strict = given.get("strict_words", False)
    size = {"size": given["picture_size"]} if given.get("picture_size") else {}
    return load(arguments.model, arguments.dtype, given.get("tuned"), mesh, strict, **size)


def mesh_of(arguments: argparse.Namespace) -> str | None:
    """Returns the given mesh; for joined processes the default is a mesh of all their devices."""
    given = vars(arguments).get("mesh")
    if given is not None or not hosts_joined():
        return given
    import jax

    return f"data={jax.device_count()}"


def say_notes(notes: Iterable[str]) -> None:
    """Prints the notes of a call on stderr, one per line."""
    for note in notes:
        say(f"lantern: {note}", error=True)
