"""Compiled programs that an engine keeps: each is made once, whichever threads ask, and the last used stay."""

import contextlib
import ctypes
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from lantern_jax.decoding.program import Program

# A call takes two or three.
MOST_OWN = 16


@dataclass(frozen=True)
class ProgramKey:
    """What decides a compiled program; ``dataclasses.replace`` makes that of a related one.

    Attributes:
        kind: the function of ``programs``: "start", "advance", "refill", "regroup", "log_probs", "draw" or
            "encode".
        size, groups: sequences B, and the groups of devices that they are spread over.
        shapes: per sequence, of conditioning (``shape_of``), codes or pictures.
        program: the static half of a generation.
        greedy, filters, guided: what is static in its sampling, and whether it is guided.
        rule: the tree structure of the rule and its leaves' shapes and dtypes, where it is read.
        rows: F, the new sequences of a refill; B of the state that a regroup takes from.
        own: whether a caller's own rule, drafting or coupling is in it; two keys are the same without it.
    """

    kind: str
    size: int
    groups: int
    shapes: tuple = ()
    program: Program | None = None
    greedy: bool = False
    filters: tuple = ()
    guided: bool = False
    rule: Any = None
    rows: int = 0
    own: bool = field(default=False, compare=False)


def shape_of(values: Any, axes: int = 0) -> tuple:
    """Returns what a compiled program knows of values: their structure, and leaves' shapes after ``axes`` and dtypes.

    Of a rule, or with ``axes`` 1 of a sequence's conditioning.
    """
    leaves, structure = jax.tree.flatten(values)
    return structure, tuple((jnp.shape(leaf)[axes:], jnp.result_type(leaf)) for leaf in leaves)


class ProgramCache:
    """Programs by their keys. Any thread may ask.

    Programs of callers' own objects are bounded by themselves: one that makes a new rule for every call neither fills
    memory nor drives out the others.

    Attributes:
        most: how many are kept besides the staying ones and those of callers' own objects; None for any number.
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
        """Returns the program of a key, now the last one used, or None."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                self._note(key)
            return self._held.get(key)

    def obtain(self, key: Hashable, make: Callable[[], tuple[Callable, float]]) -> tuple[Callable, float]:
        """Returns the program of a key, and the seconds that making it took: 0 where it is there.

        Args:
            make: returns both; where it raises, so does this, and the next call tries again.
        """
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
        """Makes programs stay that this thread asks for inside the context."""
        self._stays.now = True
        try:
            yield
        finally:
            self._stays.now = False

    def clear(self) -> None:
        """Drops all programs."""
        with self._lock:
            self._held.clear()
            self._staying.clear()

    def _keep(self, key: Hashable, program: Callable) -> None:
        with self._lock:
            self._held[key] = program
            self._note(key)
            passing = [held for held in self._held if held not in self._staying]
            for is_own, most in ((True, MOST_OWN), (False, self.most)):
                among = [held for held in passing if getattr(held, "own", False) == is_own]
                for held in among[: -most or None] if most is not None else ():
                    del self._held[held]
                    self.dropped += 1

    def _note(self, key: Hashable) -> None:
        if getattr(self._stays, "now", False):
            self._staying.add(key)


def return_memory() -> None:
    """Gives free memory back to the system, where glibc keeps it: compiling leaves much."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
