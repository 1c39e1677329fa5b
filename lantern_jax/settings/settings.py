"""How to decode: every knob of a generation, declared once in ``Settings`` and checked before anything is computed.

Type, default, range and help of a knob are the fields of ``Settings``; checks, defaults, the flags of the
command and the table in docs/settings.md follow from them. A value that is not given is the method's, else the
checkpoint's default, else that of ``Settings``. A checkpoint's default may depend on the platform:
``{"cpu": ..., "gpu": ...}``.
"""

import dataclasses
import json
import math
import sys
from collections import ChainMap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from lantern_jax.decoding.couplings import COUPLINGS
from lantern_jax.decoding.knobs import TEMPERATURE, TOP_K, TOP_P, Knob, knob, knob_of
from lantern_jax.decoding.methods import AUTO, TREES_METHOD, auto_method, methods
from lantern_jax.decoding.names import INITIALS, PATHS, REDRAWS, RESIDUALS
from lantern_jax.decoding.rules.table import RULES, rule_knobs
from lantern_jax.decoding.tree import NO_TREE, RANKINGS, DraftTree, DynamicTree, resolve_tree
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.plugins import Table
from lantern_jax.settings.draftings import DRAFTINGS, ROWS, WINDOW

# The command reads the knobs before it knows whether there is anything to compute: JAX comes later.
if TYPE_CHECKING:
    from lantern_jax.decoding.acceptance import Rule
    from lantern_jax.decoding.sampling import SamplingParams

# Small trees win where a round is bound by arithmetic, large ones where it is bound by reading the weights. On two
# cores at LlamaGen-XL size a round with the chain takes as long as 1.7 plain steps, one with mc_sim_7b_63 as 3.2.
_TREES = {"cpu": "chain", "gpu": "naive_extend_57", "tpu": "naive_extend_57"}
_PLAIN = "decode plainly (tree none), without a drafter (method jacobi), or convert one with it"


def _of_rules(name: str) -> Any:
    """Returns the field of a knob that the table of rules declares."""
    return dataclasses.field(default=rule_knobs()[name].default, metadata={"knob": rule_knobs()[name]})


