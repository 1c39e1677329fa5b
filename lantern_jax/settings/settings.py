"""How to decode: every knob of a generation, declared once in ``Settings`` and checked before anything is computed.

The fields of ``Settings`` give each knob's type, default, range and help; checks, defaults, the command's flags and the
table in docs/settings.md follow from them. ``resolution`` turns given knobs into settings.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from lantern_jax.decoding.couplings import COUPLINGS
from lantern_jax.decoding.knobs import SHARPNESS, TEMPERATURE, THRESHOLD, TOP_K, TOP_P, Knob, knob, knob_of
from lantern_jax.decoding.methods import methods
from lantern_jax.decoding.names import INITIALS, PATHS, REDRAWS, RESIDUALS
from lantern_jax.decoding.rules.table import RULES, rule_knobs
from lantern_jax.decoding.tree import RANKINGS
from lantern_jax.io.plugins import Table
from lantern_jax.settings.draftings import DRAFTINGS, OWN, ROWS

# The command reads the knobs before it knows whether there is anything to compute: JAX is imported later.
if TYPE_CHECKING:
    from lantern_jax.decoding.acceptance import Rule
    from lantern_jax.decoding.sampling import SamplingParams


# Small trees win where a round is bound by arithmetic, large ones where it is bound by reading the weights. On two
# cores at LlamaGen-XL size a round takes as long as 1.7 plain steps with the chain, and 3.2 with mc_sim_7b_63.
_TREES = {"cpu": "chain", "gpu": "naive_extend_57", "tpu": "mc_sim_7b_63"}


def _of_rules(name: str) -> Any:
    """Returns the field for a knob that the table of rules declares."""
    return dataclasses.field(default=rule_knobs()[name].default, metadata={"knob": rule_knobs()[name]})


@dataclass(frozen=True)
class Settings:
    """The knobs of a generation, their values checked by ``resolution``.

    Attributes:
        drafting, rule, coupling: names, or the objects that were given: a ``Drafting`` or ``DraftingKind``, a ``Rule``,
            a ``Coupling``.
        own: (name, value) of the knobs of other packages' rules and draftings; each is an attribute too.

    Example:
        >>> settings = lantern_jax.load("demo").check("a lake", method="lantern-g", lam=3.0)
        >>> settings.rule, settings.coupling, settings.lam, settings.guidance
        ('lantern++', 'gumbel', 3.0, 3.0)
    """

    method: str | None = knob(
        None,
        "a named combination of the other knobs, each of which may be given too; `lantern methods` lists them",
        choices=tuple(methods()),
    )
    guidance: float = knob(4.0, "classifier-free guidance scale", "F", low=0, note="1 turns it off")
    temperature: float = knob(1.0, "how flat the sampling distribution is made", "F", **TEMPERATURE)
    top_k: int = knob(0, "sample from the K most probable codes", "K", **TOP_K)
    top_p: float = knob(1.0, "sample from the most probable codes of mass P", "P", **TOP_P)
    drafting: Any = knob(  # noqa: RUF009
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
    nodes: int = knob(
        25, "nodes of a dynamic tree, or of the best window known for that number, the root not counted", "N",
        low=1, high=4096,
    )  # fmt: skip
    depth: int = knob(8, "levels of a dynamic tree", "D", low=1, high=64)
    frontier: int = knob(8, "nodes of a level that a dynamic tree expands", "F", low=1, high=256)
    children: int = knob(6, "children of a node that a dynamic tree drafts", "C", low=1, high=256)
    ranking: str = knob("gap", "what a node of a dynamic tree is worth; gap needs gumbel", choices=RANKINGS)
    sharpness: float = knob(2.0, "beta of ranking gap, and of led's gap trees", "B", **SHARPNESS)
    threshold: float = knob(
        0.0, "worth of a level under which a dynamic tree gets no deeper", "T", **THRESHOLD
    )
    echo: str = knob("off", "mix what the target said of refused nodes into the draft", choices=("off", "on"))
    mixture: Any = knob(  # noqa: RUF009
        None,
        "a and b of echo and led for old nodes that agree in position, token, parent, grandparent too",
        "A,B,A,B,A,B,A,B",
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
    refine: int = knob(
        3, "passes of led's drafter over the whole window", "K", high=64, by_platform={"cpu": 1, "gpu": 3},
    )  # fmt: skip
    ahead: int = knob(8, "codes that a row is ahead of the next one, with zipar", "S", low=1)
    guesses: int = knob(
        0, "codes guessed in each row, with zipar; no token changes", "N", high=64, by_platform={"cpu": 0, "gpu": 7},
    )  # fmt: skip
    rule: Any = knob("strict", "acceptance rule", choices=RULES)  # noqa: RUF009
    k: int = _of_rules("k")
    delta: float = _of_rules("delta")
    lam: float = _of_rules("lam")
    tau: float = _of_rules("tau")
    ratio: float = _of_rules("ratio")
    omega: float = _of_rules("omega")
    epsilon: float = _of_rules("epsilon")
    samples: int = _of_rules("samples")
    coupling: Any = knob(  # noqa: RUF009
        "gumbel", "how drafts and target share randomness", choices=COUPLINGS
    )
    path: str = knob("longest", "which accepted path is taken, with gumbel", choices=PATHS)
    residual: str = knob(
        "exact", "what is left of the target after a refusal, with rejection", choices=RESIDUALS[:2],
        note="published relaxes even at delta 0 or lam 1 where neighbours are filtered out",
    )  # fmt: skip
    batch: int = knob(8, "pictures decoded together", "B", low=1)
    own: tuple[tuple[str, Any], ...] = ()

    # Type checkers know only the names above.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Returns a knob of another package's rule or drafting."""
            if name in dict(self.own):
                return dict(self.own)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted: each pass gives one token."""
        return not self.tree.max_depth and DRAFTINGS[self.drafting].nodes not in (ROWS, OWN)

    @property
    def is_own(self) -> bool:
        """Whether the rule, the drafting or the coupling was given as an object instead of a name."""
        return not all(isinstance(value, str) for value in (self.rule, self.drafting, self.coupling))

    @property
    def keeps_tokens(self) -> bool:
        """Whether any guesses give plain decoding's tokens with these settings."""
        return self.rule == "strict" and self.coupling == "gumbel" and DRAFTINGS[self.drafting].nodes != ROWS

    def sampling(self, vocab_size: int | None = None) -> "SamplingParams":
        """Returns the sampling distribution's knobs as the decoding loops take them."""
        from lantern_jax.decoding.sampling import SamplingParams

        return SamplingParams.create(self.temperature, self.top_k, self.top_p, vocab_size)

    def rule_value(self) -> "Rule":
        """Returns the acceptance rule as the decoding loops take it."""
        from lantern_jax.decoding.rules.names import rule_from_name

        kind = RULES[self.rule]
        if not isinstance(self.rule, str):
            return kind.make()
        return rule_from_name(self.rule, **{knob.name: getattr(self, knob.name) for knob in kind.knobs})


