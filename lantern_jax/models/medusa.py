"""Medusa heads (arXiv 2401.10774): every depth of the tree from the target's one feature, without a pass.

Head i (from 0) reads the target's feature h at position t, the last committed one, and predicts the token at
t + 2 + i: that at t + 1, the root, was sampled from the target itself. A head is a few blocks h + SiLU(W h + b), W
zero at first, then a matrix of its own that starts as the target's head, or the target's head itself.

Heads do not know the tokens between. A Markov term (DSpark, arXiv 2607.05147) gives back a part of it: W2 W1[x] added
to the logits after token x, of low rank.

Axes: G guidance rows, B batch, K heads, M nodes of a level, X expanded nodes at most, V codes, D width.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.devices.partition import split, whole
from lantern_jax.models.drafter import head_logits
from lantern_jax.models.sizes import check_sizes


@dataclass(frozen=True)
class MedusaConfig:
    """Heads for one target.

    Attributes:
        dim, vocab_size, num_codes: D, the target's embeddings and V.
        heads: K; deeper nodes get the last head's logits.
        layers: residual blocks a head.
        shared_head: whether the heads end in the target's head, or each in a matrix [D, V] of its own.
        markov_rank: of the Markov term; 0 for none.

    Example:
        >>> config = lantern_jax.MedusaConfig(dim=16, vocab_size=64, num_codes=64, heads=4)
        >>> config.heads, config.shared_head
        (4, False)
    """

    dim: int
    vocab_size: int
    num_codes: int
    heads: int = 5
    layers: int = 1
    shared_head: bool = False
    markov_rank: int = 0

    def __post_init__(self):
        check_sizes(self, may_be_zero=("markov_rank",))


class Markov(nn.Module):
    """W2 W1[x], zero at first. Parameters: tokens [vocab, rank], out [rank, V]. Returns float32."""

    vocab_size: int
    num_codes: int
    rank: int
    dtype: jnp.dtype
    param_dtype: jnp.dtype

    @nn.compact
    def __call__(self, tokens: Int[Array, "*rows"]) -> Float[Array, "*rows V"]:
        init = nn.initializers.normal(1.0)
        read = nn.Embed(self.vocab_size, self.rank, self.dtype, self.param_dtype, init, name="tokens")(tokens)
        out = self.param("out", nn.initializers.zeros, (self.rank, self.num_codes), self.param_dtype)
        return head_logits(read, out)


class MedusaModel(nn.Module):
    """Parameters: kernel [K, layers, D, D], bias [K, layers, D], heads [K, D, V] if not shared, markov.

    The call: features [..., D] and the target's head [D, V] to float32 logits [..., K, V], without the Markov term.
    """

    config: MedusaConfig
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def setup(self):
        config, zeros = self.config, nn.initializers.zeros
        shape = (config.heads, config.layers, config.dim, config.dim)
        self.kernel = self.param("kernel", zeros, shape, self.param_dtype)
        self.bias = self.param("bias", zeros, shape[:-1], self.param_dtype)
        if not config.shared_head:
            init = nn.initializers.normal(0.02)
            self.heads = self.param(
                "heads", init, (config.heads, config.dim, config.num_codes), self.param_dtype
            )
        if config.markov_rank:
            self.markov_head = Markov(
                config.vocab_size, config.num_codes, config.markov_rank, self.dtype, self.param_dtype, name="markov"
            )  # fmt: skip

    def __call__(
        self, features: Float[Array, "*rows D"], head: Float[Array, "D V"]
    ) -> Float[Array, "*rows K V"]:
        shape = (*features.shape[:-1], self.config.heads, self.config.dim)
        x = jnp.broadcast_to(features.astype(self.dtype)[..., None, :], shape)
        for layer in range(self.config.layers):
            kernel, bias = (leaf[:, layer].astype(self.dtype) for leaf in (self.kernel, self.bias))
            inner = jnp.einsum("...kd,kde->...ke", x, kernel, preferred_element_type=jnp.float32)
            inner = inner.astype(self.dtype) + jnp.broadcast_to(bias, shape)
            x = x + whole(nn.silu(inner))
        if self.config.shared_head:
            return head_logits(x, head)
        heads = self.heads.astype(self.dtype)
        return jnp.einsum("...kd,kdv->...kv", x, heads, preferred_element_type=jnp.float32)

    def after(self, tokens: Int[Array, "*rows"]) -> Float[Array, "*rows V"]:
        """The Markov term after each token, float32; 0 without one."""
        if not self.config.markov_rank:
            return jnp.zeros((*tokens.shape, self.config.num_codes), jnp.float32)
        return self.markov_head(tokens)

    def whole(self, features, head, tokens):
        """All parts once: what parameters are made with."""
        return self(features, head), self.after(tokens)


@flax.struct.dataclass
class OnePassState:
    """What a drafter keeps of its one pass a round.

    Attributes:
        logits: float32 [B, K, V], guided, of each depth; the last one's serve all that are deeper.
        depth: int32 [B, 1 + X], of the root and the expanded nodes.
        expanded: int32 [], how many of the X places are taken.
        guidance: float32 [B], or None.
    """

    logits: Float[Array, "B K V"]
    depth: Int[Array, "B 1+X"]
    expanded: Int[Array, ""]
    guidance: Float[Array, " B"] | None


def empty_logits(prefix: Any, depths: int, num_codes: int, nodes: int) -> OnePassState:
    """The state before any pass."""
    batch = prefix.tokens.shape[1]
    return OnePassState(
        logits=split(jnp.zeros((batch, depths, num_codes), jnp.float32), -1),
        depth=jnp.zeros((batch, 1 + nodes), jnp.int32),
        expanded=jnp.int32(0),
        guidance=prefix.guidance,
    )


def expand_depths(state: OnePassState, tokens: Int[Array, "B M"], parents, after: Float[Array, "B M V"]):
    """(state, logits [B, M, V]) with new nodes: the pass's logits of each one's depth, and what its token adds.

    That is the same in both guidance rows, so it is not scaled by guidance.
    """
    parents = jnp.broadcast_to(jnp.asarray(parents, jnp.int32), tokens.shape)
    depth = jnp.take_along_axis(state.depth, parents, axis=1) + 1
    rows = jnp.minimum(depth, state.logits.shape[1] - 1)
    logits = jnp.take_along_axis(state.logits, rows[..., None], axis=1) + after
    grown = jax.lax.dynamic_update_slice_in_dim(state.depth, depth, state.expanded + 1, 1)
    return state.replace(depth=grown, expanded=state.expanded + tokens.shape[1]), logits


@cache
def medusa_drafter(config: MedusaConfig, dtype: jnp.dtype = jnp.float32) -> Drafter:
    """The drafter record. Parameters: ``{"drafter": MedusaModel's, "head": kernel [D, V] of the target}``.

    The same config and dtype return the same record, so compiled programs are reused.

    Example:
        >>> config = lantern_jax.MedusaConfig(dim=16, vocab_size=64, num_codes=64, heads=4)
        >>> lantern_jax.eagle(lantern_jax.medusa_drafter(config), lantern_jax.DraftTree.chain(4)).max_depth
        4
    """
    model = MedusaModel(config, dtype)
    return Drafter(partial(_init, model), partial(_absorb, model), partial(_expand, model))


def medusa_shapes(config: MedusaConfig) -> dict[str, Any]:
    """The abstract parameter tree, ``{"params": ...}``."""
    model = MedusaModel(config)
    features = jax.ShapeDtypeStruct((1, config.dim), jnp.float32)
    head = jax.ShapeDtypeStruct((config.dim, config.num_codes), jnp.float32)
    tokens = jax.ShapeDtypeStruct((1,), jnp.int32)

    def init(key, *inputs):
        return model.init(key, *inputs, method="whole")

    return jax.eval_shape(init, jax.random.key(0), features, head, tokens)


def _init(model: MedusaModel, params, prefix, slots: int, span: int, nodes: int) -> OnePassState:
    return empty_logits(prefix, model.config.heads, model.config.num_codes, nodes)


def _absorb(model: MedusaModel, params, state: OnePassState, features, tokens, count):
    last = jnp.maximum(count - 1, 0)
    feature = jnp.take_along_axis(features, last[None, :, None, None], axis=2)[:, :, 0]
    root = jnp.take_along_axis(tokens, last[:, None], axis=1)
    logits = model.apply(params["drafter"], feature, params["head"])
    state = state.replace(
        logits=apply_guidance(logits, state.guidance), expanded=jnp.zeros_like(state.expanded)
    )
    return state, state.logits[:, 0] + model.apply(params["drafter"], root, method="after")[:, 0]


def _expand(model: MedusaModel, params, state: OnePassState, tokens, parents):
    return expand_depths(state, tokens, parents, model.apply(params["drafter"], tokens, method="after"))
