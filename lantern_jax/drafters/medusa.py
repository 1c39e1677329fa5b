"""Medusa heads (arXiv 2401.10774) predict every depth of the tree from one target feature, without a transformer pass.

Head i (from 0) reads the target's feature h at the last committed position t and predicts the token at t + 2 + i: the
token at t + 1, the root, was sampled from the target itself. A head is a few blocks h + SiLU(W h + b), W initially
zero, then the target's head or a matrix of its own that starts as the target's head.

Heads do not know the tokens in between. A low-rank Markov term (DSpark, arXiv 2607.05147) makes up for part of that:
W2 W1[x] is added to the logits after token x.

Axes: G guidance rows, B batch, K heads, M nodes of a level, X room for expanded nodes, V codes, D width.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.devices.partition import split, whole
from lantern_jax.drafters.registry import DrafterKind
from lantern_jax.drafters.sequence import last_absorbed, record_of
from lantern_jax.models.heads import head_logits
from lantern_jax.models.sizes import check_sizes


@dataclass(frozen=True)
class MedusaConfig:
    """Heads for one target.

    Attributes:
        dim, vocab_size, num_codes: D, number of the target's embeddings, V.
        heads: K; deeper nodes get the last head's logits.
        layers: residual blocks per head.
        shared_head: whether all heads end in the target's head instead of a matrix [D, V] each.
        markov_rank: rank of the Markov term; 0 for none.
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
    """The Markov term W2 W1[x], float32. Parameters: tokens [vocab, rank], out [rank, V], initially zero.

    With rank 0 it is 0 and has no parameters.
    """

    vocab_size: int
    num_codes: int
    rank: int
    dtype: jnp.dtype
    param_dtype: jnp.dtype

    @nn.compact
    def __call__(self, tokens: Int[Array, "*rows"]) -> Float[Array, "*rows V"]:
        if not self.rank:
            return jnp.zeros((*tokens.shape, self.num_codes), jnp.float32)
        init = nn.initializers.normal(1.0)
        read = nn.Embed(self.vocab_size, self.rank, self.dtype, self.param_dtype, init, name="tokens")(tokens)
        out = self.param("out", nn.initializers.zeros, (self.rank, self.num_codes), self.param_dtype)
        return head_logits(read, out)


class MedusaModel(nn.Module):
    """The heads. Parameters: kernel [K, layers, D, D], bias [K, layers, D], heads [K, D, V] if not shared, markov.

    The call takes features [..., D] and the target's head [D, V]; it returns float32 logits [..., K, V] without the
    Markov term, which ``markov`` adds.
    """

    config: MedusaConfig
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def setup(self):
        config, zeros, types = self.config, nn.initializers.zeros, (self.dtype, self.param_dtype)
        shape = (config.heads, config.layers, config.dim, config.dim)
        self.kernel = self.param("kernel", zeros, shape, self.param_dtype)
        self.bias = self.param("bias", zeros, shape[:-1], self.param_dtype)
        if not config.shared_head:
            init = nn.initializers.normal(0.02)
            self.heads = self.param(
                "heads", init, (config.heads, config.dim, config.num_codes), self.param_dtype
            )
        self.markov = Markov(config.vocab_size, config.num_codes, config.markov_rank, *types)

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
        """Returns the Markov term after each token, float32."""
        return self.markov(tokens)

    def whole(self, features, head, tokens):
        """Uses every parameter once, so that all of them are created."""
        return self(features, head), self.after(tokens)


@flax.struct.dataclass
class OnePassState:
    """The result of a drafter's one pass per round.

    Attributes:
        logits: float32 [B, K, V], guided, of each depth; the last depth's serve all deeper nodes.
        depth: int32 [B, 1 + X], of the root and the expanded nodes.
        expanded: int32 [], number of the X places in use.
        guidance: float32 [B], or None.
    """

    logits: Float[Array, "B K V"]
    depth: Int[Array, "B 1+X"]
    expanded: Int[Array, ""]
    guidance: Float[Array, " B"] | None


