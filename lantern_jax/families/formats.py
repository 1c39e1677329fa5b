"""What the formats of ``lantern convert`` take. Needs no JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lantern_jax.io.plugins import Late


@dataclass(frozen=True)
class File:
    """A file option of a format.

    Attributes:
        option: its name on the command line; the function's argument is the same with underscores.
        help: what the file is.
        required: whether the format cannot do without.
        repository: whether ``--from-hub`` alone means the whole repository by it.

    Example:
        >>> lantern_jax.File("t5-tokenizer", "T5's spiece.model").argument
        't5_tokenizer'
    """

    option: str
    help: str
    required: bool = False
    repository: bool = False

    @property
    def argument(self) -> str:
        """The function's argument."""
        return self.option.replace("-", "_")


@dataclass(frozen=True)
class Choice:
    """An option of a format that is one of a few words, the first unless it is given.

    Attributes:
        option, help: as of ``File``; the function's argument is the option's name.
        values: () -> the words.
    """

    option: str
    help: str
    values: Callable[[], tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Format(Late):
    """What one ``lantern convert FORMAT`` takes.

    Attributes:
        help: one line.
        function: writes the checkpoint: takes the files, ``fixed`` and choices by name, ``out``, ``dtype``,
            ``overwrite`` and ``progress``, as ``checkpoints.convert.convert_llamagen``.
        files: its options.
        fixed: arguments that the format decides.
        choices: its options that are no files.

    Example:
        >>> files = (lantern_jax.File("model", "the model: a tensor file", required=True),)
        >>> lantern_jax.Format("mine: model", lambda model, out, **options: out, files).files[0].argument
        'model'
    """

    help: str
    function: Callable[..., Any]
    files: tuple[File, ...]
    fixed: tuple[tuple[str, Any], ...] = ()
    choices: tuple[Choice, ...] = ()
