"""What a family says of a format of ``lantern convert``, and of the options that it takes. Needs no JAX."""

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
        required: whether the format cannot do without it.
        repository: whether ``--from-hub`` without this option takes the whole repository for it.

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
    """An option of a format that takes a word, of a few the first by default.

    Attributes:
        option, help: as in ``File``; the function's argument is the option's name.
        values: () -> the words; none for any word, by default None.
    """

    option: str
    help: str
    values: Callable[[], tuple[str, ...]] = tuple


@dataclass(frozen=True, eq=False)
class Format(Late):
    """What one ``lantern convert FORMAT`` takes.

    Attributes:
        help: one line.
        function: writes the checkpoint: takes the files, ``fixed`` and choices by name, ``out``, ``dtype``,
            ``overwrite`` and ``progress``, as ``checkpoints.convert.convert_llamagen`` does.
        files: its options that are files.
        fixed: arguments that the format decides.
        choices: its other options.

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
