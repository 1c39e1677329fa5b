"""How far a tokenizer's pictures are from the real ones: the losses of its training except the discriminator's.

Axis letters: B batch, H W picture height and width, c channels.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Side in pixels of the squares whose contrast is measured.
CELL = 16


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """Weights and schedule.

    `adversarial` is the discriminator's share of the picture's gradient, relative to the rest. Within that share,
    `matching` weighs the distance of its features, which is the perceptual loss, against its score. At 256 px the
    score's gradient was 23 times as long as the features' after 200 steps and 39 times after 1000: at a weight of 1,
    the features hardly count. `shift` is by how many pixels the discriminator's view is moved. `specks` weighs how much
    more a dot stands out from its surroundings than in the real picture: dots anywhere please the discriminator. For
    the first `continuous` steps, the decoder reads the encoder's vectors, with Gaussian noise of deviation `noise` per
    element in place of the quantization error: codes chosen too early leave most dimensions unused. With a `contrast`,
    differences count relative to the real picture's contrast around them plus that much (`salience`): a town in fog and
    trees at night are otherwise too faint to be learnt.
    """

    pyramid: float = 1.0
    pyramid_levels: int = 4
    contrast: float = 0.0
    specks: float = 0.0
    commitment: float = 0.25
    adversarial: float = 0.4
    matching: float = 1.0
    shift: int = 0
    adversarial_start: int = 0
    adversarial_ramp: int = 100
    continuous: int = 0
    noise: float = 0.15
    decay: float = 0.98
    restart_every: int = 25
    restart_until: int = 0
    dead_threshold: float = 0.05


def blur(x: Float[Array, "B H W c"]) -> Float[Array, "B H W c"]:
    """Blurs by a binomial 3x3 kernel, edges repeated."""
    for axis in (1, 2):
        pad = [(0, 0)] * 4
        pad[axis] = (1, 1)
        padded = jnp.pad(x, pad, mode="edge")
        size = x.shape[axis]
        before, middle, after = (jax.lax.slice_in_dim(padded, i, i + size, axis=axis) for i in range(3))
        x = 0.25 * before + 0.5 * middle + 0.25 * after
    return x


def halve(x: Float[Array, "B H W c"]) -> Float[Array, "B h w c"]:
    """Returns the means of 2x2 blocks."""
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).mean(axis=(2, 4))


def reconstruction_loss(
    pictures: Float[Array, "B H W 3"], made: Float[Array, "B H W 3"], loss: LossConfig
) -> Float[Array, ""]:
    """Returns absolute and squared differences, plus absolute ones of each band of a Laplacian pyramid.

    The bands are linear in the picture, so the pyramid of the difference is the difference of the pyramids.
    """
    difference = pictures - made
    if loss.contrast:
        difference = difference * salience(pictures, loss.contrast)
    total = jnp.mean(jnp.abs(difference)) + jnp.mean(difference**2)
    for _ in range(loss.pyramid_levels):
        band = difference - blur(difference)
        total = total + loss.pyramid * jnp.mean(jnp.abs(band))
        difference = halve(difference)
    if loss.specks:
        total = total + loss.specks * jnp.mean(jax.nn.relu(prominence(made) - prominence(pictures)))
    return total


def salience(pictures: Float[Array, "B H W 3"], floor: float) -> Float[Array, "B H W 1"]:
    """Returns 1 / (contrast + floor), scaled so that the mean of a batch is 1.

    The contrast is the standard deviation within squares of about two cells, between which it is interpolated.
    """
    b, h, w, _ = pictures.shape
    cell = min(CELL, h, w)
    cells = pictures.reshape(b, h // cell, cell, w // cell, cell, 3)
    first, second = (blur(jnp.mean(cells**power, axis=(2, 4))) for power in (1, 2))
    deviation = jnp.sqrt(jnp.mean(jnp.maximum(second - first**2, 0.0), axis=-1, keepdims=True))
    weight = jax.image.resize(1.0 / (deviation + floor), (b, h, w, 1), "linear")
    return weight / jnp.mean(weight)


def prominence(x: Float[Array, "B H W c"]) -> Float[Array, "B H W c"]:
    """Returns how far each value lies outside the range of those around it, two pixels away, their extremes left out.

    A dot of up to two pixels reaches none of these; edges and lines go on through them.
    """
    padded = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    height, width = x.shape[1:3]
    least = second_least = jnp.inf
    greatest = second_greatest = -jnp.inf
    for row, column in itertools.product((0, 2, 4), repeat=2):
        if (row, column) == (2, 2):
            continue
        one = padded[:, row : row + height, column : column + width]
        second_least = jnp.minimum(second_least, jnp.maximum(least, one))
        second_greatest = jnp.maximum(second_greatest, jnp.minimum(greatest, one))
        least, greatest = jnp.minimum(least, one), jnp.maximum(greatest, one)
    return jax.nn.relu(second_least - x) + jax.nn.relu(x - second_greatest)


def picture_psnr(real: Float[Array, "B H W 3"], made: Float[Array, "B H W 3"]) -> Float[Array, ""]:
    """Returns the mean peak signal-to-noise ratio of pictures in dB; both in [-1, 1], `made` clipped to it."""
    error = jnp.mean((real - jnp.clip(made, -1.0, 1.0)) ** 2, axis=(1, 2, 3))
    return jnp.mean(10.0 * jnp.log10(4.0 / jnp.maximum(error, 1e-10)))
