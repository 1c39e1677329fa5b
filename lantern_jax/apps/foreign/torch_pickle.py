"""The pickle in a PyTorch file, read as data: nothing is imported or called, and only plain containers are made.

``pickletools`` lists the instructions, and this module follows those that PyTorch writes. What a pickle would import
stays a name, and what it would call stays a name with arguments. So neither a malicious file nor PyTorch's own code for
rare kinds of tensors can do anything, and PyTorch need not be installed.
"""

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# A tensor takes about 30, and a large training state has a few thousand tensors.
_MOST_INSTRUCTIONS = 400_000
_DICTS = ("collections.OrderedDict", "builtins.dict")


class RefusedError(LanternError):
    """A pickle that wants to import or call what no file of tensors needs."""


@dataclass(frozen=True)
class Name:
    """Something that a pickle would import."""

    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """Something that a pickle would call, with its arguments."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Something that lies in the file outside the pickle, under PyTorch's key for it."""

    key: Any


def read_pickle(
    file: io.BytesIO, known: Callable[[str], bool], elsewhere: Callable[[Any], Any] = Elsewhere
) -> Any:
    """Reads the pickle at a file's position: plain containers, ``Name``, ``Call`` and ``Elsewhere``; sets become lists.

    Attributes that are set on objects are dropped.

    Args:
        known: tells whether a name, such as "collections.OrderedDict", may occur.
        elsewhere: makes what stands for something outside the pickle, given PyTorch's key for it.

    Raises:
        RefusedError: a name that may not occur.
        LanternError: a pickle that is incomplete, too long, or has instructions that PyTorch does not write.
    """
    machine = _Machine(known, elsewhere)
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if number == _MOST_INSTRUCTIONS:
                raise LanternError(f"its description has more than {_MOST_INSTRUCTIONS} instructions")
            if operation.name not in _STEPS:
                raise LanternError(
                    f"its description has an instruction {operation.name}, which PyTorch does not write"
                )
            _STEPS[operation.name](machine, argument)
        return machine.stack.pop()
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise LanternError(f"its description is damaged ({type(error).__name__})") from error


class _Machine:
    """A stack, the stacks below its marks, and the values that were put aside, by number."""

    def __init__(self, known: Callable[[str], bool], elsewhere: Callable[[Any], Any]):
        self.known, self.elsewhere = known, elsewhere
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.kept: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        """Takes the last ``count`` values off the stack, in the order in which they were pushed."""
        if len(self.stack) < count:
            raise IndexError
        above = self.stack[-count:]
        del self.stack[-count:]
        return above

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        """Takes off the values above the last mark, and the mark."""
        above, self.stack = self.stack, self.below.pop()
        return above

    def keep(self, number: int) -> None:
        self.kept[number] = self.stack[-1]

    def name(self, module: str, name: str) -> None:
        # Python 2 called the module builtins ``__builtin__``.
        whole = f"{module.replace('__builtin__', 'builtins')}.{name}"
        if not self.known(whole):
            raise RefusedError(whole)
        self.push(Name(whole))

    def call(self, function: Any, arguments: Any) -> None:
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise TypeError
        if function.name not in _DICTS or len(arguments) > 1:
            return self.push(Call(function.name, arguments))
        parts = [part for pair in (arguments or ([],))[0] for part in pair]
        self.push({})
        return self.set_items(parts)

    def set_items(self, parts: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            # Other keys are kept apart without looking into them: hashing a deeply nested one would end the process.
            plain = isinstance(key, str | bytes | int | float | Name | Call | None)
            target[key if plain else Call("a key", ())] = value

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError
        self.stack[-1].extend(values)


def _same(names: str, step: Callable[[_Machine, Any], Any]) -> dict[str, Callable[[_Machine, Any], Any]]:
    return dict.fromkeys(names.split(), step)


# Instruction -> what it does to the machine, given the instruction's argument.
_STEPS: dict[str, Callable[[_Machine, Any], Any]] = {
    **_same("PROTO FRAME STOP", lambda machine, _: None),
    **_same(
        "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8", _Machine.push
    ),
    **_same("BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8", _Machine.push),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    **_same("EMPTY_LIST EMPTY_SET", lambda machine, _: machine.push([])),
    **_same("BINPUT LONG_BINPUT", _Machine.keep),
    "MEMOIZE": lambda machine, _: machine.keep(len(machine.kept)),
    **_same("BINGET LONG_BINGET", lambda machine, number: machine.push(machine.kept[number])),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    "POP": lambda machine, _: machine.pop(1),
    "MARK": lambda machine, _: machine.mark(),
    "POP_MARK": lambda machine, _: machine.to_mark(),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine.pop(1))),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine.pop(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine.pop(3))),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.to_mark())),
    "FROZENSET": lambda machine, _: machine.push(machine.to_mark()),
    "GLOBAL": lambda machine, words: machine.name(*words.split(" ")),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.pop(2)),
    "BINPERSID": lambda machine, _: machine.push(machine.elsewhere(*machine.pop(1))),
    **_same("REDUCE NEWOBJ", lambda machine, _: machine.call(*machine.pop(2))),
    # The object stays, its attributes are dropped.
    "BUILD": lambda machine, _: machine.push(machine.pop(2)[0]),
    "APPEND": lambda machine, _: machine.extend(machine.pop(1)),
    **_same("APPENDS ADDITEMS", lambda machine, _: machine.extend(machine.to_mark())),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.to_mark()),
}


def described(value: Any) -> str:
    """Names something in a pickle, for an error."""
    if isinstance(value, Name | Call):
        return errors.short(value.name)
    return "a storage" if isinstance(value, Elsewhere) else f"a {type(value).__name__}"
