"""From knobs to settings, and on to the values that a program is made of: what drafts, how randomness is shared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lantern_jax.decoding.acceptance import Codebook, check_codebook
from lantern_jax.decoding.couplings import COUPLINGS
from lantern_jax.decoding.program import Program
from lantern_jax.decoding.rules.table import RULES, rule_knobs
from lantern_jax.decoding.tree import DynamicTree
from lantern_jax.decoding.verification import Coupling
from lantern_jax.engine.jobs import Job
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.settings.draftings import DRAFTINGS, ROWS, WINDOW
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
    kind, rejects = DRAFTINGS[settings.drafting], settings.coupling != "gumbel"
    dynamic, windowed = isinstance(settings.tree, DynamicTree), kind.nodes == WINDOW
    other_drafting, other_rule = f"drafting {settings.drafting}", f"rule {settings.rule}"
    # Knob -> what makes it idle, and whether that is so.
    idle = dict.fromkeys(
        ("nodes", "depth", "frontier", "children", "ranking", "threshold"), ("a fixed tree", not dynamic)
    )
    idle["sharpness"] = "a tree that is not ranked by gap", not dynamic or settings.ranking != "gap"
    if windowed:
        idle |= dict.fromkeys(("window", "branches", "levels"), ("a tree of its own", "tree" in given))
        if "tree" not in given:
            idle |= {
                "branches": ("levels 0", settings.levels == 0),
                "levels": ("branches 1", settings.branches == 1),
            }
    idle |= {
        "mixture": ("echo off", "echo" in kind.reads and settings.echo == "off"),
        "initial": (other_drafting, kind.drafter != "" and settings.initial == "repeat"),
        "redraw": ("coupling gumbel", not rejects),
        "path": (f"coupling {settings.coupling}", rejects),
        "residual": ("rule strict", True) if rule.is_strict else ("coupling gumbel", not rejects),
    }
    # What only other draftings, or only other rules, have.
    every = {
        name for each in DRAFTINGS.values() for name in (*each.reads, *(knob.name for knob in each.knobs))
    }
    own = {*kind.reads, *(knob.name for knob in kind.knobs)}
    idle |= dict.fromkeys(every - own, (other_drafting, True))
    idle |= dict.fromkeys(
        set(rule_knobs()) - {knob.name for knob in RULES[settings.rule].knobs}, (other_rule, True)
    )
    if settings.is_plain:
        idle |= dict.fromkeys((*idle, *own, *rule_knobs(), "coupling", "rule"), ("plain decoding", True))
    elif kind.nodes == ROWS:
        idle |= dict.fromkeys({*idle, *rule_knobs(), "coupling", "rule"} - own, (other_drafting, True))
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
    plain, family, kind = plain_job(config, dtype, settings), family_of(config), DRAFTINGS[settings.drafting]
    if settings.is_plain:
        # Nothing is drafted, nothing to accept: one program, whatever the knobs of acceptance.
        return plain
    name = next((name for name in kind.drafters() if name in drafters), None)
    taps = getattr(drafters.get(name), "taps", ())
    target = family.target(config, dtype, taps) if taps else plain.program.target
    drafter = None if name is None else DRAFTERS[name].make(drafters[name], dtype)
    made = kind.make(settings, target, config.grid, drafter)
    if kind.nodes == ROWS:
        return Job(Program(target, rows=made), plain.guidance, plain.sampling)
    program = Program(target, made, _coupling(config, settings))
    return Job(program, plain.guidance, plain.sampling, settings.rule_value(), name)


def _coupling(config: TargetConfig, settings: Settings) -> Coupling:
    options: tuple[str, ...] = ()
    if settings.coupling == "gumbel":
        options = (settings.path,)
    elif settings.coupling == "rejection":
        published = settings.residual == "published"
        options = (family_of(config).published_residual(config) if published else settings.residual,)
    return COUPLINGS[settings.coupling].make(*options)
