"""From knobs to settings, and on to the values that a program is made of: what drafts, how randomness is shared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

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
from lantern_jax.settings.settings import Settings, resolve_settings


def settings_for(
    knobs: Mapping[str, Any],
    config: TargetConfig,
    drafters: Mapping[str, Any],
    defaults: Mapping[str, Any],
    codebook: Codebook | None,
    *,
    platform: str,
) -> Settings:
    """The settings that knobs make with a model; ValueError where they do not fit it.

    Args:
        config: the target's.
        drafters: configs of the model's drafters by kind.
        defaults: the model's, as in ``resolve_settings``.
        codebook: arrays or their shapes; None where there is none.
    """
    made = resolve_settings(
        knobs, defaults, platform=platform, vocab_size=config.num_codes, drafters=tuple(drafters)
    )
    check_codebook(made.rule_value(), codebook, config.num_codes)
    return made


def without_effect(knobs: Mapping[str, Any], settings: Settings) -> list[str]:
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
    return [f"{name} has no effect with {why}" for name, (why, so) in idle.items() if so and name in given]


def plain_job(config: TargetConfig, dtype: np.dtype, settings: Settings) -> Job:
    """Plain decoding with the same sampling distribution."""
    target = family_of(config).target(config, dtype)
    return Job(Program(target), settings.guidance, settings.sampling(config.num_codes))


def job(config: TargetConfig, drafters: Mapping[str, Any], dtype: np.dtype, settings: Settings) -> Job:
    """How a batch is decoded with these settings.

    Args:
        config: the target's.
        drafters: configs of the checkpoint's drafters by kind.
    """
    plain = plain_job(config, dtype, settings)
    target, kind = plain.program.target, settings.drafting
    if kind == "zipar" and not settings.is_plain:
        return Job(Program(target, rows=Rows(config.grid, settings.ahead)), plain.guidance, plain.sampling)
    if not settings.tree.max_depth:
        # Nothing is drafted, nothing to accept: one program, whatever the knobs of acceptance.
        return plain
    coupling, rule = _coupling(config, settings), settings.rule_value()
    if kind == "jacobi":
        drafting = drafting_of(_window(config, target, settings))
        return Job(Program(target, drafting, coupling), plain.guidance, plain.sampling, rule)
    name = next(name for name in DRAFTERS if name in drafters) if kind == "led" else kind
    taps = getattr(drafters[name], "taps", ())
    target = family_of(config).target(config, dtype, taps) if taps else target
    drafter, echo = DRAFTERS[name].make(drafters[name], dtype), _echo(settings)
    if kind == "led":
        drafting = led_window(drafter, _window(config, target, settings), settings.reach, echo)
    else:
        drafting = eagle(drafter, settings.tree, echo if settings.echo == "on" else None)
    return Job(Program(target, drafting, coupling), plain.guidance, plain.sampling, rule, name)


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
    """A window on the settings' tree; a row of the stream is one of the picture and its forced tokens."""
    redraw = None if settings.coupling == "gumbel" else settings.redraw
    return Window(config.num_codes, settings.tree, redraw, settings.initial, target.num_tokens // config.grid)
