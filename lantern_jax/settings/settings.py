"""How to decode: a method and the sampling distribution, settled for a checkpoint and a platform.

An option that is not given is the checkpoint's default, else that of ``Settings``.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from lantern_jax.decoding import fields
from lantern_jax.decoding.choices import coupling_name
from lantern_jax.decoding.fields import MIN_P, TEMPERATURE, TOP_K, TOP_P, allowed_in, field, number, whole
from lantern_jax.decoding.methods import AUTO, METHODS, TREES_METHOD, Method
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

if TYPE_CHECKING:
    from lantern_jax.decoding.sampling import SamplingParams
    from lantern_jax.decoding.tree import GuessTree


@dataclass(frozen=True)
class Settings:
    """What a generation is decoded with.

    Attributes:
        method: where guesses come from, what is accepted, and how they share randomness.
        guidance: scale of classifier-free guidance; 1 turns it off.
        temperature: how flat the sampling distribution is made; 0 is greedy.
        top_k: sample from the K most probable codes; 0 from all.
        top_p: sample from the most probable codes of this mass; 1 from all.
        min_p: sample from codes with at least this share of the best one's probability; 0 from all.
        batch: pictures decoded together.

    Example:
        >>> settings = lantern_jax.load("demo").check("a lake", method="lantern-g:lam=3")
        >>> str(settings.method), settings.guidance
        ('tree:drafter=eagle,tree=1+2+0.0 lantern++:lam=3 gumbel', 3.0)
    """

    method: Method
    guidance: float = number(4.0, note="1 turns it off")
    temperature: float = field(1.0, TEMPERATURE)
    top_k: int = field(0, TOP_K)
    top_p: float = field(1.0, TOP_P)
    min_p: float = field(0.0, MIN_P)
    batch: int = whole(8, 1)

    def __post_init__(self):
        fields.check_fields(self)

    # The method's parts.
    drafting = property(lambda self: self.method.drafting)
    rule = property(lambda self: self.method.rule)
    coupling = property(lambda self: self.method.coupling)

    @property
    def tree(self) -> "GuessTree":
        """The tree of a round; the root alone for plain decoding and for draftings that have none."""
        return self.drafting.tree

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted: each pass gives one token."""
        from lantern_jax.decoding.drafting.plain import Plain

        return isinstance(self.drafting, Plain)

    @property
    def keeps_tokens(self) -> bool:
        """Whether any guesses give plain decoding's tokens with these settings."""
        return self.rule.is_strict and self.drafting.verifies and coupling_name(self.coupling) == "gumbel"

    def sampling(self, vocab_size: int | None = None) -> "SamplingParams":
        """Returns the sampling distribution as the decoding loops take it."""
        from lantern_jax.decoding.sampling import SamplingParams

        return SamplingParams.create(self.temperature, self.top_k, self.top_p, vocab_size, self.min_p)

    def to_json(self) -> dict[str, Any]:
        """Returns them as plain values, without the batch, which decides how fast pictures are made but not which."""
        return self.method.texts | {name: getattr(self, name) for name in SAMPLING}


class Options(TypedDict, total=False):
    """The keyword arguments that make ``Settings``, None for the default.

    ``method`` is a name of ``METHODS``, with fields (``"led:nodes=25"``), or a ``Method``; ``drafting``, ``rule`` and
    ``coupling`` replace its parts, as text (``"near:tau=1"``) or as objects.

    Example:
        >>> options: lantern_jax.Options = {"method": "led:nodes=5", "rule": "near:tau=1"}
        >>> str(lantern_jax.load("demo").check("a lake", **options).rule)
        'Near(tau=1.0, ratio=10.0)'
    """

    method: Any
    drafting: Any
    rule: Any
    coupling: Any
    guidance: float | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    batch: int | None


NUMBERS = allowed_in(Settings)
SAMPLING = ("guidance", "temperature", "top_k", "top_p", "min_p")
PARTS = ("drafting", "rule", "coupling")
OPTIONS = ("method", *PARTS, *NUMBERS)
# The fields of draftings of which a checkpoint may have its own values.
FITTED = ("tree", "sharpness", "mixture")
# What ``generate`` takes besides.
_OF_CALLS = ("prompts", "num", "seed", "first", "start", "keep_rows", "compare", "progress")


def resolve_settings(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    platform: str,
    vocab_size: int,
    drafters: Collection[str],
) -> Settings:
    """Fills in the options that are None, and checks all of them.

    Args:
        given: options by name.
        defaults: the checkpoint's defaults: options, and values of ``FITTED``; one may be an object of platforms.
        platform, vocab_size, drafters: as in ``Method.settled``.

    Raises:
        LanternError: an unknown option or name, a value out of range, parts that do not fit each other, a method that
            needs a drafter that is not there.
    """
    check_names(given)
    strange = sorted(set(defaults) - {*OPTIONS, *FITTED})
    if strange:
        raise LanternError(
            f"the checkpoint's default {errors.quoted(strange[0])} is not an option: convert it again"
        )
    defaults = {name: fields.on_platform(value, platform) for name, value in defaults.items()}
    options = {name: value for name, value in given.items() if value is not None}
    method = options.get("method", AUTO)
    if method == AUTO and options.keys() & {"drafting", "coupling"}:
        method = TREES_METHOD
    elif method == AUTO:
        method = defaults.get("method", "led" if drafters else "jacobi")
    method = Method.of(method, **{name: options.get(name) for name in PARTS})
    fitted = {name: defaults[name] for name in FITTED if name in defaults}
    made = Settings(
        method.settled(platform, fitted, vocab_size, tuple(drafters)),
        **{name: options.get(name, defaults.get(name, one.default)) for name, one in NUMBERS.items()},
    )
    if made.top_k > vocab_size:
        raise LanternError(
            f"top_k {made.top_k} is more than the {vocab_size} codes: give at most {vocab_size}"
        )
    return made


def check_names(given: Mapping[str, Any]) -> None:
    """Raises LanternError for an unknown option, or an unknown name of a method; needs no JAX."""
    for name in given:
        if name not in OPTIONS:
            near = errors.nearest(str(name), [*OPTIONS, *_OF_CALLS])
            advice = instead_of(name) or f"{near}choose from {', '.join(OPTIONS)}"
            raise LanternError(f"{errors.quoted(name)} is not an option: {advice}")
    method = given.get("method")
    if isinstance(method, str) and method.partition(":")[0] not in METHODS:
        raise errors.unknown("method", method.partition(":")[0], METHODS)


def instead_of(name: Any, said: str = "method ") -> str:
    """Says how to give a field of a method that was given as an option of its own; empty if no method has it."""
    for title in METHODS if isinstance(name, str) else ():
        if title != AUTO and any(name in allowed_in(type(part)) for part in vars(Method.of(title)).values()):
            return f"it is a field of methods, write {said}{title}:{name}=..."
    return ""


def steers(options: Mapping[str, Any]) -> bool:
    """Tells whether a call with these options says how it wants to be decoded."""
    named = options.get("method") not in (None, AUTO)
    return named or any(options.get(part) is not None for part in PARTS)
