"""What a drafter predicts along whole sequences, depth by depth, as it would below every token as a root.

The training counterpart of a drafter's `absorb` and `expand`: all roots at once, along the true tokens.

Axes: G guidance rows, B batch, P prefix, T tokens of a stream, N = P + T - 2 drafter positions, V codes, D width,
F width of the stored features, R positions of a depth.
"""

from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from lantern_jax.models.drafter import DrafterConfig, DrafterModel, sequence_rotary
from lantern_jax.models.transformer import padded_causal_mask


@flax.struct.dataclass
class DrafterInputs:
    """What the drafter reads at each position of whole sequences.

    Attributes:
        features: [*rows, N, D], the target's at the position.
        tokens: int32 [*rows, N], one position ahead.
        valid: bool [*rows, N], False at padding, which no other position sees. All padding is in the prefix.
        first: the first position that has seen a token of the stream, P - 1; no loss is taken before it.
    """

    features: Float[Array, "*rows N D"]
    tokens: Int[Array, "*rows N"]
    valid: Bool[Array, "*rows N"]
    first: int = flax.struct.field(pytree_node=False)


def drafter_inputs(
    features: Float[Array, "*rows S D"], prefix: Int[Array, "*rows P"], tokens: Int[Array, "*rows T"]
) -> tuple[DrafterInputs, Float[Array, "*rows N D"]]:
    """(inputs, features to predict) of sequences as `FeatureStore` has them: `prefix` is -1 at padding."""
    ahead = jnp.concatenate([jnp.maximum(prefix[..., 1:], 0), tokens[..., :-1]], axis=-1)
    stream = jnp.ones((*tokens.shape[:-1], tokens.shape[-1] - 1), bool)
    valid = jnp.concatenate([prefix[..., :-1] >= 0, stream], axis=-1)
    inputs = DrafterInputs(features[..., :-1, :], ahead, valid, prefix.shape[-1] - 1)
    return inputs, features[..., 1:, :]


def drafter_passes(
    model: DrafterModel, params: PyTree, inputs: DrafterInputs, passes: int
) -> list[Float[Array, "*rows N D"]]:
    """Predicted features, float32, of every position at tree depth 0, 1, ..., passes - 1.

    Pass 0 reads the target's features, as when committed tokens are absorbed. In pass s a position reads what
    pass s - 1 predicted for it, and sees the true sequence up to s positions back and its s - 1 ancestors as
    the passes between made them: exactly a chain of s nodes below a root, for all roots at once. The first
    positions, whose chain would begin before the first token, read the target's features in all passes.
    """
    length, leading = inputs.tokens.shape[-1], (None,) * (inputs.tokens.ndim - 1)
    rotary, keys = sequence_rotary(model.config, inputs.valid), inputs.valid[..., None, :]
    causal, itself = np.tril(np.ones((length, length), bool)), np.eye(length, dtype=bool)

    def apply(features: Array, *places: PyTree) -> tuple[Array, PyTree]:
        predicted, (block,) = model.apply({"params": params}, features, inputs.tokens, rotary, *places)
        return predicted.astype(jnp.float32), block

    predicted, block = apply(inputs.features, padded_causal_mask(inputs.valid))
    made, blocks = [predicted], [block]
    for depth in range(1, passes):
        shifted = jnp.concatenate([inputs.features[..., :1, :], made[-1][..., :-1, :]], axis=-2)
        drafted = (np.arange(length) >= inputs.first + depth)[*leading, :, None]
        features = jnp.where(drafted, jax.lax.stop_gradient(shifted), inputs.features)
        masks = [np.tril(causal, -depth)[leading] & keys]
        masks += [np.eye(length, k=i - depth, dtype=bool)[leading] for i in range(1, depth)]
        past = tuple((block,) for block in blocks)
        predicted, block = apply(features, itself[leading], past, tuple(masks))
        made.append(predicted)
        blocks.append(block)
    return made


@flax.struct.dataclass
class Predicted:
    """The predictions of one depth.

    Attributes:
        where: int32 [R], positions j of the drafter: the token at j + 2 is predicted, the root is d before it.
        logits: float32 [G, B, R, V], before guidance.
        features: float32 [G, B, R, D] where the drafter predicts the target's next features, else None.
    """

    where: Int[Array, " R"]
    logits: Float[Array, "G B R V"]
    features: Float[Array, "G B R D"] | None = None


# (model, parameters, target's head [D, V], inputs, depths, key, experiment) -> the predictions of each depth.
Chain = Callable[..., list[Predicted]]


def eagle_chain(
    model: DrafterModel,
    params: PyTree,
    head: Float[Array, "D V"],
    inputs: DrafterInputs,
    depths: int,
    key: Key[Array, ""] | None = None,
    config: Any = None,
) -> list[Predicted]:
    """Of a drafter that goes on from what it predicts: EAGLE and EAGLE-3."""
    made = []
    for depth, hidden in enumerate(drafter_passes(model, params, inputs, depths)):
        begin = inputs.first + depth
        hidden = hidden[..., begin:, :]
        logits = jnp.einsum("...d,dv->...v", hidden, head)
        where = jnp.arange(begin, inputs.tokens.shape[-1], dtype=jnp.int32)
        made.append(Predicted(where, logits, hidden))
    return made


# Config class -> (its module, how it predicts along a sequence).
KINDS: dict[type, tuple[type[nn.Module], Chain]] = {DrafterConfig: (DrafterModel, eagle_chain)}


def model_of(sizes: Any, dtype: Any = jnp.float32) -> nn.Module:
    """The module of a drafter's config."""
    return KINDS[type(sizes)][0](sizes, jnp.dtype(dtype))


def chain_of(sizes: Any) -> Chain:
    """How the drafter of a config predicts along whole sequences."""
    return KINDS[type(sizes)][1]


def inputs_width(sizes: Any) -> int:
    """F, how much of the stored features a drafter reads, from their end: the last D are the target's final ones."""
    return sizes.dim
