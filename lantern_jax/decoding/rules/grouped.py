"""Grouped speculative decoding. Axes: *rows are any axes of tokens on trial, V codes, C members of a group."""

from typing import ClassVar

import flax.struct
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding import fields
from lantern_jax.decoding.acceptance import Claim, Codebook, Rule
from lantern_jax.devices.partition import whole


@flax.struct.dataclass
class Grouped(Rule):
    """GSD (arXiv 2508.07747): x is tested with the probability of its group C(x) of similar codes.

    C(x) holds x and those of its neighbours in the order of p, from ``size // 2`` ranks below to ``(size - 1) // 2``
    above (7 and 6 in the paper's code), that differ from x by less than ``p_gap`` in p and by less than
    ``squared_distance`` in the codebook. Coupling ``Rejection``: x is accepted with probability min(1, p(C) / q(C)),
    and x itself is written; a refusal leaves the strict residual. Since C depends on x and the groups are not a
    partition, this is exact neither for tokens nor for groups. Near the first and last rank the published code takes an
    empty slice and falls back to the strict test through an exception; here the group has the ranks that exist. Ids
    without neighbours, such as row ends, are alone in their group.

    Coupling ``Gumbel``, and temperature 0: x is accepted when C(x) holds the wanted token (ours; the paper has no such
    test).

    Attributes:
        p_gap: [], the difference in p below which codes are alike.
        squared_distance: [], likewise in the codebook, in its own units: a value suits one tokenizer only.
        size: static, the most codes of a group, x included; 1 is strict.

    Example:
        >>> rule = lantern_jax.rules.Grouped(p_gap=0.125, squared_distance=0.5, size=14)
        >>> rule.size, rule.is_strict, float(rule.p_gap)
        (14, False, 0.125)
    """

    couplings: ClassVar = ("gumbel", "rejection")
    # It tells which ids are codes.
    k: ClassVar[int] = 1
    p_gap: Float[Array, ""] = fields.number(0.15, low_open=True)
    squared_distance: Float[Array, ""] = fields.number(0.5, low_open=True)
    size: int = fields.whole(14, low=1, note="1 is strict", traced=False)

    @property
    def is_strict(self) -> bool:
        """Whether every code is alone in its group."""
        return self.size == 1

    def claim(self, p, q, token, depth, max_depth, codebook):
        # Ranks need whole rows. To flip split rows, XLA would exchange codes among all devices, and groups of devices
        # that have finished their pictures never join in.
        p, here = whole(p), token[..., None]
        p_x = jnp.take_along_axis(p, here, axis=-1)
        ahead = _ahead(p, p_x, here)
        itself = jnp.arange(p.shape[-1], dtype=jnp.int32).reshape((1,) * token.ndim + (-1,)) == here
        # The most probable codes below and the least probable above; p is at least 0, so -1 and -2 mark the others.
        vocab = p.shape[-1]
        _, below = lax.top_k(jnp.where(ahead | itself, jnp.float32(-1), p), min(self._below, vocab))
        near = jnp.where(ahead, -p, jnp.float32(-2))
        # Ties go to the higher id, which is closer to x.
        _, above = lax.top_k(jnp.flip(near, axis=-1), min(self._above, vocab))
        members = jnp.concatenate([below.astype(jnp.int32), vocab - 1 - above.astype(jnp.int32)], axis=-1)
        is_above = jnp.asarray([False] * below.shape[-1] + [True] * above.shape[-1])
        is_above = is_above.reshape((1,) * token.ndim + (-1,))
        there = jnp.take_along_axis(ahead, members, axis=-1) == is_above
        inside = there & (members != here) & self._alike(here, members, p_x, _take(p, members), codebook)

        def total(values):
            return _take(values, here)[..., 0] + jnp.sum(
                jnp.where(inside, _take(values, members), jnp.float32(0)), axis=-1
            )

        q_x, q_group = _take(q, here)[..., 0], total(q)
        ratio = total(p) / jnp.where(q_group > 0, q_group, jnp.float32(1))
        return Claim(q_x * ratio, q)

    def accepts(self, p, token, wanted, depth, codebook):
        rows, p_x, p_y = p.rows(), p.at(token), p.at(wanted)
        place, theirs = (
            jnp.sum(_ahead(rows, mass[..., None], ids[..., None]), axis=-1, dtype=jnp.int32)
            for mass, ids in ((p_x, token), (p_y, wanted))
        )
        within = (theirs - place <= self._below) & (place - theirs <= self._above)
        return within & (p_x > 0) & self._alike(token, wanted, p_x, p_y, codebook)

    @property
    def _below(self) -> int:
        return self.size // 2

    @property
    def _above(self) -> int:
        return (self.size - 1) // 2

    def _alike(
        self, token: Int[Array, "*rows"], other: Int[Array, "*rows"], p_x, p_other, codebook: Codebook
    ) -> Bool[Array, "*rows"]:
        difference = codebook.codes[token] - codebook.codes[other]
        near = jnp.sum(difference * difference, axis=-1) < jnp.asarray(self.squared_distance, jnp.float32)
        alike = jnp.abs(p_x - p_other) < jnp.asarray(self.p_gap, jnp.float32)
        return near & alike & codebook.has(token) & codebook.has(other)


def _ahead(p, p_x, token) -> Bool[Array, "*rows V"]:
    """Tells which codes are more probable than x, or as probable with a lower id."""
    codes = jnp.arange(p.shape[-1], dtype=jnp.int32).reshape((1,) * (p.ndim - 1) + (-1,))
    return (p > p_x) | ((p == p_x) & (codes < token))


def _take(values: Float[Array, "*rows V"], ids: Int[Array, "*rows C"]) -> Float[Array, "*rows C"]:
    return jnp.take_along_axis(values, ids, axis=-1)
