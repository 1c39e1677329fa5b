"""Methods: a way of guessing, a rule and a coupling, joined; and the field's methods by name.

Needs JAX only when a method is made from its text.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lantern_jax.decoding import fields
from lantern_jax.decoding.choices import COUPLINGS, DRAFTINGS, RULES, coupling_name, split, with_fields
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# The method of a call that names none, and of one that names a drafting or a coupling.
AUTO, TREES_METHOD = "auto", "gumbel"
# The parts of a method.
TABLES = {"drafting": DRAFTINGS, "rule": RULES, "coupling": COUPLINGS}


class Named(NamedTuple):
    """A method of the field: its idea and promise in a line, its parts as text, and its papers on arXiv."""

    help: str
    drafting: str = "tree"
    rule: str = "strict"
    coupling: str = "gumbel"
    papers: str = ""

    @property
    def parts(self) -> tuple[str, str, str]:
        return self.drafting, self.rule, self.coupling


METHODS: Mapping[str, Named] = {
    AUTO: Named("plain decoding, jacobi or led, whichever should be fastest here"),
    "ar": Named("plain autoregressive decoding, a token per pass", "plain"),
    "gumbel": Named("noise shared by drafter and target: exactly plain decoding's tokens (in float32)"),
    "led": Named(
        "the target's latest predictions, refined by a drafter: plain decoding's tokens", "led"
    ),
    "echo": Named(
        "gumbel, with trees grown by the gaps of the race and memory of refused nodes",
        "dynamic:nodes=25,frontier=8,children=6,ranking=gap,echo=on",
    ),
    "jacobi": Named(
        "no drafter: the target's latest predictions on shared noise, plain decoding's tokens", "jacobi"
    ),
    "lantern-g": Named("LANTERN++'s rule on shared noise", rule="lantern++"),
    "near": Named("a code stands in for one within tau of it, on shared noise", rule="near"),
    "eagle": Named(
        "EAGLE's accept tests with residuals on a static tree: the target's own distribution",
        coupling="rejection", papers="2401.15077",
    ),
    "eagle2": Named(
        "EAGLE-2: a tree grown by the drafter's probabilities, tokens tested as point masses",
        "dynamic:depth=6", coupling="rejection", papers="2406.16858",
    ),
    "ddd": Named(
        "EAGLE-2 with a depth that follows the drafter's confidence",
        "dynamic:depth=11,threshold=0.05", coupling="rejection", papers="2409.00142",
    ),
    "eagle3": Named(
        "EAGLE-3: a drafter of several layers' features, trained on tokens",
        "tree:drafter=eagle3", coupling="rejection", papers="2503.01840",
    ),
    "lantern": Named(
        "LANTERN as published: EAGLE-2's tree, neighbours of a code lend it up to delta",
        "dynamic:depth=5", "lantern", "rejection:residual=published", papers="2410.03355",
    ),
    "lantern++": Named(
        "LANTERN++: a static tree, neighbours lend up to lam - 1 times a code's own probability",
        rule="lantern++", coupling="rejection", papers="2502.06352",
    ),
    "medusa": Named(
        "Medusa: heads on the target's feature, and every typical code is accepted",
        "tree:drafter=medusa,tree=chain|medusa_2_7b_63", "typical", papers="2401.10774",
    ),
    "vadusa": Named(
        "VADUSA: Medusa's heads, and a tolerance of several samples of the target",
        "tree:drafter=medusa,tree=chain|medusa_2_7b_63", "tolerance", papers="2410.21951",
    ),
    "parallelspec": Named(
        "ParallelSpec: all levels of the tree from one pass of the drafter",
        "tree:drafter=parallel", coupling="rejection", papers="2410.05589, 2602.01469",
    ),
    "cool": Named(
        "Cool-SD: early drafts relaxed, late ones tightened, with the optimal residual",
        "tree:tree=chain", "cool", "rejection", papers="2601.09212",
    ),
    "block": Named(
        "block verification: a chain is tested as a whole, the target's own distribution",
        "tree:tree=chain", coupling="block", papers="2403.10444",
    ),
    "sjd": Named(
        "speculative Jacobi decoding: independent redraws, the target's own distribution",
        "jacobi:window=16,redraw=independent,initial=random", coupling="rejection", papers="2410.01699",
    ),
    "scd": Named(
        "coupled Jacobi: a guess stays unless the target moved, the target's own distribution",
        "jacobi:window=16|32", coupling="rejection", papers="2510.24211",
    ),
    "gsd": Named(
        "grouped decoding: SJD's window, a code is tested with codes of similar probability",
        "jacobi:window=16,redraw=independent,initial=random", "gsd", "rejection", papers="2508.07747",
    ),
    "pac": Named(
        "SJD-PAC: several guesses in front of a coupled window, the target's own distribution",
        "jacobi:window=16|32,branches=3,levels=2", coupling="rejection", papers="2603.18599",
    ),
    "zipar": Named(
        "ZipAR: rows of the picture in parallel; not lossless", "zipar", papers="2412.04062",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A way of decoding. Each part is a record, or its text.

    Attributes:
        drafting: where guesses come from: ``Plain``, ``Tree``, ``Dynamic``, ``Led``, ``Jacobi``, ``ZipAR``, or a
            ``Drafting`` of one's own.
        rule: what is accepted: ``Strict``, ``Lantern``, ``LanternPlusPlus``, ``Near`` or another ``Rule``.
        coupling: how draft and target share randomness: ``Gumbel``, ``Rejection`` or ``Block``, or one of one's own.

    Raises:
        LanternError: a text or an object that is none of these.

    Example:
        >>> method = lantern_jax.Method(lantern_jax.draftings.Led(nodes=25), rule=lantern_jax.rules.Near(tau=1.0))
        >>> str(method), method == lantern_jax.Method("led:nodes=25", "near:tau=1")
        ('led:nodes=25 near:tau=1 gumbel', True)
    """

    drafting: Any
    rule: Any = "strict"
    coupling: Any = "gumbel"

    def __post_init__(self):
        from lantern_jax.decoding.drafting.guessing import Given
        from lantern_jax.decoding.protocols import Drafting

        if isinstance(self.drafting, Drafting):
            object.__setattr__(self, "drafting", Given(self.drafting))
        for name, table in TABLES.items():
            object.__setattr__(self, name, table.checked(getattr(self, name)))

    def __str__(self) -> str:
        return " ".join(self.texts.values())

    @property
    def texts(self) -> dict[str, str]:
        """Its parts as text, by name."""
        return {name: table.text(getattr(self, name)) for name, table in TABLES.items()}

    @property
    def is_own(self) -> bool:
        """Whether a part is of no class with a name."""
        return not all(table.name_of(getattr(self, name)) for name, table in TABLES.items())

    @classmethod
    def of(cls, method: Any, **parts: Any) -> "Method":
        """Returns a method from its text or itself, with those of its parts replaced that are not None.

        Its text is a name of ``METHODS`` and fields of its parts: ``led:nodes=25``.

        Raises:
            LanternError: an unknown name or field, or a value that it may not hold.
        """
        if isinstance(method, str):
            name, given = split(method, "method")
            if name == AUTO:
                raise LanternError(
                    "method auto stands for others, which a call chooses: name one of those here"
                )
            if name not in METHODS:
                raise errors.unknown("method", name, METHODS)
            records = list(vars(cls(*METHODS[name].parts)).values())
            method = cls(*with_fields(f"method {name}", records, given))
        if not isinstance(method, cls):
            raise errors.unknown("method", method, METHODS)
        return dataclasses.replace(method, **{name: part for name, part in parts.items() if part is not None})

    def settled(
        self, platform: str, fitted: dict[str, Any], vocab_size: int, drafters: tuple[str, ...]
    ) -> "Method":
        """Returns the method with a value in every field, after its parts are checked against each other.

        Args:
            platform: cpu, gpu or tpu.
            fitted: the checkpoint's values of fields that are fitted to its drafter.
            vocab_size: V.
            drafters: kinds of drafters that the checkpoint has, the usual one first.

        Raises:
            LanternError: parts that do not fit each other or the model.
        """
        drafting = self.drafting.settled(platform, fitted).with_drafter(drafters)
        rule, made = (fields.settled(part, platform, {}) for part in (self.rule, self.coupling))
        coupling = coupling_name(made)
        for what, part in (("drafting", drafting), ("rule", rule)):
            if part.couplings and coupling and coupling not in part.couplings:
                raise LanternError(
                    f"{what} {self.texts[what]} needs the coupling {' or '.join(part.couplings)}: "
                    f"it does not go with {coupling}"
                )
        tree = drafting.tree
        if tree.max_rank >= vocab_size:
            raise LanternError(
                f"the tree asks for child rank {tree.max_rank} of {vocab_size} codes: choose a narrower one"
            )
        if getattr(tree, "ranking", "") == "gap" and coupling != "gumbel":
            raise LanternError("ranking gap needs the coupling gumbel: give ranking probability")
        if coupling == "rejection" and tree.is_static and tree.has_rank_gaps:
            raise LanternError(
                "the rejection coupling needs a tree without gaps in child ranks: use ranks 0, 1, 2, ..."
            )
        if coupling == "block" and drafting.verifies and not (tree.is_static and tree.is_chain):
            raise LanternError("the coupling block needs a chain: give tree chain")
        if getattr(drafting, "redraw", None) not in (None, "independent") and coupling == "block":
            raise LanternError(
                f"the coupling block reads the guesses that redraw {drafting.redraw} keeps: give redraw independent"
            )
        return Method(drafting, rule, made)
