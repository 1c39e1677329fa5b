"""What a benchmark measures: every combination of the given lists."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lantern_jax.decoding.methods import methods
from lantern_jax.decoding.tree import resolve_tree
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.settings.draftings import DRAFTINGS, TREE
from lantern_jax.settings.settings import KNOBS

# Knobs that have lists of their own.
SWEPT = ("method", "tree", "rule", "batch", "guidance")


@dataclass(frozen=True)
class Configuration:
    """One way of decoding.

    Attributes:
        method: its name.
        knobs: those given besides it, except the following.
        batch: pictures decoded together.
        guidance: the scale; None means the model's default.
    """

    method: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1
    guidance: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """All knobs, as ``resolve_settings`` takes them."""
        return {"method": self.method, **self.knobs, "batch": self.batch, "guidance": self.guidance}

    def __str__(self) -> str:
        knobs = ",".join(f"{name}={value}" for name, value in self.knobs.items())
        guidance = "" if self.guidance is None else f", guidance {self.guidance:g}"
        return f"{self.method}{':' if knobs else ''}{knobs}, batch {self.batch}{guidance}"


def expand(
    variants: Iterable[Mapping[str, Any]],
    *,
    trees: Sequence[str] = (),
    rules: Sequence[str] = (),
    batches: Sequence[int] = (1,),
    guidances: Sequence[float | None] = (None,),
    knobs: Mapping[str, Any] | None = None,
) -> list[Configuration]:
    """Returns every combination once; rows that are compared with the same plain decoding stand together.

    A variant that fixes its own tree or rule, or has windows instead of a tree, keeps them.

    Args:
        variants: knobs of the methods, with their ``method`` (``parse_methods``).
        trees, rules: names or files; empty for the method's own.
        knobs: knobs of all variants, unless one says otherwise.
    """
    found: dict[str, Configuration] = {}
    for batch, guidance in itertools.product(batches, guidances):
        for variant in variants:
            own = {**(knobs or {}), **variant}
            name = own.pop("method")
            fixed = methods()[name].knobs
            keeps = "tree" in own or "tree" in fixed or _nodes(fixed) != TREE
            plain = fixed.get("tree") == "none"
            for tree, rule in itertools.product(
                (None,) if keeps else trees or (None,),
                (None,) if plain or "rule" in own else rules or (None,),
            ):
                more = {"tree": tree, "rule": rule}
                given = own | {name: value for name, value in more.items() if value is not None}
                one = Configuration(name, given, batch, guidance)
                found.setdefault(str(one), one)
    return list(found.values())


def _nodes(fixed: Mapping[str, Any]) -> str:
    """Returns what the drafts of a method consist of: a list of trees applies only to trees."""
    return DRAFTINGS[fixed["drafting"]].nodes if "drafting" in fixed else TREE


def parse_methods(text: str) -> dict[str, dict[str, Any]]:
    """Parses ``a,b:knob=value,knob=value,c`` into knobs by row; empty text means all methods.

    Raises LanternError for an unknown method, knob or name, and for a value of the wrong type.
    """
    if not text:
        return {name: {"method": name} for name in methods()}
    rows: list[str] = []
    for piece in text.split(","):
        if rows and "=" in piece and ":" not in piece:
            rows[-1] += f",{piece}"
        else:
            rows.append(piece.strip())
    return {row: _knobs(row) for row in rows}


def _knobs(row: str) -> dict[str, Any]:
    name, _, given = row.partition(":")
    if name not in methods():
        raise LanternError(f"unknown method {errors.quoted(name)}: choose from {', '.join(methods())}")
    knobs: dict[str, Any] = {"method": name}
    for pair in filter(None, given.split(",")):
        knob, _, value = pair.partition("=")
        if knob not in KNOBS:
            raise LanternError(f"{row}: {errors.quoted(knob)} is not a knob: choose from {', '.join(KNOBS)}")
        knobs[knob] = _value(knob, value)
    return knobs


def parse_list(name: str, text: str) -> list[Any]:
    """Returns the values of a knob's list, ``a,b,c``; LanternError if one is not valid or there is none."""
    values = [_value(name, part.strip()) for part in text.split(",") if part.strip()]
    if not values:
        raise errors.invalid(f"--{name}", text, "one value or several with commas")
    return values


def _value(name: str, text: str) -> Any:
    """Reads a knob's value; LanternError for one that no model can be decoded with."""
    if KNOBS[name].type in (int, float):
        return KNOBS[name].read(text)
    if name == "tree" and text != "dynamic":
        resolve_tree(text)
    KNOBS[name].check(text)
    return text
