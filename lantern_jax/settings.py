"""How to decode: every knob of a generation with its default, checked before anything is computed.

A default comes from the checkpoint where it has one, else from ``Settings``. A checkpoint's default may depend
on the platform: ``{"cpu": ..., "gpu": ...}``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from lantern_jax.decoding.acceptance import Rule, rule_from_name
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree, load_tree, named_tree, tree_names
from lantern_jax.decoding.verification import COUPLINGS, PATHS, RESIDUALS

PLATFORMS = ("cpu", "gpu", "tpu")
NO_TREE = "none"


@dataclass(frozen=True)
class Settings:
    """The knobs of a generation.

    Attributes:
        guidance: classifier-free guidance scale, >= 0; 1 is off and halves the work.
        temperature, top_k, top_p: the sampling distribution, see ``SamplingParams``.
        tree: the draft tree: a shipped name, "none" (plain decoding), a JSON file, a DraftTree or its paths.
        rule: strict, lantern (k, delta) or lantern++ (k, lam).
        coupling, path, residual: see ``verify_tree``.
        batch: sequences decoded at once.
    """

    guidance: float = 4.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    tree: Any = None
    rule: str = "strict"
    k: int = 10
    delta: float = 0.05
    lam: float = 2.0
    coupling: str = "gumbel"
    path: str = "longest"
    residual: str = "exact"
    batch: int = 8

    def sampling(self) -> SamplingParams:
        """The traced knobs of the sampling distribution."""
        return SamplingParams.create(self.temperature, self.top_k, self.top_p)

    def acceptance(self) -> Rule:
        """The acceptance rule."""
        return rule_from_name(self.rule, self.k, self.delta, self.lam)


KNOBS = tuple(field.name for field in fields(Settings))
# Small trees win where a round is bound by arithmetic, large ones where it is bound by reading the weights. On two
# cores at LlamaGen-XL size a round with the chain takes as long as 1.7 plain steps, one with mc_sim_7b_63 as 3.2.
_PLATFORM_DEFAULTS = {"tree": {"cpu": "chain", "gpu": "naive_extend_57", "tpu": "naive_extend_57"}}


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
        ValueError: an unknown knob or name, a value out of range, a tree that is not valid or cannot be used.
    """
    for source, names in (("", given), ("the checkpoint's default ", defaults)):
        unknown = sorted(set(names) - set(KNOBS))
        if unknown:
            raise ValueError(f"{source}{unknown[0]!r} is not a setting: choose from {', '.join(KNOBS)}")
    values = {}
    for name in KNOBS:
        default = defaults.get(name, _PLATFORM_DEFAULTS.get(name, getattr(Settings, name)))
        value = given.get(name)
        values[name] = for_platform(default, platform) if value is None else value
    if given.get("tree") is None and not has_drafter:
        values["tree"] = NO_TREE
    if given.get("k") is None and isinstance(values["k"], int):
        values["k"] = min(values["k"], vocab_size - 1)
    tree = resolve_tree(values["tree"])
    settings = Settings(**values | {"tree": tree})
    _check(settings, vocab_size)
    if tree.max_depth and not has_drafter:
        raise ValueError("this checkpoint has no drafter: decode plainly (tree none), or convert one with it")
    if tree.max_rank >= vocab_size:
        raise ValueError(
            f"the tree asks for child rank {tree.max_rank} of {vocab_size} codes: choose a narrower one"
        )
    if settings.coupling == "rejection" and tree.has_rank_gaps:
        raise ValueError(
            "the rejection coupling needs a tree without gaps in child ranks: use ranks 0, 1, 2, ..."
        )
    return settings


def for_platform(value: Any, platform: str) -> Any:
    """The entry of ``platform`` where a default differs by platform, else the value itself."""
    if isinstance(value, Mapping):
        return value.get(platform, value.get("gpu" if platform == "tpu" else "cpu"))
    return value


def resolve_tree(tree: Any) -> DraftTree:
    """A DraftTree from a name, "none", a JSON file, paths or a DraftTree.

    Raises:
        ValueError: an unknown name, an unreadable file, or paths that are not a tree.
    """
    if isinstance(tree, DraftTree):
        return tree
    if isinstance(tree, Path):
        return load_tree(tree)
    if not isinstance(tree, str):
        return DraftTree.from_paths(tree)
    if tree == NO_TREE:
        return DraftTree.empty()
    if tree in tree_names():
        return named_tree(tree)
    if tree.endswith(".json") or Path(tree).is_file():
        return load_tree(tree)
    names = ", ".join((*tree_names(), NO_TREE))
    raise ValueError(f"unknown tree {tree!r}: choose one of {names}, or give a JSON file of child-rank paths")


def check_count(name: str, value: Any) -> int:
    """A whole number >= 1, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} {value!r} is not valid: give a whole number >= 1")
    return int(value)


def check_seed(seed: Any) -> int:
    """A whole number from 0 to 2**32 - 1, or ValueError."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ValueError(f"seed {seed!r} is not valid: give a whole number from 0 to {2**32 - 1}")
    return int(seed)


def _check(settings: Settings, vocab_size: int) -> None:
    for name in ("guidance", "temperature", "top_k", "top_p", "k", "delta", "lam"):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise ValueError(f"{name} {value!r} is not valid: give a number")
        if name in ("top_k", "k") and not isinstance(value, int | np.integer):
            raise ValueError(f"{name} {value!r} is not valid: give a whole number >= 0")
    if not (math.isfinite(settings.guidance) and settings.guidance >= 0):
        raise ValueError(
            f"guidance {settings.guidance} is not valid: give a finite number >= 0 (1 turns it off)"
        )
    check_count("batch", settings.batch)
    for name, known in (("coupling", COUPLINGS), ("path", PATHS), ("residual", RESIDUALS)):
        value = getattr(settings, name)
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(known)}")
    SamplingParams.create(settings.temperature, settings.top_k, settings.top_p, vocab_size)
    # The knobs of the rules not chosen are checked as well: a typing error should not pass in silence.
    for rule in (settings.rule, "lantern", "lantern++"):
        rule_from_name(rule, settings.k, settings.delta, settings.lam, vocab_size)
