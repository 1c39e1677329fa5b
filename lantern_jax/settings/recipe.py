"""What a model decodes with: from knobs to settings, and on to the values that a program is made from."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from lantern_jax.checkpoints.checkpoint import TOKENS_PER_PASS, Checkpoint
from lantern_jax.decoding.acceptance import Codebook, check_codebook
from lantern_jax.decoding.couplings import COUPLINGS, base_of
from lantern_jax.decoding.gap_tree import GapTree
from lantern_jax.decoding.program import Program
from lantern_jax.decoding.protocols import Target
from lantern_jax.decoding.rules.own import try_rule
from lantern_jax.decoding.rules.table import RULES, rule_knobs
from lantern_jax.decoding.tree import DynamicTree
from lantern_jax.decoding.verification import Coupling
from lantern_jax.devices.partition import outside_mesh
from lantern_jax.engine.jobs import Job
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.io.plugins import called
from lantern_jax.models.sizes import shape_of
from lantern_jax.settings import auto
from lantern_jax.settings.auto import Expected
from lantern_jax.settings.draftings import DRAFTINGS, ROWS, WINDOW
from lantern_jax.settings.resolution import for_platform, resolve_settings
from lantern_jax.settings.settings import KNOBS, Settings

# Settings that no program depends on: they are read when it runs, or are part of a rule.
_SWEPT = {"method": None, "guidance": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "batch": 1} | {
    name: knob.default for name, knob in rule_knobs().items()
}
# Tokens per pass that a drafter of the model exceeds by far, and the fewest passes that show it.
_IDLE, _SEEN = 1.2, 100


@dataclass(frozen=True)
class Recipe:
    """What a checkpoint, or a model with random weights, decodes with.

    Attributes:
        config: the target's config.
        drafters: configs of the drafters by kind.
        dtype: dtype of parameters and matrix products.
        defaults: the model's defaults for knobs, as in ``resolve_settings``.
        codebook: for relaxed rules: arrays or their shapes; None where there is none.
        tokens: the model's tokens per pass by guesses, as ``choose`` takes them.
    """

    config: TargetConfig
    drafters: Mapping[str, Any]
    dtype: np.dtype
    defaults: Mapping[str, Any] = field(default_factory=dict)
    codebook: Codebook | None = None
    tokens: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint, dtype: Any) -> "Recipe":
        """Returns a checkpoint's recipe."""
        drafters = {kind: config for kind, (config, _) in checkpoint.drafters.items()}
        return cls(
            checkpoint.target_config, drafters, np.dtype(dtype), checkpoint.defaults, checkpoint.codebook,
            checkpoint.metadata.get(TOKENS_PER_PASS, {}),
        )  # fmt: skip

    def settings(self, knobs: Mapping[str, Any], platform: str | None = None) -> Settings:
        """Returns the settings that these knobs make with this model; ``platform`` None means this process's.

        Raises:
            LanternError: knobs that do not fit the model or each other.
        """
        made = resolve_settings(
            knobs,
            self.defaults,
            platform=platform or jax.default_backend(),
            vocab_size=self.config.num_codes,
            drafters=tuple(self.drafters),
        )
        rule = made.rule_value()
        if not isinstance(made.rule, str):
            try_rule(rule, _coupling(self.config, made), self.codebook, self.config.num_codes)
        check_codebook(rule, self.codebook, self.config.num_codes)
        return made

    def choice(
        self, settings: Settings, pictures: int, platform: str, groups: int
    ) -> tuple[Expected, list[Expected]]:
        """Returns what ``auto`` chooses, and from what (``choose``), for a call with these settings.

        Args:
            groups: of devices that share a batch.
        """
        # A CPU's devices share its cores.
        together = min(settings.batch, pictures) / (1 if platform == "cpu" else groups)
        sequences = math.ceil(together) * (1 if settings.guidance == 1 else 2)
        return auto.choose(platform, self.dtype.itemsize, sequences, self.tokens, bool(self.drafters))

    def values(self, knobs: Mapping[str, Any], names: Iterable[str], platform: str) -> dict[str, Any]:
        """Returns the values of knobs that no method fixes, without resolving the others.

        Raises:
            LanternError: a value that is not valid.
        """
        made = {}
        for name in names:
            default = for_platform(self.defaults.get(name, KNOBS[name].default), platform)
            made[name] = default if knobs.get(name) is None else knobs[name]
            KNOBS[name].check(made[name])
        return made

    def target(self, drafter: str | None = None) -> Target:
        """Returns the target, with the features that a kind of drafter reads."""
        taps = getattr(self.drafters.get(drafter), "taps", ())
        return family_of(self.config).target(self.config, self.dtype, *((taps,) if taps else ()))

    @outside_mesh()
    def job(self, settings: Settings, plain: bool = False) -> Job:
        """Returns the job that decodes a batch with these settings; ``plain``: no drafts, the same distribution."""
        guidance, sampling = settings.guidance, settings.sampling(self.config.num_codes)
        if plain or settings.is_plain:
            # Nothing is drafted, so there is nothing to accept: all acceptance knobs share one program.
            program = Program(self.target())
            return Job(program, guidance, sampling, made_from=(self._text(), program))
        kind = DRAFTINGS[settings.drafting]
        name = next((name for name in kind.drafters() if name in self.drafters), None)
        target = self.target(name)
        drafter = None if name is None else DRAFTERS[name].make(self.drafters[name], self.dtype)
        made = kind.make(settings, target, shape_of(self.config)[1], drafter)
        if kind.nodes == ROWS:
            program, accepts = Program(target, rows=made), ()
        else:
            program = Program(target, made, _coupling(self.config, settings))
            accepts = settings.rule_value(), name, settings.is_own
        made_from = None if settings.is_own else (self._text(settings), program)
        return Job(program, guidance, sampling, *accepts, made_from=made_from)

    def _text(self, settings: Settings | None = None) -> str:
        """Describes all that a program is made from; ``settings``: of guesses, without those that can be swept."""
        same = None if settings is None else dataclasses.replace(settings, **_SWEPT)
        return repr((self.config, self.drafters, self.dtype, same))


