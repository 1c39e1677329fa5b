"""The arguments of training scripts: an experiment's config, changed by ``--config.NAME=VALUE``, and more."""

import argparse
import ast
import contextlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError


@dataclass(frozen=True)
class Experiment:
    """An experiment's file, and the word that its ``get_config`` is given; empty for none."""

    file: Path
    word: str = ""

    @classmethod
    def named(cls, text: str) -> "Experiment":
        """Reads FILE or FILE:WORD, as an argument's ``type``; a file may have a colon in its name."""
        file, colon, word = text.rpartition(":")
        if colon and word and not Path(text).is_file():
            return cls(arguments.file(file), word)
        return cls(arguments.file(text))

    def __str__(self) -> str:
        return f"{self.file}:{self.word}" if self.word else str(self.file)


def make_parser(description: str | None) -> Parser:
    """Returns a script's parser; ``description`` is the script's docstring."""
    logging.set_verbosity(logging.WARNING)
    return Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_experiment(parser: Parser, default: Path | None = None) -> None:
    """Adds ``--config``, which ``parse`` reads."""
    parser.add_argument(
        "--config", type=Experiment.named, required=default is None, default=default, metavar="FILE[:SIZE]",
        help="experiment, such as those in configs, with the word that some of them take; --config.NAME=VALUE changes "
        "one of its values",
    )  # fmt: skip


def add_target(parser: Parser) -> None:
    """Adds ``--target``, which ``target.read_target`` takes."""
    wanted = "checkpoint, or working folder of the target's run"
    parser.add_argument("--target", type=arguments.folder, required=True, metavar="DIR", help=wanted)


def add_workdir(parser: Parser, what: str, default: str | None = None) -> None:
    """Adds ``--workdir``, required unless there is a default."""
    more = f" (default: {default})" if default else ""
    parser.add_argument(
        "--workdir",
        type=arguments.working_folder,
        required=default is None,
        default=default,
        help=what + more,
    )


def add_checkpoint(parser: Parser) -> None:
    """Adds ``--checkpoint``, the demo's when left out."""
    wanted = "checkpoint directory (default: the demo's)"
    parser.add_argument("--checkpoint", type=arguments.model, default="demo", metavar="DIR", help=wanted)


def parse(parser: Parser, argv: Sequence[str] | None, example: str) -> argparse.Namespace:
    """Parses arguments, and replaces the experiment's file that they name by the experiment itself, locked.

    Args:
        example: an experiment's file with all names that the script needs.

    Raises:
        LanternError: an argument or a change that is not valid, or a file that is no such experiment.
    """
    given, rest = parser.parse_known_args(argv)
    changes = list(_changes(rest))
    experiment, given.config = given.config, read_experiment(given.config)
    wanted = read_experiment(Experiment(Path(__file__).parents[1] / "configs" / example))
    missing = sorted(set(wanted) - {*given.config})
    if missing:
        raise LanternError(
            f"--config {experiment} has no {', '.join(missing)}: give an experiment like configs/{example}"
        )
    change(given.config, dict(changes))
    given.config.lock()
    return given


def read_experiment(experiment: Experiment) -> ConfigDict:
    """Returns the config that a Python file's ``get_config`` makes, given the experiment's word if it has one.

    Raises:
        LanternError: the file is no such experiment, or takes no such word.
    """
    with reading(f"--config {experiment}", "give an experiment, such as those in configs"):
        spec = importlib.util.spec_from_file_location("experiment", experiment.file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if experiment.word and not inspect.signature(module.get_config).parameters:
            raise LanternError(f"it takes no word such as {experiment.word}")
        config = module.get_config(experiment.word) if experiment.word else module.get_config()
        if not isinstance(config, ConfigDict):
            raise LanternError("get_config returns no ConfigDict")
    return config


@contextlib.contextmanager
def reading(what: str | Path, wish: str) -> Iterator[None]:
    """Turns any error in a block that reads what a user gave into a LanternError of one line."""
    try:
        yield
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise LanternError(f"{what} cannot be used ({why}): {wish}") from error


def _changes(rest: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (name, value) of the arguments that the parser does not know."""
    words = iter(rest)
    for word in words:
        name, sign, value = word.partition("=")
        if not name.startswith("--config."):
            raise LanternError(f"unrecognized arguments: {word}")
        value = value if sign else next(words, None)
        if value is None:
            raise LanternError(f"{name} has no value: give {name}=VALUE")
        yield name.removeprefix("--config."), value


def change(config: ConfigDict, changes: Mapping[str, str], prefix: str = "--config.") -> None:
    """Changes values of an experiment's config to those given as texts, and checks all of its values.

    Args:
        prefix: of names, for messages.

    Raises:
        LanternError: a name does not exist, or a value is of another kind.
    """
    for name, text in changes.items():
        _change(config, name, text, prefix)
    _check_numbers(config, prefix.removesuffix("."))


def _change(config: ConfigDict, name: str, text: str, prefix: str) -> None:
    *path, last = name.split(".")
    part: Any = config
    for word in [*path, last]:
        if not isinstance(part, ConfigDict) or word not in part:
            raise errors.unknown("name", f"{prefix}{name}", sorted(config))
        inner, part = part, part[word]
    try:
        value = _value(text, part)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        kind = "one of its values" if isinstance(part, ConfigDict) else f"a value like {part!r}"
        raise errors.invalid(f"{prefix}{name}", text, kind) from None
    inner[last] = value


def _value(text: str, like: Any) -> Any:
    """Reads a text as a value of the same kind as another. Raises ValueError if it is none."""
    if isinstance(like, bool):
        if text.lower() not in ("true", "false"):
            raise LanternError(text)
        return text.lower() == "true"
    if isinstance(like, int | float):
        return type(like)(text)
    if isinstance(like, str):
        return text
    value = ast.literal_eval(text)
    if isinstance(like, tuple) and isinstance(value, tuple | list):
        return tuple(value)
    raise LanternError(text)


def _check_numbers(config: ConfigDict, name: str) -> None:
    """Raises LanternError for a number that is negative, not finite or too large for any experiment."""
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            _check_numbers(value, f"{name}.{key}")
            continue
        for part in value if isinstance(value, tuple | list) else [value]:
            if isinstance(part, float | int) and not 0 <= part <= arguments.MOST:
                raise errors.invalid(f"{name}.{key}", value, f"numbers from 0 to {arguments.MOST}")


def check_workdir(folder: Path) -> None:
    """Raises LanternError if no run can be kept below the folder.

    Orbax treats the whole path as a pattern when it looks for checkpoints, and tensorstore treats it as UTF-8.
    """
    path = str(folder.absolute())
    if "[" in path:
        raise LanternError(f"{path} has a bracket in it, below which no run is found: name another --workdir")
    if path.encode(errors="replace").decode() != path:
        raise LanternError(f"{path} is no name in UTF-8, which a run needs: name another --workdir")
