"""Configs of a checkpoint with one entry changed, as strangers may send them.

Every entry of ``config.json``, at any depth, is replaced by values of other types and sizes, is left out, or gets an
unknown neighbour. The config's checksum goes too: whoever changes a config can compute it.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

MISSING, UNKNOWN = object(), object()
# What stands in place of an entry; text that JSON has no value for is written as it is.
VALUES: dict[str, Any] = {
    "missing": MISSING,
    "unknown": UNKNOWN,
    "null": None,
    "true": True,
    "minus one": -1,
    "zero": 0,
    "one more": 7,
    "2**31": 2**31,
    "2**62": 2**62,
    "10**400": 10**400,
    "1e308": 1e308,
    "a half": 0.5,
    "not a number": float("nan"),
    "infinity": float("inf"),
    "text": "wide",
    "long text": "x" * 100_000,
    "escapes": "\x1b[2J\x1b]0;title\x07\nsecond line\u202e",
    "empty list": [],
    "empty object": {},
    "list": [1, [2, [3]]],
    "many": list(range(20_000)),
    "object": {"a": {"b": [None]}},
    "deep": json.loads("[" * 60 + "]" * 60),
    "deeper": "[" * 100_000 + "]" * 100_000,
}
# Entries whose insides are many and alike, or for people.
_CLOSED = (
    "words",
    "attributes",
    "ignored",
    "defaults",
    "metadata",
    "checksums",
)


def paths(entry: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every entry, from the outside in."""
    for name, inner in entry.items():
        yield (*above, name)
        if isinstance(inner, dict) and name not in _CLOSED:
            yield from paths(inner, (*above, name))


def mutated(config: dict[str, Any], path: tuple[str, ...], value: str) -> str:
    """The text of a config whose entry of that path is replaced by one of ``VALUES``."""
    config = copy.deepcopy(config)
    config["checksums"].pop("config.json", None)
    inner = config
    for name in path[:-1]:
        inner = inner[name]
    to = VALUES[value]
    if to is MISSING:
        del inner[path[-1]]
    elif to is UNKNOWN:
        inner[f"{path[-1]}\x1b[2J"] = 1
    else:
        inner[path[-1]] = to
    text = json.dumps(config)
    return text.replace(json.dumps(VALUES["deeper"]), VALUES["deeper"])


def mutations(config: dict[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """(path, name of a value) of all of them."""
    return [(path, value) for path in paths(config) for value in VALUES]