def empty_logits(prefix: Any, depths: int, num_codes: int, nodes: int) -> OnePassState:
    """Returns the state before the first pass."""
    batch = prefix.tokens.shape[1]
    return OnePassState(
        logits=split(jnp.zeros((batch, depths, num_codes), jnp.float32), -1),
        depth=jnp.zeros((batch, 1 + nodes), jnp.int32),
        expanded=jnp.int32(0),
        guidance=prefix.guidance,
    )


def expand_depths(state: OnePassState, tokens: Int[Array, "B M"], parents, after: Float[Array, "B M V"]):
    """Adds nodes; returns the state and their logits [B, M, V]: the pass's logits at each node's depth plus ``after``.

    The Markov term ``after`` is the same in both guidance rows, so guidance does not scale it.
    """
    parents = jnp.broadcast_to(jnp.asarray(parents, jnp.int32), tokens.shape)
    depth = jnp.take_along_axis(state.depth, parents, axis=1) + 1
    grown = jax.lax.dynamic_update_slice_in_dim(state.depth, depth, state.expanded + 1, 1)
    state = state.replace(depth=grown, expanded=state.expanded + tokens.shape[1])
    return state, _at_depth(state, depth) + after


def refine_depths(state: OnePassState, root: Int[Array, " B"], after: Float[Array, "B M V"]):
    """Returns logits [B, M, V] after a chain of M guesses below an expanded node, as ``expand_depths`` does."""
    below = jnp.arange(1, after.shape[1] + 1, dtype=jnp.int32)[None]
    return _at_depth(state, jnp.take_along_axis(state.depth, root[:, None], axis=1) + below) + after


def _at_depth(state: OnePassState, depth: Int[Array, "B M"]) -> Float[Array, "B M V"]:
    rows = jnp.minimum(depth, state.logits.shape[1] - 1)
    return jnp.take_along_axis(state.logits, rows[..., None], axis=1)


def medusa_drafter(config: MedusaConfig, dtype: jnp.dtype = jnp.float32) -> Drafter:
    """Returns the drafter record, as ``eagle_drafter`` does."""
    return record_of(MedusaModel(config, jnp.dtype(dtype)), _init, _absorb, _expand, _refine)


def medusa_shapes(config: MedusaConfig) -> dict[str, Any]:
    """Returns the abstract parameter tree, ``{"params": ...}``."""
    features = jax.ShapeDtypeStruct((1, config.dim), jnp.float32)
    head = jax.ShapeDtypeStruct((config.dim, config.num_codes), jnp.float32)
    tokens, init = jax.ShapeDtypeStruct((1,), jnp.int32), partial(MedusaModel(config).init, method="whole")
    return jax.eval_shape(init, jax.random.key(0), features, head, tokens)


def _init(model: MedusaModel, params, prefix, slots: int, span: int, nodes: int) -> OnePassState:
    return empty_logits(prefix, model.config.heads, model.config.num_codes, nodes)


def _absorb(model: MedusaModel, params, state: OnePassState, features, tokens, count):
    root = jnp.take_along_axis(tokens, jnp.maximum(count - 1, 0)[:, None], axis=1)
    logits = model.apply(params["drafter"], last_absorbed(features, count)[:, :, 0], params["head"])
    state = state.replace(
        logits=apply_guidance(logits, state.guidance), expanded=jnp.zeros_like(state.expanded)
    )
    return state, state.logits[:, 0] + model.apply(params["drafter"], root, method="after")[:, 0]


def _expand(model: MedusaModel, params, state: OnePassState, tokens, parents):
    return expand_depths(state, tokens, parents, model.apply(params["drafter"], tokens, method="after"))


def _refine(model: MedusaModel, params, state: OnePassState, root, tokens, stale, predicted):
    after = model.apply(params["drafter"], tokens, method="after")
    return refine_depths(state, root, after), predicted


KIND = DrafterKind(
    MedusaConfig,
    medusa_shapes,
    medusa_drafter,
    one_pass=True,
    usual=lambda target: MedusaConfig(
        target.dim, target.vocab_size, target.num_codes, shared_head=True, markov_rank=64
    ),
)
