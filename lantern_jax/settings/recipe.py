"""What a model decodes with: from knobs to settings, and on to the values that a program is made of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.acceptance import Codebook, check_codebook
from lantern_jax.decoding.block import Block
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.jacobi import Window, drafting_of
from lantern_jax.decoding.drafting.led import led_window
from lantern_jax.decoding.echo import Echo
from lantern_jax.decoding.gumbel import Gumbel
from lantern_jax.decoding.program import Program
from lantern_jax.decoding.protocols import Target
from lantern_jax.decoding.rejection import Rejection
from lantern_jax.decoding.tree import DynamicTree
from lantern_jax.decoding.verification import Coupling
from lantern_jax.decoding.zipar import Rows
from lantern_jax.engine.jobs import Job
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.models.drafters import DRAFTERS
from lantern_jax.settings.settings import KNOBS, Settings, for_platform, resolve_settings


@dataclass(frozen=True)
class Recipe:
    """What a checkpoint, or a model with random weights, decodes with.

    Attributes:
        config: the target's.
        drafters: configs of the drafters by kind.
        dtype: of parameters and matrix products.
        defaults: the model's defaults of knobs, as in ``resolve_settings``.
        codebook: for relaxed rules: arrays or their shapes; None where there is none.
    """

    config: TargetConfig
    drafters: Mapping[str, Any]
    dtype: np.dtype
    defaults: Mapping[str, Any] = field(default_factory=dict)
    codebook: Codebook | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint, dtype: Any) -> "Recipe":
        """Returns a checkpoint's recipe."""
        drafters = {kind: config for kind, (config, _) in checkpoint.drafters.items()}
        return cls(
            checkpoint.target_config, drafters, np.dtype(dtype), checkpoint.defaults, checkpoint.codebook
        )

    def settings(self, knobs: Mapping[str, Any], platform: str | None = None) -> Settings:
        """Returns the settings that these knobs make with this model; ``platform`` None is this process's.

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
        check_codebook(made.rule_value(), self.codebook, self.config.num_codes)
        return made

    def values(self, knobs: Mapping[str, Any], names: Iterable[str], platform: str) -> dict[str, Any]:
        """Returns the values of knobs that no method fixes, without resolving all others.

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

    def job(self, settings: Settings, plain: bool = False) -> Job:
        """Returns how a batch is decoded with these settings; ``plain``: without drafts, by the same distribution."""
        target, kind = self.target(), settings.drafting
        alone = Job(Program(target), settings.guidance, settings.sampling(self.config.num_codes))
        if plain:
            return alone
        if kind == "zipar" and not settings.is_plain:
            return Job(
                Program(target, rows=Rows(self.config.grid, settings.ahead)), alone.guidance, alone.sampling
            )
        if not settings.tree.max_depth:
            # Nothing is drafted, nothing to accept: one program whatever the knobs of acceptance.
            return alone
        coupling, rule = _coupling(self.config, settings), settings.rule_value()
        if kind == "jacobi":
            drafting = drafting_of(_window(self.config, target, settings))
            return Job(Program(target, drafting, coupling), alone.guidance, alone.sampling, rule)
        name = next(name for name in DRAFTERS if name in self.drafters) if kind == "led" else kind
        target, echo = self.target(name), _echo(settings)
        drafter = DRAFTERS[name].make(self.drafters[name], self.dtype)
        if kind == "led":
            drafting = led_window(drafter, _window(self.config, target, settings), settings.reach, echo)
        else:
            drafting = eagle(drafter, settings.tree, echo if settings.echo == "on" else None)
        return Job(Program(target, drafting, coupling), alone.guidance, alone.sampling, rule, name)


def without_effect(knobs: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """Lists the given knobs that change nothing beside the others, each with what makes them idle.

    Args:
        knobs: as they were given, None for those left out.
        settings: what they made.
    """
    given, rule = {name for name, value in knobs.items() if value is not None}, settings.rule_value()
    kind, rejects = settings.drafting, settings.coupling != "gumbel"
    dynamic, windowed = isinstance(settings.tree, DynamicTree), kind in ("led", "jacobi")
    # Knob -> what makes it idle, and whether that is so.
    idle = dict.fromkeys(
        ("nodes", "depth", "frontier", "children", "ranking", "threshold"), ("a fixed tree", not dynamic)
    )
    idle |= dict.fromkeys(
        ("window", "branches", "levels"),
        (f"drafting {kind}", True) if not windowed else ("a tree of its own", "tree" in given),
    )
    if windowed and "tree" not in given:
        idle |= {
            "branches": ("levels 0", settings.levels == 0),
            "levels": ("branches 1", settings.branches == 1),
        }
    idle |= dict.fromkeys(
        ("k", "delta", "lam", "tau", "ratio", "omega", "epsilon", "samples"), (f"rule {settings.rule}", True)
    )
    idle |= dict.fromkeys(rule.knobs, ("", False))
    idle |= {
        "sharpness": ("a tree that is not ranked by gap", not dynamic or settings.ranking != "gap"),
        "echo": (f"drafting {kind}", windowed),
        "mixture": ("echo off", kind != "led" and (windowed or settings.echo == "off")),
        "initial": (f"drafting {kind}", not windowed or (kind == "led" and settings.initial == "repeat")),
        "redraw": (f"drafting {kind}", True) if kind != "jacobi" else ("coupling gumbel", not rejects),
        "reach": (f"drafting {kind}", kind != "led"),
        "ahead": (f"drafting {kind}", kind != "zipar"),
        "path": (f"coupling {settings.coupling}", rejects),
        "residual": ("rule strict", True) if rule.is_strict else ("coupling gumbel", not rejects),
    }
    if settings.is_plain:
        idle |= dict.fromkeys((*idle, "coupling", "rule"), ("plain decoding", True))
    elif kind == "zipar":
        idle |= dict.fromkeys({*idle, "coupling", "rule"} - {"ahead"}, ("drafting zipar", True))
    if settings.temperature == 0:
        idle |= dict.fromkeys(("top_k", "top_p", "path"), ("temperature 0", True))
    return tuple(
        f"{name} has no effect with {why}" for name, (why, so) in idle.items() if so and name in given
    )


def _echo(settings: Settings) -> Echo:
    mixture = settings.mixture
    return Echo() if mixture is None else Echo(mixture[:2], mixture[2:4], mixture[4:])


def _coupling(config: TargetConfig, settings: Settings) -> Coupling:
    if settings.coupling == "block":
        return Block()
    if settings.coupling == "gumbel":
        return Gumbel(settings.path)
    published = settings.residual == "published"
    return Rejection(family_of(config).published_residual(config) if published else settings.residual)


def _window(config: TargetConfig, target: Target, settings: Settings) -> Window:
    """Returns a window on the settings' tree; a row of the stream is one of the picture and its forced tokens."""
    redraw = None if settings.coupling == "gumbel" else settings.redraw
    return Window(config.num_codes, settings.tree, redraw, settings.initial, target.num_tokens // config.grid)