class Knobs(TypedDict, total=False):
    """The knobs as keyword arguments, for type checkers; None means the default. ``Settings`` describes them.

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
    drafting: Any
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
    refine: int | None
    ahead: int | None
    guesses: int | None
    rule: Any
    k: int | None
    delta: float | None
    lam: float | None
    tau: float | None
    ratio: float | None
    omega: float | None
    epsilon: float | None
    samples: int | None
    coupling: Any
    path: str | None
    residual: str | None
    batch: int | None


OURS = {field.name: knob_of(field) for field in dataclasses.fields(Settings) if field.name != "own"}


def _known() -> dict[str, Knob]:
    """Returns the knobs of ``Settings``, and those of other packages' rules and draftings."""
    others = rule_knobs() | {knob.name: knob for kind in DRAFTINGS.values() for knob in kind.knobs}
    return OURS | {name: knob for name, knob in others.items() if name not in OURS}


KNOBS: Table[Knob] = Table("setting", {}, beside=_known)


def settings_json(settings: Settings) -> dict[str, Any]:
    """Returns the knobs as plain values, without the batch, which decides how fast pictures are made but not which."""
    values = {name: getattr(settings, name) for name in OURS if name != "batch"} | dict(settings.own)
    values["tree"] = dataclasses.asdict(settings.tree)
    return json.loads(json.dumps(values, default=repr))