def without_effect(knobs: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """Lists the given knobs that have no effect next to the others, each with the reason.

    Args:
        knobs: as they were given, None for those left out.
        settings: the settings made from them.
    """
    given, rule = {name for name, value in knobs.items() if value is not None}, settings.rule_value()
    kind, rejects = DRAFTINGS[settings.drafting], base_of(settings.coupling) != "gumbel"
    dynamic, windowed = isinstance(settings.tree, DynamicTree), kind.nodes == WINDOW
    gaps = isinstance(settings.tree, GapTree) or (dynamic and settings.ranking == "gap")
    other_drafting, other_rule = f"drafting {called(settings.drafting)}", f"rule {called(settings.rule)}"
    coupling, given_whole = f"coupling {called(settings.coupling)}", not isinstance(settings.coupling, str)
    # Knob -> what makes it idle, and whether that is so.
    idle = dict.fromkeys(
        ("nodes", "depth", "frontier", "children", "ranking", "threshold"), ("a fixed tree", not dynamic)
    )
    idle["sharpness"] = "a tree that is not ranked by gap", not gaps
    if windowed:
        idle |= dict.fromkeys(
            ("window", "branches", "levels", "nodes"), ("a tree of its own", "tree" in given)
        )
        if "tree" not in given:
            idle |= {
                "branches": ("levels 0", settings.levels == 0),
                "levels": ("branches 1", settings.branches == 1),
                "nodes": (
                    "a window" if not kind.by_gaps else "branches and levels",
                    "window" in given and (not kind.by_gaps or bool(given & {"branches", "levels"})),
                ),
            }
    idle |= {
        "mixture": ("echo off", "echo" in kind.reads and settings.echo == "off"),
        "initial": (other_drafting, kind.drafter != "" and settings.initial == "repeat"),
        "redraw": (coupling, not rejects),
        "path": (coupling, rejects or given_whole),
        "residual": ("rule strict", True) if rule.is_strict else (coupling, given_whole or not rejects),
    }
    # Knobs that only other draftings, or only other rules, have.
    every = {
        name for each in DRAFTINGS.values() for name in (*each.reads, *(knob.name for knob in each.knobs))
    }
    own = {*kind.reads, *(knob.name for knob in kind.knobs)}
    idle |= dict.fromkeys(every - own, (other_drafting, True))
    idle |= dict.fromkeys(
        set(rule_knobs()) - {knob.name for knob in RULES[settings.rule].knobs}, (other_rule, True)
    )
    if settings.is_plain:
        idle |= dict.fromkeys(
            (*idle, *own, *rule_knobs(), "coupling", "rule", "drafting"), ("plain decoding", True)
        )
    elif kind.nodes == ROWS:
        idle |= dict.fromkeys({*idle, *rule_knobs(), "coupling", "rule"} - own, (other_drafting, True))
    if settings.temperature == 0:
        idle |= dict.fromkeys(("top_k", "top_p", "path"), ("temperature 0", True))
    return tuple(
        f"{name} has no effect with {why}" for name, (why, so) in idle.items() if so and name in given
    )


def weak_drafter(settings: Settings, tokens_a_pass: float, passes: float) -> str | None:
    """Returns advice where a drafter guesses nearly nothing, as one of another model does; else None."""
    drafts = not settings.is_plain and DRAFTINGS[settings.drafting].drafters()
    if not drafts or passes < _SEEN or tokens_a_pass >= _IDLE:
        return None
    return (
        f"its drafter guesses nearly nothing, {tokens_a_pass:.2f} tokens per pass: check that it was made for this "
        "model, or take a method without one, such as jacobi"
    )


def _coupling(config: TargetConfig, settings: Settings) -> Coupling:
    """Makes the coupling that the settings name, with its own knob; returns one that was given as it is."""
    options: tuple[str, ...] = ()
    if settings.coupling == "gumbel":
        options = (settings.path,)
    elif settings.coupling == "rejection":
        published = settings.residual == "published"
        options = (family_of(config).published_residual(config) if published else settings.residual,)
    return COUPLINGS[settings.coupling].make(*options)
