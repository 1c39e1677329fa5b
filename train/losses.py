"""Losses of a drafter's distribution q against its target's p, by name.

A draft token counts when the target wants the same one. How often it does depends on how the two draw:

- rejection (arXiv 2211.17192): 1 - TV(p, q) = sum_x min(p, q);
- one Gumbel noise for both (this library's strict coupling): the chance that both have the same argmax,

      J(p, q) = sum_x 1 / sum_y max(p_y / p_x, q_y / q_x),    (1 - TV) / (1 + TV) <= J <= 1 - TV,

  which follows from this noise's races: x wins both exactly when its exponential clock is the first under p and
  under q. The bounds are those of arXiv 2408.07978.

All losses are at least 0 up to what is constant in q, differentiable in the drafter's logits, and map logits [..., V]
of the drafter, then of the target (float32), to losses [...].

Axes: R positions, V codes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lantern_jax.io import errors

# Ratios beyond e^60 count as e^60: such a code wins no race, and the ratio's reciprocal is still a float32.
LARGEST_LOG_RATIO = 60.0
# How soft `coupled` makes the drafter's argmax.
SOFTNESS = 0.7


def soft_cross_entropy(
    logits: Float[Array, "*rows V"], target_logits: Float[Array, "*rows V"]
) -> Float[Array, "*rows"]:
    """Returns the cross-entropy of the drafter's distribution under the target's: KL(p || q) plus a constant."""
    return -jnp.sum(jax.nn.softmax(target_logits) * jax.nn.log_softmax(logits), axis=-1)


def overlap(logits: Float[Array, "*rows V"], target_logits: Float[Array, "*rows V"]) -> Float[Array, "*rows"]:
    """Returns sum_x min(p, q), from 0 to 1: a draft token's chance under rejection, its upper bound under one noise."""
    return jnp.sum(jnp.minimum(jax.nn.softmax(logits), jax.nn.softmax(target_logits)), axis=-1)


def total_variation(
    logits: Float[Array, "*rows V"], target_logits: Float[Array, "*rows V"]
) -> Float[Array, "*rows"]:
    """Returns 1 - sum_x min(p, q)."""
    return 1 - overlap(logits, target_logits)


def match_chance(
    logits: Float[Array, "*rows V"], target_logits: Float[Array, "*rows V"]
) -> Float[Array, "*rows"]:
    """Returns J(p, q), from 0 to 1: how often argmax(log q + g) is argmax(log p + g). Symmetric.

    With codes in the order of their ratio r = p / q, the inner sum is P(r_y >= r_x) / p_x + Q(r_y < r_x) / q_x, two
    running sums: V log V work. The order is a constant to the gradient: J is continuous where it changes.
    """
    log_p, log_q = jax.nn.log_softmax(target_logits), jax.nn.log_softmax(logits)
    order = jnp.argsort(jax.lax.stop_gradient(log_p - log_q), axis=-1)
    log_p, log_q = (jnp.take_along_axis(values, order, axis=-1) for values in (log_p, log_q))
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    above = jnp.cumsum(p[..., ::-1], axis=-1)[..., ::-1]
    below = jnp.cumsum(q, axis=-1) - q
    ratio = jnp.exp(jnp.clip(log_p - log_q, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    # p_x > 0 is part of `above` but for underflow.
    return jnp.sum(p / jnp.maximum(above + below * ratio, jnp.finfo(jnp.float32).tiny), axis=-1)


def negative_log_match(
    logits: Float[Array, "*rows V"], target_logits: Float[Array, "*rows V"]
) -> Float[Array, "*rows"]:
    """Returns -log J."""
    return -jnp.log(jnp.maximum(match_chance(logits, target_logits), jnp.finfo(jnp.float32).tiny))


def coupled_cross_entropy(
    logits: Float[Array, "*rows V"],
    target_logits: Float[Array, "*rows V"],
    key: Key[Array, ""],
    softness: float = SOFTNESS,
) -> Float[Array, "*rows"]:
    """Returns the cross-entropy of softmax((log q + g) / softness) at argmax(log p + g), with fresh Gumbel noise g.

    This is one draw of decoding with the drafter's argmax made soft; it needs no sort of the vocabulary.
    """
    noise = jax.random.gumbel(key, logits.shape, jnp.float32)
    wanted = jnp.argmax(target_logits + noise, axis=-1)
    log_chance = jax.nn.log_softmax((logits + noise) / jnp.float32(softness))
    return -jnp.take_along_axis(log_chance, wanted[..., None], axis=-1)[..., 0]


# name -> (logits, target_logits, key) -> losses. Only one needs randomness.
Loss = Callable[[Array, Array, Key[Array, ""]], Array]
LOSSES: dict[str, Loss] = {
    "cross_entropy": lambda logits, wanted, key: soft_cross_entropy(logits, wanted),
    "total_variation": lambda logits, wanted, key: total_variation(logits, wanted),
    "match": lambda logits, wanted, key: negative_log_match(logits, wanted),
    "coupled": coupled_cross_entropy,
}


def distribution_loss(name: str) -> Loss:
    """Returns the loss of that name. Raises LanternError for an unknown one."""
    if name not in LOSSES:
        raise errors.unknown("loss", name, LOSSES)
    return LOSSES[name]


def counted_mean(losses: Float[Array, "*rows R"], counts: Float[Array, " R"]) -> Float[Array, ""]:
    """Returns the mean over the positions that count, 0 or 1 each; 0 where none does."""
    losses = jnp.mean(losses, axis=tuple(range(losses.ndim - 1)))
    return jnp.sum(losses * counts) / jnp.maximum(jnp.sum(counts), 1)


def agreement(
    logits: Float[Array, "*rows R V"], target_logits: Float[Array, "*rows R V"], counts: Float[Array, " R"]
) -> dict[str, Float[Array, ""]]:
    """Returns means as in `counted_mean`: how often both have the same best code, and the overlap."""
    same = jnp.argmax(logits, axis=-1) == jnp.argmax(target_logits, axis=-1)
    return {
        "top1": counted_mean(same.astype(jnp.float32), counts),
        "overlap": counted_mean(overlap(logits, target_logits), counts),
    }
