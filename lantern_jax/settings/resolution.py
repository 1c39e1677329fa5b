"""Turns the given knobs into settings: fills in values, checks each one, and checks them against each other.

A value that is not given is the method's, else the checkpoint's default, else that of ``Settings``. A checkpoint's
default may depend on the platform: ``{"cpu": ..., "gpu": ...}``. Nothing here needs JAX except making ``Settings``.
"""

import math
import sys
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from lantern_jax.decoding.couplings import base_of
from lantern_jax.decoding.gap_tree import GapTree
from lantern_jax.decoding.methods import AUTO, TREES_METHOD, auto_method, methods
from lantern_jax.decoding.rules.table import RULES
from lantern_jax.decoding.tree import NO_TREE, DraftTree, DynamicTree, resolve_tree
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.plugins import called
from lantern_jax.settings.draftings import DRAFTINGS, OWN, ROWS, WINDOW
from lantern_jax.settings.settings import KNOBS, OURS, Settings

# The knobs that give a window's size.
_SIZES = ("window", "nodes")
_PLAIN = "decode plainly (tree none), without a drafter (method jacobi), or convert one with it"


def resolve_settings(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    platform: str,
    vocab_size: int,
    drafters: Collection[str],
) -> Settings:
    """Fills in the knobs that are None and checks all of them.

    ``tree`` comes out as a DraftTree, DynamicTree or GapTree, the empty one for plain decoding and for draftings that
    have none; ``drafting``, ``coupling`` and ``rule`` as names, or as the objects that were given.

    Args:
        given: knobs by name, None where the default is wanted.
        defaults: the checkpoint's defaults.
        platform: cpu, gpu or tpu.
        vocab_size: V.
        drafters: kinds of drafters that the checkpoint has.

    Raises:
        LanternError: an unknown knob or name, a value out of range, knobs that do not fit each other, a method that
            needs a drafter that is not there.
    """
    values = _checked(given, defaults, platform, vocab_size, drafters)
    kinds = RULES[values["rule"]], DRAFTINGS[values["drafting"]]
    own = {knob.name: values[knob.name] for kind in kinds for knob in kind.knobs if knob.name not in OURS}
    return Settings(**{name: values[name] for name in OURS}, own=tuple(own.items()))


# What ``generate`` takes besides knobs.
_OF_CALLS = ("prompts", "num", "seed", "first", "start", "keep_rows", "compare", "progress")


def check_knobs(given: Mapping[str, Any]) -> None:
    """Raises LanternError for knobs that are wrong with every checkpoint; needs no JAX."""
    _checked(given, {}, "cpu", sys.maxsize, DRAFTERS)


def _checked(given, defaults, platform: str, vocab_size: int, drafters: Collection[str]) -> dict[str, Any]:
    """Returns the values of all knobs, each in its range and all fitting each other."""
    for source, names in (("", given), ("the checkpoint's default ", defaults)):
        strange = sorted(name for name in names if name not in KNOBS)
        if strange:
            near = errors.nearest(str(strange[0]), [*KNOBS, *_OF_CALLS])
            raise LanternError(
                f"{source}{errors.quoted(strange[0])} is not a setting: {near}choose from {', '.join(KNOBS)}"
            )
    # NumPy's numbers become Python's here, because they are shown to people and written into pictures.
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    values, sized_by = _filled_in(given, defaults, platform, drafters)
    if given.get("k") is None and isinstance(values["k"], int):
        values["k"] = min(values["k"], vocab_size - 1)
    for name, declared in KNOBS.items():
        # This includes the knobs of rules and couplings not chosen: a typing error should not pass silently.
        declared.check(values[name])
    _check_codes(values["top_k"], values["k"], vocab_size)
    values |= _guesses(values, given, sized_by)
    values["mixture"] = _mixture(values["mixture"])
    _check_hashable(values)
    _check_drafter(values, given, drafters)
    _check_tree(values, vocab_size)
    return values


