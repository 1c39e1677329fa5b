"""The pickle in a PyTorch file, read as data: nothing is imported, called or made but plain containers.

``pickletools`` lists the instructions, and this follows those that PyTorch writes. What a pickle would import stays a
name, what it would call stays a name with arguments. So neither a malicious file nor PyTorch's own code for rare kinds
of tensors can do anything, and PyTorch need not be there.
"""

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# A tensor takes about 30: a large training state has some thousand of them.
_MOST_INSTRUCTIONS = 400_000
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_SET": list, "EMPTY_DICT": dict}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_DICTS = ("collections.OrderedDict", "builtins.dict")


class RefusedError(LanternError):
    """A pickle that wants to import or call what no file of tensors needs."""


@dataclass(frozen=True)
class Name:
    """Something that a pickle would import."""

    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """Something that a pickle would call, with what."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Something that lies in the file outside of the pickle, by whatever PyTorch calls it."""

    key: Any


def read_pickle(
    file: io.BytesIO, known: Callable[[str], bool], elsewhere: Callable[[Any], Any] = Elsewhere
) -> Any:
    """What the pickle at a file's place holds: plain containers, ``Name``, ``Call`` and ``Elsewhere``; sets are lists.

    Attributes that are set on objects are dropped.

    Args:
        known: whether a name, such as "collections.OrderedDict", may occur.
        elsewhere: what stands for something outside of the pickle, given what PyTorch calls it.

    Raises:
        RefusedError: another name.
        ValueError: no whole pickle, too long a one, or one with instructions that PyTorch does not write.
    """
    machine = _Machine(known, elsewhere)
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if number == _MOST_INSTRUCTIONS:
                raise LanternError(f"its description has more than {_MOST_INSTRUCTIONS} instructions")
            machine.follow(operation.name, argument)
        return machine.pop()
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise LanternError(f"its description is damaged ({type(error).__name__})") from error


class _Machine:
    """A stack, the stacks below its marks, and what was put aside by number."""

    def __init__(self, known: Callable[[str], bool], elsewhere: Callable[[Any], Any]):
        self.known, self.elsewhere = known, elsewhere
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.kept: dict[int, Any] = {}

    def follow(self, operation: str, argument: Any) -> None:
        push = self.stack.append
        if operation in _LITERALS:
            push(argument)
        elif operation in _CONSTANTS:
            push(_CONSTANTS[operation])
        elif operation in _EMPTY:
            push(_EMPTY[operation]())
        elif operation in ("BINPUT", "LONG_BINPUT"):
            self.kept[argument] = self.stack[-1]
        elif operation == "MEMOIZE":
            self.kept[len(self.kept)] = self.stack[-1]
        elif operation in ("BINGET", "LONG_BINGET"):
            push(self.kept[argument])
        elif operation in _TUPLES:
            self.pack(_TUPLES[operation])
        elif operation == "MARK":
            self.below.append(self.stack)
            self.stack = []
        elif operation == "GLOBAL":
            push(self.named(*argument.split(" ")))
        elif operation == "BINPERSID":
            push(self.elsewhere(self.pop()))
        elif operation not in ("PROTO", "FRAME", "STOP"):
            if operation not in _STEPS:
                raise LanternError(
                    f"its description has an instruction {operation}, which PyTorch does not write"
                )
            _STEPS[operation](self)

    def pop(self) -> Any:
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """What lies above the last mark, which goes."""
        above, self.stack = self.stack, self.below.pop()
        return above

    def pack(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def named(self, module: str, name: str) -> Name:
        # As Python 2 had it.
        whole = f"{module.replace('__builtin__', 'builtins')}.{name}"
        if not self.known(whole):
            raise RefusedError(whole)
        return Name(whole)

    def call(self, function: Any, arguments: Any) -> None:
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise TypeError
        if function.name in _DICTS and len(arguments) <= 1:
            made: dict[Any, Any] = {}
            self.set_items(made, [part for pair in (arguments or ([],))[0] for part in pair])
            self.stack.append(made)
        else:
            self.stack.append(Call(function.name, arguments))

    def set_items(self, target: Any, parts: list[Any]) -> None:
        if not isinstance(target, dict):
            raise TypeError
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            # Others are kept apart without looking into them: hashing what is nested deeply ends the process.
            plain = isinstance(key, str | bytes | int | float | Name | Call | None)
            target[key if plain else Call("a key", ())] = value

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        self.stack.append(self.named(module, name))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        self.call(function, arguments)

    def build(self) -> None:
        self.pop()
        if not self.stack:
            raise IndexError

    def pack_marked(self) -> None:
        above = self.to_mark()
        self.stack.append(tuple(above))

    def list_marked(self) -> None:
        above = self.to_mark()
        self.stack.append(above)

    def append(self) -> None:
        value = self.pop()
        self.extend([value])

    def append_marked(self) -> None:
        above = self.to_mark()
        self.extend(above)

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError
        self.stack[-1].extend(values)

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items(self.stack[-1], [key, value])

    def set_marked(self) -> None:
        above = self.to_mark()
        self.set_items(self.stack[-1], above)

    def duplicate(self) -> None:
        self.stack.append(self.stack[-1])


_STEPS: dict[str, Callable[[_Machine], Any]] = {
    "STACK_GLOBAL": _Machine.stack_global, "REDUCE": _Machine.reduce, "NEWOBJ": _Machine.reduce,
    "BUILD": _Machine.build, "TUPLE": _Machine.pack_marked, "FROZENSET": _Machine.list_marked,
    "APPEND": _Machine.append, "APPENDS": _Machine.append_marked, "ADDITEMS": _Machine.append_marked,
    "SETITEM": _Machine.set_item, "SETITEMS": _Machine.set_marked, "POP": _Machine.pop, "POP_MARK": _Machine.to_mark,
    "DUP": _Machine.duplicate,
}  # fmt: skip


def described(value: Any) -> str:
    """What something in a pickle is, for an error."""
    if isinstance(value, Name | Call):
        return errors.short(value.name)
    return "a storage" if isinstance(value, Elsewhere) else f"a {type(value).__name__}"
