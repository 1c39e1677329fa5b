"""How to decode: every knob of a generation, declared once in ``Settings`` and checked before anything is computed.

Type, default, range and help of a knob are the fields of ``Settings``; checks, defaults, the flags of the
command and the table in docs/settings.md follow from them. A value that is not given is the method's, else the
checkpoint's default, else that of ``Settings``. A checkpoint's default may depend on the platform:
``{"cpu": ..., "gpu": ...}``.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from lantern_jax import errors
from lantern_jax.decoding.methods import methods
from lantern_jax.decoding.tree import NO_TREE, DraftTree, resolve_tree

# The command reads the knobs before it knows whether there is anything to compute: JAX comes later.
if TYPE_CHECKING:
    from lantern_jax.decoding.acceptance import Rule
    from lantern_jax.decoding.sampling import SamplingParams

# Small trees win where a round is bound by arithmetic, large ones where it is bound by reading the weights. On two
# cores at LlamaGen-XL size a round with the chain takes as long as 1.7 plain steps, one with mc_sim_7b_63 as 3.2.
_TREES = {"cpu": "chain", "gpu": "naive_extend_57", "tpu": "naive_extend_57"}
_PLAIN = "decode plainly (tree none), or convert one with it"


@dataclass(frozen=True)
class Knob:
    """What is known of a knob.

    Attributes:
        name: as in ``Settings``.
        type: float, int or str; object where ``resolve_settings`` has to know it (``tree``).
        default: of ``Settings``.
        help: one line.
        metavar: what stands for its value in the command's help.
        low, high: the least and the greatest number.
        low_open, high_open: whether the bound itself is out.
        note: what a number of special meaning does.
        choices: the names there are; empty for numbers.
        by_platform: the default where it differs by platform.
    """

    name: str
    type: type
    default: Any
    help: str
    metavar: str | None = None
    low: float = 0
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    note: str = ""
    choices: tuple[str, ...] = ()
    by_platform: Mapping[str, Any] | None = None

    @property
    def range(self) -> str:
        """What may be given, in words; empty where names or types of its own say it."""
        if self.type not in (int, float):
            return ", ".join(self.choices)
        bounded = math.isfinite(self.high)
        kind = "whole" if self.type is int else "" if bounded else "finite"
        sign, left, right = ">" if self.low_open else ">=", "(["[not self.low_open], ")]"[not self.high_open]
        limits = f"in {left}{self.low:g}, {self.high:g}{right}" if bounded else f"{sign} {self.low:g}"
        return " ".join(filter(None, ("a", kind, "number", limits)))

    def check(self, value: Any) -> None:
        """Raises ValueError for a value of another type, out of range or of no known name."""
        if self.choices:
            if value not in self.choices and not (value is None and self.default is None):
                raise errors.unknown(self.name, value, self.choices)
        elif self.type in (int, float) and not self._holds(value):
            raise errors.invalid(self.name, value, self.range + (f" ({self.note})" if self.note else ""))

    def _holds(self, value: Any) -> bool:
        numbers = int | np.integer if self.type is int else int | float | np.integer | np.floating
        if isinstance(value, bool) or not isinstance(value, numbers) or not math.isfinite(value):
            return False
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)


def _knob(default: Any, help: str, metavar: str | None = None, **limits: Any) -> Any:
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, **limits})


@dataclass(frozen=True)
class Settings:
    """The knobs of a generation, their values checked by ``resolve_settings``."""

    method: str | None = _knob(
        None, "a named combination of the knobs below; each may be given too", choices=tuple(methods())
    )
    guidance: float = _knob(4.0, "classifier-free guidance scale", "F", low=0, note="1 turns it off")
    temperature: float = _knob(
        1.0, "how flat the sampling distribution is made", "F", low=0, note="0 is greedy"
    )
    top_k: int = _knob(0, "sample from the K most probable codes", "K", low=0, note="0 turns it off")
    top_p: float = _knob(
        1.0, "sample from the most probable codes of mass P", "P",
        low=0, low_open=True, high=1, note="1 turns it off",
    )  # fmt: skip
    tree: Any = _knob(  # noqa: RUF009
        None,
        "draft tree: a name, a JSON file of paths, or plain decoding",
        "NAME|FILE|none",
        by_platform=_TREES,
    )
    rule: str = _knob("strict", "acceptance rule", choices=("strict", "lantern", "lantern++"))
    k: int = _knob(10, "codebook neighbours of a relaxed rule", "K", low=0)
    delta: float = _knob(0.05, "bound of lantern", "D", low=0, high=1, high_open=True)
    lam: float = _knob(2.0, "bound of lantern++", "L", low=1, note="1 is strict")
    coupling: str = _knob("gumbel", "how drafts and target share randomness", choices=("gumbel", "rejection"))
    path: str = _knob(
        "longest", "which accepted path is taken, with gumbel", choices=("longest", "exact_first")
    )
    residual: str = _knob(
        "exact", "what is left of the target after a refusal, with rejection", choices=("exact", "published")
    )
    batch: int = _knob(8, "pictures decoded at once", "B", low=1)

    def sampling(self, vocab_size: int | None = None) -> "SamplingParams":
        """The sampling distribution's knobs as the decoding loops take them."""
        from lantern_jax.decoding.sampling import SamplingParams

        return SamplingParams.create(self.temperature, self.top_k, self.top_p, vocab_size)

    def rule_value(self) -> "Rule":
        """The acceptance rule as the decoding loops take it."""
        from lantern_jax.decoding.rules.names import rule_from_name

        return rule_from_name(self.rule, self.k, self.delta, self.lam)