def _filled_in(given, defaults, platform: str, drafters: Collection[str]) -> tuple[dict[str, Any], set[str]]:
    """Returns every knob's value, taken from the first layer that has one, and the knobs that size a window."""
    method, was_named = _method(given, defaults, platform, drafters)
    preset = methods()[method].knobs
    for source in (given, defaults):
        # Kinds from other packages bring knobs.
        RULES.get(for_platform(source.get("rule"), platform))
        DRAFTINGS.get(for_platform(source.get("drafting"), platform))
    layers = ChainMap(
        preset if was_named else {},  # Whoever names a method wants its knobs.
        defaults,
        preset,  # The checkpoint knows better than a method that was chosen for it.
        {name: declared.by_platform or declared.default for name, declared in KNOBS.items()},
    )
    values = {name: for_platform(layers[name], platform) for name in KNOBS}
    values |= {name: value for name, value in given.items() if value is not None} | {"method": method}
    if values["coupling"] == "block" and all(
        layer.get("redraw") is None for layer in (given, preset, defaults)
    ):
        values["redraw"] = "independent"
    plain = isinstance(values["tree"], str) and values["tree"] == NO_TREE
    if values["drafting"] is None or plain:
        values["drafting"] = next((kind for kind in DRAFTERS if kind in drafters), next(iter(DRAFTERS)))
    return values, _sized_by((given, *layers.maps[:-1]))


