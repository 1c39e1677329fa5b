"""Heads that turn a target's features into logits of its codes.

Axes: D width, V codes.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from lantern_jax.models.transformer import Dense


class HiddenHead(nn.Module):
    """Two linear layers with biases and a GELU between them (Janus). Parameters: hidden, codes; logits are float32."""

    num_codes: int
    hidden_dim: int
    dtype: jnp.dtype
    param_dtype: jnp.dtype

    @nn.compact
    def __call__(self, features: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        types = self.dtype, self.param_dtype
        x = Dense(self.hidden_dim, *types, use_bias=True, name="hidden")(features)
        return Dense(self.num_codes, *types, jnp.float32, use_bias=True, name="codes")(
            nn.gelu(x, approximate=False)
        )


def head_width(head: Float[Array, "D V"] | Mapping[str, Any]) -> int:
    """Returns D, the width of the features that a target's head reads; ``head`` as for ``head_logits``."""
    return (head["hidden"]["kernel"] if isinstance(head, Mapping) else head).shape[0]


def head_logits(
    features: Float[Array, "*rows D"], head: Float[Array, "D V"] | Mapping[str, Any]
) -> Float[Array, "*rows V"]:
    """Returns a target head's float32 logits for features, computed in the features' precision.

    Args:
        head: a kernel [D, V], or the parameters of a ``HiddenHead``.
    """
    if isinstance(head, Mapping):
        hidden_dim, num_codes = head["codes"]["kernel"].shape
        # Not a submodule of a calling module: its parameters are passed in.
        model = HiddenHead(num_codes, hidden_dim, features.dtype, features.dtype, parent=None)
        return model.apply({"params": head}, features)
    head = head.astype(features.dtype)
    return jnp.einsum("...d,dv->...v", features, head, preferred_element_type=jnp.float32)
