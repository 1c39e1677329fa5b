"""The EAGLE-3 drafter (arXiv 2503.01840): features of several layers of the target, trained on tokens alone.

The sequence is that of ``models.drafter``: position j holds the target's states at position j and the token at j + 1.
Nothing asks the output to be the target's next feature: below the root a node reads its parent's output, and training
goes through several such steps.

The published drafters have a head of their own over the 32000 most frequent tokens of a text vocabulary. Codes of
pictures are used far more evenly, so nothing can be left out; and at 16384 codes a full head would be the largest
part of the drafter. So the logits are the target's own head's, behind a norm of the drafter's own. The paper says
nothing of pictures: this is our choice.

Axes: D width, N positions.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.devices.partition import whole
from lantern_jax.io.errors import LanternError
from lantern_jax.models.drafter import DrafterConfig, chained_drafter
from lantern_jax.models.transformer import Dense, Layer, RMSNorm


@dataclass(frozen=True)
class Eagle3Config(DrafterConfig):
    """An EAGLE-3 drafter for one target; the fields of a ``DrafterConfig``, and

    Attributes:
        taps: the target's layers whose inputs are read, those of ``family.target(config, dtype, taps)``. The paper's
            are 2, half of the layers, and the third from the end.

    Example:
        >>> config = lantern_jax.Eagle3Config(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, taps=(2, 6, 9))
        >>> config.taps
        (2, 6, 9)
    """

    taps: tuple[int, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "taps", tuple(self.taps))
        super().__post_init__()
        if not self.taps or any(not isinstance(tap, int) or tap < 0 for tap in self.taps):
            raise LanternError(f"taps {self.taps} are not valid: give layers of the target, low to high")


class Eagle3Model(nn.Module):
    """Parameters: tokens, fc [taps * D, D], token_norm, hidden_norm, layer_0 (its qkv reads 2 D), norm.

    The call is ``DrafterModel``'s: features [..., N, D] are ``fuse`` of the target's, or outputs of this model. It
    returns outputs [..., N, D] and the new keys and values.
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
        # The residual is that of the features alone: tokens act through attention.
        out, block = self.layer_0(features, rotary, mask, [place[0] for place in past], past_masks, both)
        return out, (block,)

    def fuse(self, features):
        """The tapped states [..., taps * D] as one feature [..., D]."""
        return whole(self.fc(features))

    def committed(self, features, tokens, rotary, mask, past=(), past_masks=()):
        """The call with the target's own tapped states."""
        return self(self.fuse(features), tokens, rotary, mask, past, past_masks)

    def head_input(self, predicted):
        """What the target's head reads."""
        return self.norm(predicted)

    def whole(self, features, tokens, rotary, mask):
        """All parts once: what parameters are made with."""
        return self.head_input(self.committed(features, tokens, rotary, mask)[0])


@cache
def eagle3_drafter(config: Eagle3Config, dtype: jnp.dtype = jnp.float32) -> Drafter:
    """The drafter record, for a target record with the same taps. Parameters: ``{"drafter": Eagle3Model's, "head":
    kernel [D, V] of the target}``. The same config and dtype return the same record.

    Example:
        >>> config = lantern_jax.Eagle3Config(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, taps=(2, 6, 9))
        >>> lantern_jax.eagle(lantern_jax.eagle3_drafter(config), lantern_jax.DraftTree.chain(4)).max_depth
        4
    """
    return chained_drafter(Eagle3Model(config, dtype))


def eagle3_shapes(config: Eagle3Config) -> dict[str, Any]:
    """The abstract parameter tree, ``{"params": ...}``."""
    model = Eagle3Model(config)
    features = jax.ShapeDtypeStruct((1, 1, len(config.taps) * config.dim), jnp.float32)
    rotary = jax.ShapeDtypeStruct((1, 1, config.transformer.head_dim // 2, 2), jnp.float32)
    tokens, mask = jax.ShapeDtypeStruct((1, 1), jnp.int32), jax.ShapeDtypeStruct((1, 1, 1), jnp.bool_)

    def init(key, *inputs):
        return model.init(key, *inputs, method="whole")

    return jax.eval_shape(init, jax.random.key(0), features, tokens, rotary, mask)
