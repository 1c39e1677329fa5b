"""Compiled programs that an engine keeps: each is made once, however many threads ask; the last used stay."""

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from lantern_jax.decoding.program import Program

# A call needs two or three.
MOST_OWN = 16


@dataclass(frozen=True)
class ProgramKey:
    """What determines a compiled program; ``dataclasses.replace`` makes the key of a related one.

    Attributes:
        kind: the function of ``programs``: "start", "advance", "refill", "regroup", "log_probs", "draw" or
            "encode".
        size, groups: sequences B, and the groups of devices that they are spread over.
        shapes: per sequence, of conditioning (``shape_of``), codes or pictures.
        program: the static half of a generation.
        greedy, filters, guided: what is static in its sampling, and whether it is guided.
        rule: the tree structure of the rule and its leaves' shapes and dtypes, if it is read.
        rows: F, the new sequences of a refill; B of the state that a regroup takes from.
        own: whether it holds a caller's own rule, drafting or coupling; ignored when keys are compared.
        name: text that determines ``program``, or the tokenizer, in any process; empty if there is none; likewise.
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
    name: str = field(default="", compare=False)


def shape_of(values: Any, axes: int = 0) -> tuple:
    """Returns what a compiled program knows of values: their structure, and leaves' dtypes and shapes after ``axes``.

    For a rule, or with ``axes`` 1 for a sequence's conditioning.
    """
    leaves, structure = jax.tree.flatten(values)
    return structure, tuple((jnp.shape(leaf)[axes:], jnp.result_type(leaf)) for leaf in leaves)


class ProgramCache:
    """Programs by their keys. Any thread may use it.

    Programs with callers' own objects have a limit of their own: a caller that makes a new rule for every call neither
    fills memory nor drives out the other programs.

    Attributes:
        most: how many are kept besides the staying ones and those with callers' own objects; None for any number.
        dropped: how many were dropped for lack of room.
    """

    def __init__(self, most: int | None = None):
        self.most, self.dropped = most, 0
        self._held: OrderedDict[Hashable, Callable] = OrderedDict()
        self._staying: set[Hashable] = set()
        self._stays = threading.local()
        self._lock = threading.Lock()
        # Locks, each held by the thread that makes a program while others that want it wait.
        self._making: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            return iter(tuple(self._held))

    def get(self, key: Hashable) -> Any:
        """Returns a key's program, which now counts as the last one used, or None."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                self._note(key)
            return self._held.get(key)

    def obtain(self, key: Hashable, make: Callable[[], tuple[Callable, float]]) -> tuple[Callable, float]:
        """Returns a key's program, and the seconds that making it took: 0 if it existed already.

        Args:
            make: returns both; if it raises, so does this, and the next call tries again.
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
        """Makes the programs that this thread asks for inside the context stay."""
        self._stays.now = True
        try:
            yield
        finally:
            self._stays.now = False

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