@dataclass(frozen=True)
class Settings:
    """The knobs of a generation, their values checked by ``resolve_settings``.

    Attributes:
        own: (name, value) of knobs that other packages' rules and draftings brought; each is an attribute too.

    Example:
        >>> settings = lantern_jax.load("demo").check("a lake", method="lantern-g", lam=3.0)
        >>> settings.rule, settings.coupling, settings.lam, settings.guidance
        ('lantern++', 'gumbel', 3.0, 2.0)
    """

    method: str | None = knob(
        None, "a named combination of the knobs below; each may be given too", choices=tuple(methods())
    )
    guidance: float = knob(4.0, "classifier-free guidance scale", "F", low=0, note="1 turns it off")
    temperature: float = knob(1.0, "how flat the sampling distribution is made", "F", **TEMPERATURE)
    top_k: int = knob(0, "sample from the K most probable codes", "K", **TOP_K)
    top_p: float = knob(1.0, "sample from the most probable codes of mass P", "P", **TOP_P)
    drafting: str | None = knob(
        None,
        "where guesses come from: a drafter of the checkpoint, the target's last pass (jacobi), both (led), "
        "or rows in parallel (zipar)",
        choices=DRAFTINGS,
    )
    tree: Any = knob(  # noqa: RUF009
        None,
        "draft tree: a name, a JSON file of paths, one grown anew each round, or plain decoding",
        "NAME|FILE|dynamic|none",
        by_platform=_TREES,
    )
    nodes: int = knob(25, "nodes that a dynamic tree keeps, the root not counted", "N", low=1, high=4096)
    depth: int = knob(8, "levels of a dynamic tree", "D", low=1, high=64)
    frontier: int = knob(8, "nodes of a level that a dynamic tree expands", "F", low=1, high=256)
    children: int = knob(6, "children of a node that a dynamic tree drafts", "C", low=1, high=256)
    ranking: str = knob("gap", "what a node of a dynamic tree is worth; gap needs gumbel", choices=RANKINGS)
    sharpness: float = knob(2.0, "beta of ranking gap", "B", low=0, low_open=True)
    threshold: float = knob(
        0.0, "worth of a level under which a dynamic tree gets no deeper", "T", low=0, high=1, high_open=True,
        note="0 is never",
    )  # fmt: skip
    echo: str = knob("off", "mix what the target said of refused nodes into the draft", choices=("off", "on"))
    mixture: Any = knob(  # noqa: RUF009
        None,
        "a and b of echo for old nodes that agree in position, in token too, in parent too",
        "A,B,A,B,A,B",
    )
    window: int = knob(16, "positions that jacobi and led guess", "W", low=1, high=64)
    redraw: str = knob(
        "maximal", "how guesses of a window are drawn again, with rejection",
        choices=REDRAWS, note="with block always independent",
    )  # fmt: skip
    initial: str = knob(
        "left", "where the guesses of a window's new positions come from",
        choices=INITIALS,
    )  # fmt: skip
    branches: int = knob(1, "guesses for each of a window's first positions", "K", low=1, high=64)
    levels: int = knob(0, "positions of a window that have several guesses", "D", low=0, high=8)
    reach: int = knob(4, "places of a window that the drafter of led speaks of", "N", low=1, high=64)
    ahead: int = knob(8, "codes that a row is ahead of the next one, with zipar", "S", low=1)
    rule: str = knob("strict", "acceptance rule", choices=RULES)
    k: int = _of_rules("k")
    delta: float = _of_rules("delta")
    lam: float = _of_rules("lam")
    tau: float = _of_rules("tau")
    ratio: float = _of_rules("ratio")
    omega: float = _of_rules("omega")
    epsilon: float = _of_rules("epsilon")
    samples: int = _of_rules("samples")
    coupling: str = knob("gumbel", "how drafts and target share randomness", choices=COUPLINGS)
    path: str = knob("longest", "which accepted path is taken, with gumbel", choices=PATHS)
    residual: str = knob(
        "exact", "what is left of the target after a refusal, with rejection", choices=RESIDUALS[:2],
        note="published relaxes even at delta 0 or lam 1 where neighbours are filtered out",
    )  # fmt: skip
    batch: int = knob(8, "pictures decoded at once", "B", low=1)
    own: tuple[tuple[str, Any], ...] = ()

    # Type checkers know the names above alone.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Returns a knob that another package's rule or drafting brought."""
            if name in dict(self.own):
                return dict(self.own)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted: a token a pass."""
        return not self.tree.max_depth and DRAFTINGS[self.drafting].nodes != ROWS

    def sampling(self, vocab_size: int | None = None) -> "SamplingParams":
        """The sampling distribution's knobs as the decoding loops take them."""
        from lantern_jax.decoding.sampling import SamplingParams

        return SamplingParams.create(self.temperature, self.top_k, self.top_p, vocab_size)

    def rule_value(self) -> "Rule":
        """The acceptance rule as the decoding loops take it."""
        from lantern_jax.decoding.rules.names import rule_from_name

        kind = RULES[self.rule]
        return rule_from_name(self.rule, **{knob.name: getattr(self, knob.name) for knob in kind.knobs})


class Knobs(TypedDict, total=False):
    """The knobs as keyword arguments, for type checkers; None is the default. ``Settings`` says what they are.

    Example:
        >>> knobs: lantern_jax.Knobs = {"method": "near", "tau": 1.0}
        >>> lantern_jax.load("demo").check("a lake", **knobs).rule
        'near'
    """

    method: str | None
    guidance: float | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    drafting: str | None
    tree: Any
    nodes: int | None
    depth: int | None
    frontier: int | None
    children: int | None
    ranking: str | None
    sharpness: float | None
    threshold: float | None
    echo: str | None
    mixture: Any
    window: int | None
    redraw: str | None
    initial: str | None
    branches: int | None
    levels: int | None
    reach: int | None
    ahead: int | None
    rule: str | None
    k: int | None
    delta: float | None
    lam: float | None
    tau: float | None
    ratio: float | None
    omega: float | None
    epsilon: float | None
    samples: int | None
    coupling: str | None
    path: str | None
    residual: str | None
    batch: int | None


