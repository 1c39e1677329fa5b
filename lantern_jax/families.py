"""The model families: what the rest of the library asks of a target by the class of its config.

A config of any family has ``dim``, ``num_heads``, ``num_codes``, ``vocab_size``, ``grid``, ``num_tokens`` and
``shared_with_drafter``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import PyTree

from lantern_jax.checkpoints.chameleon import chameleon_shapes
from lantern_jax.checkpoints.llamagen import gpt_shapes
from lantern_jax.decoding.protocols import Target
from lantern_jax.models.chameleon import ChameleonConfig, chameleon_target
from lantern_jax.models.llamagen import LlamaGenConfig, llamagen_target

TargetConfig = LlamaGenConfig | ChameleonConfig


@dataclass(frozen=True)
class Family:
    """One family of targets.

    Attributes:
        config: the class of its configs.
        shapes: config -> the abstract parameter tree.
        target: (config, dtype) -> the target record.
    """

    config: type
    shapes: Callable[[Any], PyTree]
    target: Callable[[Any, Any], Target]


FAMILIES = {
    "llamagen": Family(LlamaGenConfig, gpt_shapes, llamagen_target),
    "chameleon": Family(ChameleonConfig, chameleon_shapes, chameleon_target),
}


def family_name(config: TargetConfig) -> str:
    """The name in ``FAMILIES`` of the family that a config belongs to."""
    return next(name for name, family in FAMILIES.items() if isinstance(config, family.config))


def family_of(config: TargetConfig) -> Family:
    """The family that a config belongs to."""
    return FAMILIES[family_name(config)]
