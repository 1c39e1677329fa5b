"""A small patch discriminator (hinge loss), the tokenizer's sharpening term.

It works on pictures folded 4x4 into channels, so that it costs a fraction of the tokenizer, and judges overlapping
patches of about 44 pixels, or of twice as many for each further halving. After PatchGAN (arXiv 1611.07004) as used by
VQGAN (arXiv 2012.09841).

Axis letters: B batch, H W picture height and width, h w grid of judged patches.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from einops import rearrange
from jaxtyping import Array, Float, Key, PyTree


class PatchDiscriminator(nn.Module):
    """Scores of patches, high for real ones, and the features they were read from.

    Attributes:
        ch: channels of the first layer; each halving doubles them.
        fold: side in pixels of the squares that are folded into channels.
        halvings: layers that halve the grid.
        dtype: of products and features; scores are float32.
    """

    ch: int = 48
    fold: int = 4
    halvings: int = 1
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, pictures: Float[Array, "B H W 3"]) -> tuple[Float[Array, "B h w"], list[Array]]:
        x = rearrange(
            pictures.astype(self.dtype), "B (h p) (w q) c -> B h w (p q c)", p=self.fold, q=self.fold
        )
        features = []
        layers = [(self.ch, 1), *((2**n * self.ch, 2) for n in range(1, self.halvings + 1))]
        for i, (width, stride) in enumerate([*layers, (layers[-1][0], 1)]):
            x = nn.Conv(width, (3, 3), strides=(stride, stride), dtype=self.dtype, name=f"conv_{i}")(x)
            if i:
                x = nn.GroupNorm(4, use_fast_variance=False, dtype=self.dtype, name=f"norm_{i}")(x)
            x = nn.leaky_relu(x, 0.2)
            features.append(x)
        return nn.Conv(1, (3, 3), dtype=self.dtype, name="score")(x)[..., 0].astype(jnp.float32), features


def hinge_loss(real: Float[Array, "B h w"], fake: Float[Array, "B h w"]) -> Float[Array, ""]:
    """Returns the discriminator's hinge loss."""
    return 0.5 * (jnp.mean(nn.relu(1.0 - real)) + jnp.mean(nn.relu(1.0 + fake)))


def feature_matching(real: list[Array], fake: list[Array]) -> Float[Array, ""]:
    """Returns a learned perceptual distance: the mean absolute difference of features, averaged over the layers."""
    distances = [
        jnp.mean(jnp.abs(jax.lax.stop_gradient(r) - f).astype(jnp.float32))
        for r, f in zip(real, fake, strict=True)
    ]
    return sum(distances[1:], distances[0]) / float(len(distances))


def judge(
    critic: PatchDiscriminator,
    optimizer: optax.GradientTransformation,
    params: PyTree,
    optimizer_state: PyTree,
    real: Float[Array, "B H W 3"],
    made: Float[Array, "B H W 3"],
    key: Key[Array, ""],
    *,
    matching: float,
    shift: int = 0,
) -> tuple[PyTree, PyTree, Float[Array, "B H W 3"], Float[Array, ""]]:
    """Takes one step of the critic, and has it judge `made`.

    Returns its new parameters and optimizer state, the gradient with respect to `made` of (minus its score plus
    `matching` times the feature distance), and the critic's loss. It learns from the first step on: a `lax.cond` around
    it would run its convolutions on a single CPU thread.

    With a `shift`, it sees pictures without their outermost `shift` rows and columns, split at random between the
    sides: the folds then fall anywhere, and their borders, which it would learn to spot, show nowhere in particular.
    """
    corner = jax.random.randint(key, (2,), 0, max(shift, 1))
    size = (real.shape[0], real.shape[1] - shift, real.shape[2] - shift, real.shape[3])

    def seen(pictures: Array) -> Array:
        return jax.lax.dynamic_slice(pictures, (0, corner[0], corner[1], 0), size)

    def critic_loss(params: PyTree, both: Array) -> tuple[Array, list[Array]]:
        scores, features = critic.apply({"params": params}, both)
        n = real.shape[0]
        return hinge_loss(scores[:n], scores[n:]), [f[:n] for f in features]

    def verdict(picture: Array, features: list[Array]) -> Array:
        scores, made_features = critic.apply({"params": params}, seen(picture))
        return -jnp.mean(scores) + matching * feature_matching(features, made_features)

    (value, features), gradients = jax.value_and_grad(critic_loss, has_aux=True)(
        params, jnp.concatenate([seen(real), seen(made)])
    )
    changes, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return optax.apply_updates(params, changes), optimizer_state, jax.grad(verdict)(made, features), value
