"""Compiled programs that an engine keeps: each is made once, whichever threads ask, and those used last stay."""

import contextlib
import ctypes
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax


class ProgramCache:
    """Programs by what decides them. Any thread may ask.

    Attributes:
        most: how many are kept, besides those that stay; None for any number.
        dropped: how many there was no room for.
    """

    def __init__(self, most: int | None = None):
        self.most, self.dropped = most, 0
        self._held: OrderedDict[Hashable, Callable] = OrderedDict()
        self._staying: set[Hashable] = set()
        self._stays = threading.local()
        self._lock = threading.Lock()
        # Each is held by the thread that makes a program, while others that want it wait.
        self._making: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            return iter(tuple(self._held))

    def get(self, key: Hashable) -> Any:
        """The program of a key, which is then the last one used; None where it is not there."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                self._note(key)
            return self._held.get(key)

    def obtain(self, key: Hashable, make: Callable[[], tuple[Callable, float]]) -> tuple[Callable, float]:
        """The program of a key, and the seconds that making it took: 0 where it is there. ``make`` returns both; where
        it raises, so does this, and the next one who asks tries again."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            program, seconds = self.get(key), 0.0
            if program is None:
                program, seconds = make()
                self._keep(key, program)
        return program, seconds

    @contextlib.contextmanager
    def staying(self) -> Iterator[None]:
        """Inside this context programs that this thread asks for are such as stay, whatever is asked for later."""
        self._stays.now = True
        try:
            yield
        finally:
            self._stays.now = False

    def clear(self) -> None:
        """Drops all of them."""
        with self._lock:
            self._held.clear()
            self._staying.clear()

    def _keep(self, key: Hashable, program: Callable) -> None:
        with self._lock:
            self._held[key] = program
            self._note(key)
            passing = [held for held in self._held if held not in self._staying]
            excess = 0 if self.most is None else max(len(passing) - self.most, 0)
            for old in passing[:excess]:
                del self._held[old]
            self.dropped += excess

    def _note(self, key: Hashable) -> None:
        if getattr(self._stays, "now", False):
            self._staying.add(key)


def return_memory() -> None:
    """Gives memory that is free back to the system, where the C library (glibc) keeps it: compiling leaves much."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def of_size(program: tuple, count: int) -> tuple:
    """What names the program that advances so many sequences, else like that one."""
    kind, _, *others = program
    return (kind, count, *others)


def shapes(conditioning: Any) -> tuple:
    """Those of a sequence's conditioning, as a part of what names a program."""
    return tuple(leaf.shape[1:] for leaf in jax.tree.leaves(conditioning))
