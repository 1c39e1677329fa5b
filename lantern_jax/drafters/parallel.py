"""A drafter that predicts several positions in one pass (ParallelSpec, arXiv 2410.05589), with a Markov head.

The sequence is that of ``drafters.sequence``, with K *masks* after the last committed position: elements with a learned
input instead of token and feature. Mask d predicts what a chain of d nodes below the root would. The paper leaves much
open; training is P-EAGLE's (arXiv 2602.01469, ``train.chains``), but each depth has its own input (D more numbers).

Masks do not know the tokens drafted above them. As with Medusa's heads, a Markov term (``drafters.medusa``) adds what a
node's token says about the next one, without a pass.

Axes: G guidance rows, B batch, S room for absorbed positions, K masks, M nodes of a level, V codes, D width.
"""

from dataclasses import dataclass

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.cache import KVCache
from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.drafters.eagle import DrafterModel
from lantern_jax.drafters.medusa import Markov, OnePassState, empty_logits, expand_depths, refine_depths
from lantern_jax.drafters.registry import DrafterKind
from lantern_jax.drafters.sequence import (
    DrafterConfig,
    empty_places,
    last_absorbed,
    like_layers_of,
    prefix_cache,
    record_of,
    sequence_shapes,
    write_recent,
)
from lantern_jax.models.heads import head_logits
from lantern_jax.models.positions import stream_rotary


@dataclass(frozen=True)
class ParallelConfig(DrafterConfig):
    """A parallel drafter for one target, with the fields of a ``DrafterConfig`` and:

    Attributes:
        num_codes: V.
        masks: K; depths 1 to K are predicted together with depth 0, deeper nodes get the last one's logits.
        markov_rank: rank of the Markov term; 0 for none.
    """

    num_codes: int = 16384
    masks: int = 7
    markov_rank: int = 64


class ParallelModel(DrafterModel):
    """A ``DrafterModel`` with the additional parameters masks [K, D] and markov; training may start from a plain one.

    Inputs for ``run`` come from ``read`` and ``masked``; its predicted features [..., N, D] are for the target's head.
    """

    config: ParallelConfig

    def setup(self):
        super().setup()
        config = self.config
        shape, init = (config.masks, config.dim), nn.initializers.normal(1.0)
        self.masks = self.param("masks", init, shape, self.param_dtype)
        self.markov = Markov(
            config.vocab_size, config.num_codes, config.markov_rank, self.dtype, self.param_dtype
        )

    def masked(self):
        """Returns the inputs of the masks [K, D], depth 1 first."""
        return self.masks.astype(self.dtype)

    def after(self, tokens: Int[Array, "*rows"]) -> Float[Array, "*rows V"]:
        """Returns the Markov term after each token, float32."""
        return self.markov(tokens)

    def whole(self, features, tokens, rotary, mask):
        """Uses every parameter once, so that all of them are created."""
        return self(features, tokens, rotary, mask), self.after(tokens)


@flax.struct.dataclass
class ParallelState:
    """Committed tokens and the last pass.

    Attributes:
        cache, recent, count: as in ``DrafterState``; none of them includes masks.
        draft: predictions of the last pass.
    """

    cache: KVCache
    recent: tuple[Float[Array, "G B H S E"], Float[Array, "G B H S E"]]
    count: Int[Array, " B"]
    draft: OnePassState


def parallel_drafter(config: ParallelConfig, dtype: jnp.dtype = jnp.float32) -> Drafter:
    """Returns the drafter record, as ``eagle_drafter`` does."""
    return record_of(ParallelModel(config, jnp.dtype(dtype)), _init, _absorb, _expand, _refine)


def _init(model: ParallelModel, params, prefix, slots: int, span: int, nodes: int) -> ParallelState:
    config = model.config
    cache = prefix_cache(model, params, prefix, slots)
    return ParallelState(
        cache=cache,
        recent=empty_places(model, cache, span),
        count=jnp.zeros(prefix.tokens.shape[1], jnp.int32),
        draft=empty_logits(prefix, 1 + config.masks, config.num_codes, nodes),
    )


def _absorb(model: ParallelModel, params, state: ParallelState, features, tokens, count):
    cache = write_recent(state.cache, state.recent, state.count)
    (rows, batch, span), masks = features.shape[:3], model.config.masks
    steps = jnp.arange(span + masks, dtype=jnp.int32)
    # The first mask comes right after the last absorbed position.
    offset = jnp.where((steps < span)[None], steps[None], count[:, None] + (steps - span)[None])
    positions = cache.length[:, None] + offset
    x = model.apply(
        params["drafter"], features, jnp.broadcast_to(tokens[None], features.shape[:3]), method="read"
    )
    asked = model.apply(params["drafter"], method="masked")
    asked = jnp.broadcast_to(asked[None, None], (rows, batch, *asked.shape))
    predicted, (block,) = model.apply(
        params["drafter"],
        jnp.concatenate([x, asked], axis=2),
        stream_rotary(model.config, cache.prefix_mask, positions),
        block_mask(span, masks, count)[None],
        (cache.layers,),
        (cache.mask,),
        method="run",
    )
    predicted = jnp.concatenate([last_absorbed(predicted, count), predicted[:, :, span:]], axis=2)
    logits = apply_guidance(head_logits(predicted, params["head"]), cache.guidance)
    draft = state.draft.replace(logits=logits, expanded=jnp.zeros_like(state.draft.expanded))
    recent = tuple(places[..., :span, :] for places in block)
    return ParallelState(cache, recent, count, draft), logits[:, 0]


def block_mask(span: int, masks: int, count: Int[Array, " B"]):
    """Returns bool [B, S + K, S + K], row sees column: absorbed positions are causal; a mask sees the first ``count``
    of them, the masks before it and itself."""
    size = span + masks
    causal = np.tril(np.ones((size, size), bool))
    there = np.arange(size, dtype=np.int32)
    absorbed = jnp.asarray(there)[None] < count[:, None]
    seen = absorbed | jnp.asarray(there >= span)[None]
    return jnp.asarray(causal)[None] & (seen[:, None] | jnp.asarray(there < span)[None, :, None])


def _expand(model: ParallelModel, params, state: ParallelState, tokens, parents):
    after = model.apply(params["drafter"], tokens, method="after")
    draft, logits = expand_depths(state.draft, tokens, parents, after)
    return state.replace(draft=draft), logits


def _refine(model: ParallelModel, params, state: ParallelState, root, tokens, stale, predicted):
    after = model.apply(params["drafter"], tokens, method="after")
    return refine_depths(state.draft, root, after), predicted


KIND = DrafterKind(
    ParallelConfig,
    lambda config: sequence_shapes(ParallelModel(config), config.dim),
    parallel_drafter,
    one_pass=True,
    usual=lambda target: ParallelConfig(**like_layers_of(target), num_codes=target.num_codes),
)