def _sized_by(layers: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns those of ``_SIZES`` that are given by the first layer that gives any of them."""
    found = ({name for name in _SIZES if layer.get(name) is not None} for layer in layers)
    return next(filter(None, found), set())


def _method(given, defaults, platform: str, drafters: Collection[str]) -> tuple[str, bool]:
    """Returns the method's name, and whether the caller or the checkpoint named it."""
    named = given.get("method")
    if named in (None, AUTO) and not _steers(given):
        named = for_platform(defaults.get("method"), platform)
    if named not in (None, AUTO):
        KNOBS["method"].check(named)
        return named, True
    steered = _steers(given) or (drafters and _steers(defaults))
    return TREES_METHOD if steered else auto_method(drafters), False


def _steers(knobs: Mapping[str, Any]) -> bool:
    """Tells whether the knobs name what only trees, or only windows, have: no method is chosen against that."""
    return any(knobs.get(name) is not None for name in ("tree", "drafting", "coupling"))


def _guesses(values: Mapping[str, Any], given: Mapping[str, Any], sized_by: set[str]) -> dict[str, Any]:
    """Returns what a round drafts: the tree asked for; or a window's shape and tree, by its nodes if these size it, and
    by the gaps if a window does too.
    """
    kind = DRAFTINGS[values["drafting"]]
    if kind.nodes == WINDOW and given.get("tree") is None:
        shape, nodes = {name: values[name] for name in ("window", "branches", "levels")}, 0
        front = {name: given[name] for name in ("branches", "levels") if given.get(name) is not None}
        if sized_by == {"nodes"}:
            shape |= kind.of_nodes(values["nodes"]) | front
            nodes = shape.pop("nodes", 0)
        elif "nodes" in sized_by and kind.by_gaps:
            nodes = values["nodes"]
        if nodes and not front:
            return shape | {"tree": GapTree(shape["window"], nodes, values["sharpness"])}
        shape["levels"] = min(shape["levels"], shape["window"])
        tree = DraftTree.window(shape["window"], shape["branches"], shape["levels"])
        return shape | {"tree": tree}
    tree = values["tree"]
    if kind.nodes in (ROWS, OWN):
        if given.get("tree") is not None:
            raise LanternError(
                f"drafting {called(values['drafting'])} takes no tree: leave tree out, or give none to decode plainly"
            )
        return {"tree": DraftTree.empty()}
    if isinstance(tree, str) and tree == "dynamic":
        return {"tree": _dynamic(values)}
    return {"tree": tree if isinstance(tree, DynamicTree | GapTree) else resolve_tree(tree)}


def _dynamic(values: Mapping[str, Any]) -> DynamicTree:
    sizes = ("nodes", "depth", "frontier", "children", "ranking", "sharpness", "threshold")
    return DynamicTree(**{name: values[name] for name in sizes})


def _mixture(value: Any) -> tuple[float, ...] | None:
    """Reads eight finite numbers >= 0 from a sequence or the command's text."""
    if value is None:
        return None
    try:
        numbers = tuple(float(part) for part in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != 8 or not all(0 <= number < math.inf for number in numbers):
        raise errors.invalid(
            "mixture", value, "eight finite numbers >= 0: a and b for position, token, parent, grandparent"
        )
    return numbers


def _check_codes(top_k: int, k: int, vocab_size: int) -> None:
    if top_k > vocab_size:
        raise LanternError(f"top_k {top_k} is more than the {vocab_size} codes: give at most {vocab_size}")
    if k >= vocab_size:
        raise errors.invalid("k", k, f"a whole number >= 0 and < {vocab_size}, the number of codes")


def _check_hashable(values: Mapping[str, Any]) -> None:
    """Raises LanternError for an object that compiled programs cannot be looked up by."""
    for name in ("drafting", "coupling"):
        try:
            hash(values[name])
        except TypeError:
            raise LanternError(
                f"{name} {called(values[name])} has no hash, by which its programs are found: "
                "make its class a frozen dataclass of hashable values"
            ) from None


def _check_drafter(values: Mapping[str, Any], given: Mapping[str, Any], drafters: Collection[str]) -> None:
    drafting = values["drafting"]
    wanted = DRAFTINGS[drafting].drafters()
    if not wanted or set(wanted) & set(drafters) or not values["tree"].max_depth:
        return
    there = f"its drafters are: {', '.join(drafters)}" if drafters else "this checkpoint has no drafter"
    asked = given.get("method")
    name = called(drafting)
    what = f"{name} is wanted" if asked in (None, AUTO) else f"method {asked} drafts with {name}"
    raise LanternError(f"{what}, and {there}: {_PLAIN}")


def _check_tree(values: Mapping[str, Any], vocab_size: int) -> None:
    tree, drafting, rule = (values[name] for name in ("tree", "drafting", "rule"))
    coupling, dynamic = base_of(values["coupling"]), isinstance(tree, DynamicTree)
    if DRAFTINGS[drafting].nodes == WINDOW:
        _check_window(tree, called(drafting))
    if tree.max_rank >= vocab_size:
        raise LanternError(
            f"the tree asks for child rank {tree.max_rank} of {vocab_size} codes: choose a narrower one"
        )
    if dynamic and tree.ranking == "gap" and coupling != "gumbel":
        raise LanternError(
            f"ranking gap needs the coupling gumbel: with {called(values['coupling'])}, give ranking probability"
        )
    if isinstance(tree, GapTree) and not DRAFTINGS[drafting].by_gaps:
        raise LanternError(f"a gap tree needs a led window: give drafting led, not {called(drafting)}")
    if coupling == "rejection" and isinstance(tree, DraftTree) and tree.has_rank_gaps:
        raise LanternError(
            "the rejection coupling needs a tree without gaps in child ranks: use ranks 0, 1, 2, ..."
        )
    if coupling == "block":
        if dynamic or tree.num_nodes != tree.max_depth + 1:
            raise LanternError("the coupling block needs a chain: give tree chain")
        if isinstance(rule, str) and coupling not in RULES[rule].couplings:
            raise LanternError(
                f"the coupling block has no relaxed rule: give rule strict, not {called(rule)}"
            )
        if "redraw" in DRAFTINGS[drafting].reads and values["redraw"] != "independent":
            raise LanternError(
                f"the coupling block reads the guesses that redraw {values['redraw']} keeps: give redraw independent"
            )
    for what, kind in (
        (f"drafting {called(drafting)}", DRAFTINGS[drafting]), (f"rule {called(rule)}", RULES[rule]),
    ):  # fmt: skip
        if kind.couplings and coupling and coupling not in kind.couplings:
            raise LanternError(
                f"{what} needs the coupling {' or '.join(kind.couplings)}: "
                f"it does not go with {called(values['coupling'])}"
            )


def _check_window(tree: Any, drafting: str) -> None:
    """Raises LanternError for a tree that cannot hold a window's guesses."""
    if isinstance(tree, DynamicTree):
        raise LanternError(f"drafting {drafting} has no dynamic tree: give a window, or a static tree")
    if isinstance(tree, DraftTree) and not tree.has_spine:
        raise LanternError(
            f"drafting {drafting} needs a tree whose path of best guesses is as long as any other: add [0], [0, 0], ..."
        )


def for_platform(value: Any, platform: str) -> Any:
    """Returns the entry of ``platform`` where a default differs by platform, else the value itself."""
    if isinstance(value, Mapping):
        return value.get(platform, value.get("gpu" if platform == "tpu" else "cpu"))
    return value
