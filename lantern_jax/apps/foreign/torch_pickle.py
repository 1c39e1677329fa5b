"""The pickle in a PyTorch file, read as data: what it would import or call becomes a record, and nothing is run.

So neither a malicious file nor PyTorch's own code for rare kinds of tensors can do anything, and PyTorch need not be
installed.
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError


class Call:
    """Something that a pickle would call, with its arguments. A subclass stands for each name that it would import.

    Attributes:
        name: such as "torch.FloatStorage".
    """

    name = ""

    def __new__(cls, *arguments: Any, **_: Any) -> "Call":
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *_: Any, **__: Any):
        self.arguments: tuple[Any, ...]

    def __setstate__(self, state: Any) -> None:
        """Drops attributes."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drops an item, as of a kind of dict that is not known here."""


class _Dict(dict):
    def __setstate__(self, state: Any) -> None:
        """Drops attributes, such as the versions of a state dict's modules."""


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Something in the file but outside the pickle, under PyTorch's key for it."""

    key: Any


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, elsewhere: Callable[[Any], Any]):
        super().__init__(file)
        self._elsewhere = elsewhere

    def find_class(self, module: str, name: str) -> type:
        if (module, name) == ("collections", "OrderedDict"):
            return _Dict
        return type("Call", (Call,), {"name": f"{module}.{name}"})

    def persistent_load(self, key: Any) -> Any:
        return self._elsewhere(key)


def read_pickle(file: io.BytesIO, elsewhere: Callable[[Any], Any] = Elsewhere) -> Any:
    """Reads the pickle at a file's position: plain containers, ``Call``, its subclasses and ``Elsewhere``.

    Args:
        elsewhere: makes what stands for something outside the pickle, given PyTorch's key for it.

    Raises:
        LanternError: a pickle that is damaged.
    """
    try:
        return _Reader(file, elsewhere).load()
    except LanternError:
        raise
    # A damaged pickle makes Python's reader raise anything.
    except Exception as error:
        raise LanternError(f"its description is damaged ({type(error).__name__})") from error


def name_of(value: Any) -> str:
    """Returns the name that a pickle would import for a value; "" for anything else."""
    return value.name if isinstance(value, type) and issubclass(value, Call) else ""


def described(value: Any) -> str:
    """Names something in a pickle, for an error."""
    if isinstance(value, Call) or name_of(value):
        return errors.short(value.name)
    return "a storage" if isinstance(value, Elsewhere) else f"a {type(value).__name__}"
