"""A video tokenizer's layers over time, for one picture: a clip of equal frames, of which the first one is returned.

Convolutions over time are causal: the first frame depends on itself alone, and so only on the last time step of their
kernels. The encoder's halve a clip of four frames twice; where frames are equal, all their outputs but the first are
the same. So each becomes a convolution over rows and columns, whose kernel converters compute
(``families.emu3.vq_weights``).

Axes: B batch, h w rows and columns of the code grid, c channels.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class FrozenNorm(nn.Module):
    """BatchNorm with the statistics from training."""

    eps: float = 1e-5

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"]) -> Float[Array, "B h w c"]:
        shape, ones, zeros = x.shape[-1:], nn.initializers.ones, nn.initializers.zeros
        scale, bias = self.param("scale", ones, shape), self.param("bias", zeros, shape)
        mean, variance = self.param("mean", zeros, shape), self.param("var", ones, shape)
        scale = scale * jax.lax.rsqrt(variance + self.eps)
        return x * jnp.broadcast_to(scale, x.shape) + jnp.broadcast_to(bias - mean * scale, x.shape)


class FrameBlock(nn.Module):
    """Norm, SiLU, convolution, twice, plus the input."""

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"]) -> Float[Array, "B h w c"]:
        y = x
        for i in ("1", "2"):
            y = nn.silu(FrozenNorm(name=f"norm{i}")(y))
            y = nn.Conv(x.shape[-1], (3, 3), name=f"conv{i}")(y)
        return x + y


class FrameStack(nn.Module):
    """Two convolutions and residual blocks: convolutions first in an encoder (``downward``), last in a decoder.

    Between an encoder's two convolutions, two frames lie side by side as channels.
    """

    blocks: int
    downward: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B h w c"]) -> Float[Array, "B h w c"]:
        width = x.shape[-1]

        def convolutions(x):
            for i, features in enumerate((2 * width if self.downward else width, width)):
                x = nn.silu(nn.Conv(features, (3, 3), name=f"conv_{i}")(x))
            return x

        x = convolutions(x) if self.downward else x
        for i in range(self.blocks):
            x = FrameBlock(name=f"res_{i}")(x)
        return x if self.downward else convolutions(x)