_OURS = {field.name: knob_of(field) for field in dataclasses.fields(Settings) if field.name != "own"}


def _known() -> dict[str, Knob]:
    """Returns the knobs of ``Settings``, and those that other packages' rules and draftings brought."""
    others = rule_knobs() | {knob.name: knob for kind in DRAFTINGS.values() for knob in kind.knobs}
    return _OURS | {name: knob for name, knob in others.items() if name not in _OURS}


KNOBS: Table[Knob] = Table("setting", {}, beside=_known)


def resolve_settings(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    platform: str,
    vocab_size: int,
    drafters: Collection[str],
) -> Settings:
    """Fills in the knobs that are None and checks all of them.

    ``tree`` comes out as a DraftTree or DynamicTree, the empty one for plain decoding, ``drafting`` as a name.

    Args:
        given: knobs by name, None where the default is wanted.
        defaults: the checkpoint's.
        platform: cpu, gpu or tpu.
        vocab_size: V.
        drafters: kinds of drafters that the checkpoint has.

    Raises:
        ValueError: an unknown knob or name, a value out of range, knobs that do not fit each other, a method that
            needs a drafter that is not there.
    """
    values = _checked(given, defaults, platform, vocab_size, drafters)
    kinds = RULES[values["rule"]], DRAFTINGS[values["drafting"]]
    own = {knob.name: values[knob.name] for kind in kinds for knob in kind.knobs if knob.name not in _OURS}
    return Settings(**{name: values[name] for name in _OURS}, own=tuple(own.items()))


def check_knobs(given: Mapping[str, Any]) -> None:
    """Raises LanternError for knobs that are wrong with every checkpoint; without JAX."""
    _checked(given, {}, "cpu", sys.maxsize, DRAFTERS)


def _checked(given, defaults, platform: str, vocab_size: int, drafters: Collection[str]) -> dict[str, Any]:
    """Returns the values of all knobs, each in its range and all fitting each other."""
    for source, names in (("", given), ("the checkpoint's default ", defaults)):
        strange = sorted(name for name in names if name not in KNOBS)
        if strange:
            raise LanternError(
                f"{source}{errors.quoted(strange[0])} is not a setting: choose from {', '.join(KNOBS)}"
            )
    values = _filled_in(given, defaults, platform, drafters)
    if given.get("k") is None and isinstance(values["k"], int):
        values["k"] = min(values["k"], vocab_size - 1)
    for name, declared in KNOBS.items():
        # The knobs of the rules and couplings not chosen too: a typing error should not pass in silence.
        declared.check(values[name])
    _check_codes(values["top_k"], values["k"], vocab_size)
    values["tree"] = _tree(values, given)
    values["mixture"] = _mixture(values["mixture"])
    _check_drafter(values, given, drafters)
    _check_tree(values, vocab_size)
    return values


def _filled_in(given, defaults, platform: str, drafters: Collection[str]) -> dict[str, Any]:
    """Returns every knob's value: that of the first layer which has one."""
    method, was_named = _method(given, defaults, platform, drafters)
    preset = methods()[method].knobs
    for source in (given, defaults):
        # Kinds of other packages bring knobs.
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
    return values


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
    """Tells whether they name what only trees, or only windows, have: nothing is chosen against that."""
    return any(knobs.get(name) is not None for name in ("tree", "drafting", "coupling"))


def _tree(values: Mapping[str, Any], given: Mapping[str, Any]) -> DraftTree | DynamicTree:
    """What a round drafts: the tree asked for, or that of a window."""
    tree, drafting = values["tree"], values["drafting"]
    nodes = DRAFTINGS[drafting].nodes
    if nodes == ROWS:
        if given.get("tree") is not None:
            raise LanternError(
                f"drafting {drafting} has no tree: leave tree out, or give none to decode plainly"
            )
        return DraftTree.empty()
    if nodes == WINDOW and given.get("tree") is None:
        return DraftTree.window(values["window"], values["branches"], min(values["levels"], values["window"]))
    if not (isinstance(tree, str) and tree == "dynamic"):
        return tree if isinstance(tree, DynamicTree) else resolve_tree(tree)
    if nodes == WINDOW:
        raise LanternError(f"drafting {drafting} has no dynamic tree: give a window, or a static tree")
    sizes = ("nodes", "depth", "frontier", "children", "ranking", "sharpness", "threshold")
    return DynamicTree(**{name: values[name] for name in sizes})


