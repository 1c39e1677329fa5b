"""The EAGLE-3 drafter (arXiv 2503.01840) reads features of several target layers and is trained on tokens alone.

The sequence is that of ``drafters.sequence``: position j holds the target's states at j and the token at j + 1. The
output need not be the target's next feature: below the root a node reads its parent's output, and training goes
through several such steps.

The published drafters have their own head over the 32000 most frequent tokens of a text vocabulary. Picture codes are
used far more evenly, and at 16384 codes a full head would be the largest part of the drafter. So this one uses the
target's head, behind a norm of its own. The paper does not cover pictures: this is our choice.

Axes: D width, N positions.
"""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.devices.partition import whole
from lantern_jax.drafters.eagle import chained_drafter
from lantern_jax.drafters.registry import DrafterKind
from lantern_jax.drafters.sequence import DrafterConfig, like_layers_of, sequence_shapes
from lantern_jax.io.errors import LanternError
from lantern_jax.models.transformer import Dense, Layer, RMSNorm


@dataclass(frozen=True)
class Eagle3Config(DrafterConfig):
    """An EAGLE-3 drafter for one target, with the fields of a ``DrafterConfig`` and:

    Attributes:
        taps: the target's layers whose inputs are read (``family.target(config, dtype, taps)``). The paper takes layer
            2, the middle one, and the third from the end.
    """

    taps: tuple[int, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "taps", tuple(self.taps))
        super().__post_init__()
        if not self.taps or any(not isinstance(tap, int) or tap < 0 for tap in self.taps):
            raise LanternError(f"taps {self.taps} are not valid: give layers of the target, low to high")


class Eagle3Model(nn.Module):
    """The network. Parameters: tokens, fc [taps * D, D], token_norm, hidden_norm, layer_0 (its qkv reads 2 D), norm.

    The call is ``DrafterModel``'s; its features [..., N, D] are outputs of this model, or the target's after ``fuse``.
    """

    config: Eagle3Config
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def setup(self):
        config, types = self.config, (self.dtype, self.param_dtype)
        init = nn.initializers.normal(0.02)
        self.tokens = nn.Embed(config.vocab_size, config.dim, *types, init)
        self.fc = Dense(config.dim, *types, kernel_init=nn.initializers.lecun_normal())
        self.token_norm = RMSNorm(config.norm_eps, self.param_dtype)
        self.hidden_norm = RMSNorm(config.norm_eps, self.param_dtype)
        self.layer_0 = Layer(config.transformer, False, *types)
        self.norm = RMSNorm(config.norm_eps, self.param_dtype)

    def __call__(self, features, tokens, rotary, mask, past=(), past_masks=()):
        features = features.astype(self.dtype)
        both = jnp.concatenate(
            [self.token_norm(whole(self.tokens(tokens))), self.hidden_norm(features)], axis=-1
        )
        # The residual carries features alone: tokens act through attention.
        out, block = self.layer_0(features, rotary, mask, [place[0] for place in past], past_masks, both)
        return out, (block,)

    def fuse(self, features):
        """Joins tapped states [..., taps * D] into one feature [..., D]."""
        return whole(self.fc(features))

    def committed(self, features, tokens, rotary, mask, past=(), past_masks=()):
        """Runs committed positions: calls the model with the target's tapped states."""
        return self(self.fuse(features), tokens, rotary, mask, past, past_masks)

    def head_input(self, predicted):
        """Returns the input of the target's head."""
        return self.norm(predicted)

    def whole(self, features, tokens, rotary, mask):
        """Uses every parameter once, so that all of them are created."""
        return self.head_input(self.committed(features, tokens, rotary, mask)[0])


def eagle3_drafter(config: Eagle3Config, dtype: jnp.dtype = jnp.float32) -> Drafter:
    """Returns the drafter record for a target with the same taps, as ``eagle_drafter`` does."""
    return chained_drafter(Eagle3Model(config, jnp.dtype(dtype)))


def usual_eagle3(target: Any) -> Eagle3Config:
    """Returns the config of a drafter for a target with this config: its layers' sizes and the paper's taps."""
    layers = target.num_layers
    taps = {min(2, layers - 1), layers // 2, max(layers - 3, 0)}
    return Eagle3Config(**like_layers_of(target), taps=tuple(sorted(taps)))


KIND = DrafterKind(
    Eagle3Config,
    lambda config: sequence_shapes(Eagle3Model(config), len(config.taps) * config.dim),
    eagle3_drafter,
    usual=usual_eagle3,
)
