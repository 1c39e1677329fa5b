"""Configs of a checkpoint with one entry changed, as strangers may send them.

Every entry of ``config.json``, at any depth, is replaced by values of other types and sizes, is left out, or gets an
unknown neighbour. The config's checksum is dropped too: whoever changes a config can compute it.
"""

import json
from typing import Any

from tests.hostile.mutations import MISSING, at, places, replaced

UNKNOWN = object()
# What replaces an entry; text that JSON has no value for is written as it is.
VALUES: dict[str, Any] = {
    "missing": MISSING, "unknown": UNKNOWN, "null": None, "true": True, "minus one": -1, "zero": 0, "one more": 7,
    "2**31": 2**31, "2**62": 2**62, "10**400": 10**400, "1e308": 1e308, "a half": 0.5,
    "not a number": float("nan"), "infinity": float("inf"), "text": "wide", "long text": "x" * 100_000,
    "escapes": "\x1b[2J\x1b]0;title\x07\nsecond line\u202e", "empty list": [], "empty object": {},
    "list": [1, [2, [3]]], "many": list(range(20_000)), "object": {"a": {"b": [None]}},
    "deep": json.loads("[" * 60 + "]" * 60), "deeper": "[" * 100_000 + "]" * 100_000,
}  # fmt: skip
# Entries whose contents are many and alike, or meant for people.
_CLOSED = {"words", "attributes", "ignored", "defaults", "metadata", "checksums"}


def mutated(config: dict[str, Any], path: tuple[str, ...], value: str) -> str:
    """Returns the text of a config whose entry of that path is replaced by one of ``VALUES``."""
    sums = {name: checksum for name, checksum in config["checksums"].items() if name != "config.json"}
    config = config | {"checksums": sums}
    to = VALUES[value]
    place = (*path[:-1], f"{path[-1]}\x1b[2J") if to is UNKNOWN else path
    changed = replaced(config, place, 1 if to is UNKNOWN else to)
    return json.dumps(changed).replace(json.dumps(VALUES["deeper"]), VALUES["deeper"])


def mutations(config: dict[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    paths = [
        path
        for path in places(config)
        if not _CLOSED & set(path[:-1])
        and all(isinstance(at(config, path[:end]), dict) for end in range(len(path)))
    ]
    return [(path, value) for path in paths for value in VALUES]