def _mixture(value: Any) -> tuple[float, ...] | None:
    """Six finite numbers >= 0, from a sequence or the command's text."""
    if value is None:
        return None
    try:
        numbers = tuple(float(part) for part in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != 6 or not all(0 <= number < math.inf for number in numbers):
        raise errors.invalid(
            "mixture", value, "six finite numbers >= 0: a and b for position, token and parent"
        )
    return numbers


def _check_codes(top_k: int, k: int, vocab_size: int) -> None:
    if top_k > vocab_size:
        raise LanternError(f"top_k {top_k} is more than the {vocab_size} codes: give at most {vocab_size}")
    if k >= vocab_size:
        raise errors.invalid("k", k, f"a whole number >= 0 and < {vocab_size}, the number of codes")


def _check_drafter(values: Mapping[str, Any], given: Mapping[str, Any], drafters: Collection[str]) -> None:
    drafting = values["drafting"]
    wanted = DRAFTINGS[drafting].drafters()
    if not wanted or set(wanted) & set(drafters) or not values["tree"].max_depth:
        return
    there = f"its drafters are: {', '.join(drafters)}" if drafters else "this checkpoint has no drafter"
    asked = given.get("method")
    what = f"{drafting} is wanted" if asked in (None, AUTO) else f"method {asked} drafts with {drafting}"
    raise LanternError(f"{what}, and {there}: {_PLAIN}")


def _check_tree(values: Mapping[str, Any], vocab_size: int) -> None:
    tree, coupling = values["tree"], values["coupling"]
    if tree.max_rank >= vocab_size:
        raise LanternError(
            f"the tree asks for child rank {tree.max_rank} of {vocab_size} codes: choose a narrower one"
        )
    if isinstance(tree, DynamicTree):
        if tree.ranking == "gap" and coupling != "gumbel":
            raise LanternError(
                f"ranking gap needs the coupling gumbel: with {coupling}, give ranking probability"
            )
        if coupling == "block":
            raise LanternError("the coupling block needs a chain: give tree chain")
    elif coupling == "rejection" and tree.has_rank_gaps:
        raise LanternError(
            "the rejection coupling needs a tree without gaps in child ranks: use ranks 0, 1, 2, ..."
        )
    elif coupling == "block" and tree.num_nodes != tree.max_depth + 1:
        raise LanternError("the coupling block needs a chain: give tree chain")
    drafting, rule = values["drafting"], values["rule"]
    if coupling == "block" and coupling not in RULES[rule].couplings:
        raise LanternError(f"the coupling block has no relaxed rule: give rule strict, not {rule}")
    redrawn = "redraw" in DRAFTINGS[drafting].reads
    if coupling == "block" and redrawn and values["redraw"] != "independent":
        raise LanternError(
            f"the coupling block reads the guesses that redraw {values['redraw']} keeps: give redraw independent"
        )
    for what, couplings in (
        (f"drafting {drafting}", DRAFTINGS[drafting].couplings), (f"rule {rule}", RULES[rule].couplings),
    ):  # fmt: skip
        if couplings and coupling not in couplings:
            raise LanternError(
                f"{what} needs the coupling {' or '.join(couplings)}: it does not go with {coupling}"
            )


def for_platform(value: Any, platform: str) -> Any:
    """The entry of ``platform`` where a default differs by platform, else the value itself."""
    if isinstance(value, Mapping):
        return value.get(platform, value.get("gpu" if platform == "tpu" else "cpu"))
    return value


def settings_json(settings: Settings) -> dict[str, Any]:
    """Knobs as plain values, without the batch, which decides how fast pictures are made and not which."""
    values = {name: getattr(settings, name) for name in _OURS if name != "batch"} | dict(settings.own)
    values["tree"] = dataclasses.asdict(settings.tree)
    return json.loads(json.dumps(values))
