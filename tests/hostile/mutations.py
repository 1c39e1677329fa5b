"""Changes to what somebody may hand over: to bytes, and to values in JSON."""

import copy
import random
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

# In place of an entry, leaves it out.
MISSING = object()
Path = tuple[str | int, ...]


def damage(good: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Returns what was done to the bytes, and the changed bytes."""
    what = chance.choice(("cut", "bits", "zeros", "swapped", "doubled", "noise"))
    size = chance.choice((1, 4, 8, 64, 512, 4096))
    at, other = chance.randrange(len(good)), chance.randrange(len(good))
    here, there = slice(at, at + size), slice(other, other + size)
    changed = bytearray(good)
    if what == "cut":
        del changed[at:]
    elif what == "bits":
        for _ in range(chance.choice((1, 3, 20))):
            changed[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
    elif what == "swapped":
        changed[here], changed[there] = good[there], good[here]
    elif what == "doubled":
        changed[at:at] = good[there]
    else:
        length = len(changed[here])
        changed[here] = bytes(length) if what == "zeros" else chance.randbytes(length)
    return f"{what} at {at} of {len(good)}", bytes(changed)


def places(values: Any, above: Path = ()) -> Iterator[Path]:
    """Yields the path of every entry, from the outside in."""
    inner: Any = ()
    if isinstance(values, dict):
        inner = values.items()
    elif isinstance(values, list):
        inner = enumerate(values)
    for name, value in inner:
        yield (*above, name)
        yield from places(value, (*above, name))


def at(values: Any, path: Path) -> Any:
    return reduce(getitem, path, values)


def replaced(values: Any, path: Path, to: Any) -> Any:
    """Returns the values with another entry at a path, or, for MISSING, without it."""
    changed = copy.deepcopy(values)
    inner = at(changed, path[:-1])
    if to is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return changed


def renamed(values: Any, path: Path, name: str) -> Any:
    changed = replaced(values, path, MISSING)
    at(changed, path[:-1])[name] = at(values, path)
    return changed