class Knobs(TypedDict, total=False):
    """The knobs as keyword arguments, for type checkers; None is the default. ``Settings`` says what they are."""

    method: str | None
    guidance: float | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    tree: Any
    rule: str | None
    k: int | None
    delta: float | None
    lam: float | None
    coupling: str | None
    path: str | None
    residual: str | None
    batch: int | None


def _knob_of(field: dataclasses.Field) -> Knob:
    kind = next((kind for kind in (int, float) if field.type is kind), object)
    return Knob(field.name, str if field.metadata.get("choices") else kind, field.default, **field.metadata)


KNOBS: Mapping[str, Knob] = {field.name: _knob_of(field) for field in dataclasses.fields(Settings)}


def resolve_settings(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    platform: str,
    vocab_size: int,
    has_drafter: bool,
) -> Settings:
    """Fills in the knobs that are None and checks all of them; ``tree`` comes out as a DraftTree.

    Args:
        given: knobs by name, None where the default is wanted.
        defaults: the checkpoint's.
        platform: cpu, gpu or tpu.
        vocab_size: V.
        has_drafter: whether the checkpoint can draft; without, the default tree is empty.

    Raises:
        ValueError: an unknown knob or name, a value out of range, a tree that is not valid or cannot be used, a
            method that drafts without a drafter.
    """
    for source, names in (("", given), ("the checkpoint's default ", defaults)):
        strange = sorted(set(names) - set(KNOBS))
        if strange:
            raise ValueError(f"{source}{strange[0]!r} is not a setting: choose from {', '.join(KNOBS)}")
    values = _filled_in(given, defaults, platform)
    if given.get("tree") is None and not has_drafter:
        if given.get("method") is not None and methods()[given["method"]].drafts:
            raise ValueError(f"method {given['method']} drafts, and this checkpoint has no drafter: {_PLAIN}")
        values["tree"] = NO_TREE
    if given.get("k") is None and isinstance(values["k"], int):
        values["k"] = min(values["k"], vocab_size - 1)
    for name, knob in KNOBS.items():
        # The knobs of the rules and couplings not chosen too: a typing error should not pass in silence.
        knob.check(values[name])
    _check_codes(values["top_k"], values["k"], vocab_size)
    tree = resolve_tree(values["tree"])
    _check_tree(tree, values["coupling"], vocab_size, has_drafter)
    return Settings(**values | {"tree": tree})


def _filled_in(given: Mapping[str, Any], defaults: Mapping[str, Any], platform: str) -> dict[str, Any]:
    """Every knob's value: the first there is of the given one, the method's, the checkpoint's and the default."""
    method = given.get("method")
    if method is None:
        method = defaults.get("method")
    KNOBS["method"].check(method)
    fixed = {} if method is None else methods()[method].knobs
    values: dict[str, Any] = {"method": method}
    for name, knob in KNOBS.items():
        if name != "method":
            value = given.get(name)
            default = fixed.get(name, defaults.get(name, knob.by_platform or knob.default))
            values[name] = for_platform(default, platform) if value is None else value
    return values


def _check_codes(top_k: int, k: int, vocab_size: int) -> None:
    if top_k > vocab_size:
        raise ValueError(f"top_k {top_k} is more than the {vocab_size} codes: give at most {vocab_size}")
    if k >= vocab_size:
        raise errors.invalid("k", k, f"a whole number >= 0 and < {vocab_size}, the number of codes")


def _check_tree(tree: DraftTree, coupling: str, vocab_size: int, has_drafter: bool) -> None:
    if tree.max_depth and not has_drafter:
        raise ValueError(f"this checkpoint has no drafter: {_PLAIN}")
    if tree.max_rank >= vocab_size:
        raise ValueError(
            f"the tree asks for child rank {tree.max_rank} of {vocab_size} codes: choose a narrower one"
        )
    if coupling == "rejection" and tree.has_rank_gaps:
        raise ValueError(
            "the rejection coupling needs a tree without gaps in child ranks: use ranks 0, 1, 2, ..."
        )


def for_platform(value: Any, platform: str) -> Any:
    """The entry of ``platform`` where a default differs by platform, else the value itself."""
    if isinstance(value, Mapping):
        return value.get(platform, value.get("gpu" if platform == "tpu" else "cpu"))
    return value


def check_count(name: str, value: Any) -> int:
    """A whole number >= 1, or ValueError."""
    Knob(name, int, 1, "", low=1).check(value)
    return int(value)


def check_seed(seed: Any, name: str = "seed") -> int:
    """A whole number from 0 to 2**32 - 1, or ValueError."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise errors.invalid(name, seed, f"a whole number from 0 to {2**32 - 1}")
    return int(seed)


def markdown_tables() -> str:
    """The methods and the knobs as two tables, for the documentation."""
    lines = ["| method | what it is | knobs it fixes |", "| --- | --- | --- |"]
    for name, method in methods().items():
        fixed = ", ".join(f"`{knob}={value}`" for knob, value in method.knobs.items())
        lines.append(f"| `{name}` | {method.help} | {fixed} |")
    lines += ["", "| knob | default | range | what it is |", "| --- | --- | --- | --- |"]
    for knob in KNOBS.values():
        note = f" ({knob.note})" if knob.note else ""
        lines.append(f"| `{knob.name}` | {_default_text(knob)} | {knob.range} | {knob.help}{note} |")
    return "\n".join(lines) + "\n"


def _default_text(knob: Knob) -> str:
    if knob.by_platform is not None:
        return ", ".join(f"{platform} `{value}`" for platform, value in knob.by_platform.items())
    return "" if knob.default is None else f"`{knob.default}`"
