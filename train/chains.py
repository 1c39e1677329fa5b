"""What a drafter predicts along whole sequences, depth by depth, as it would with every token as a root.

The training counterpart of a drafter's `absorb` and `expand`: all roots together, along the true tokens.

Axes: G guidance rows, B batch, P prefix, T tokens of a stream, N = P + T - 2 drafter positions, V codes, D width,
F width of the stored features, R positions of a depth.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from lantern_jax.drafters.eagle import DrafterModel, head_logits
from lantern_jax.drafters.eagle3 import Eagle3Config, Eagle3Model
from lantern_jax.drafters.medusa import MedusaConfig, MedusaModel
from lantern_jax.drafters.parallel import ParallelConfig, ParallelModel
from lantern_jax.drafters.sequence import DrafterConfig, seen, sequence_rotary
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.positions import padded_causal_mask


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
    """Returns (inputs, features to predict) of sequences as in `FeatureStore`: `prefix` is -1 at padding."""
    ahead = jnp.concatenate([jnp.maximum(prefix[..., 1:], 0), tokens[..., :-1]], axis=-1)
    stream = jnp.ones((*tokens.shape[:-1], tokens.shape[-1] - 1), bool)
    valid = jnp.concatenate([prefix[..., :-1] >= 0, stream], axis=-1)
    inputs = DrafterInputs(features[..., :-1, :], ahead, valid, prefix.shape[-1] - 1)
    return inputs, features[..., 1:, :]


def drafter_passes(
    model: DrafterModel | Eagle3Model, params: PyTree, inputs: DrafterInputs, passes: int
) -> list[Float[Array, "*rows N D"]]:
    """Returns the outputs, float32, of every position at tree depths 0, 1, ..., passes - 1.

    Pass 0 reads the target's features, as when committed tokens are absorbed. In pass s, a position reads what pass
    s - 1 predicted for it, and sees the true sequence up to s positions back and its s - 1 ancestors as the passes in
    between made them: exactly a chain of s nodes below a root, for all roots. The first positions, whose chain would
    begin before the first token, read the target's features in all passes.
    """
    length, leading = inputs.tokens.shape[-1], (None,) * (inputs.tokens.ndim - 1)
    valid = seen(model.config, inputs.valid)
    rotary, keys = sequence_rotary(model.config, valid), valid[..., None, :]
    own, handed_on = inputs.features, jax.lax.stop_gradient
    if isinstance(model, Eagle3Model):
        own = model.apply({"params": params}, own[..., : -model.config.dim], method="fuse")
        # Only the tokens further down the chain say what an output should hold (training-time test).
        handed_on = lambda made: made  # noqa: E731
    causal, itself = np.tril(np.ones((length, length), bool)), np.eye(length, dtype=bool)

    def apply(features: Array, *places: PyTree) -> tuple[Array, PyTree]:
        predicted, (block,) = model.apply({"params": params}, features, inputs.tokens, rotary, *places)
        return predicted.astype(jnp.float32), block

    predicted, block = apply(own, padded_causal_mask(valid))
    made, blocks = [predicted], [block]
    for depth in range(1, passes):
        shifted = jnp.concatenate([own[..., :1, :], made[-1][..., :-1, :]], axis=-2)
        drafted = (np.arange(length) >= inputs.first + depth)[*leading, :, None]
        features = jnp.where(drafted, handed_on(shifted), own)
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
        where: int32 [R], positions j of the drafter: the token at j + 2 is predicted, the root is d before j.
        logits: float32 [G, B, R, V], before guidance.
        features: float32 [G, B, R, D] where the drafter predicts the target's next features, else None.
    """

    where: Int[Array, " R"]
    logits: Float[Array, "G B R V"]
    features: Float[Array, "G B R D"] | None = None


# (model, parameters, target's head, inputs, depths, key, experiment) -> the predictions of each depth. The head is as
# in `head_logits`.
Chain = Callable[..., list[Predicted]]


def scored(count: int, key: Key[Array, ""] | None, config: Any) -> Int[Array, " R"]:
    """Returns which of `count` rows are scored: with a key, a random share ``config.scored`` of them, else all.

    Most of a step's work is logits. Neighbouring tokens of a picture say much the same, so a part of them teaches
    nearly as much for as many pictures.
    """
    share = 1.0 if key is None or config is None else config.get("scored", 1.0)
    if share == 1.0:
        return jnp.arange(count, dtype=jnp.int32)
    return jax.random.permutation(key, count)[: scored_count(count, share)].astype(jnp.int32)


def scored_count(count: int, share: float) -> int:
    """Returns how many of `count` rows are scored: a share of them, at least one."""
    return max(round(count * share), 1)


def eagle_chain(
    model: DrafterModel,
    params: PyTree,
    head: PyTree,
    inputs: DrafterInputs,
    depths: int,
    key: Key[Array, ""] | None = None,
    config: Any = None,
) -> list[Predicted]:
    """Predicts like drafters that read their own predictions: EAGLE and EAGLE-3."""
    made, plain = [], isinstance(model, DrafterModel)
    for depth, hidden in enumerate(drafter_passes(model, params, inputs, depths)):
        begin = inputs.first + depth
        of_depth = None if key is None else jax.random.fold_in(key, depth)
        where = begin + scored(inputs.tokens.shape[-1] - begin, of_depth, config)
        hidden = hidden[..., where, :]
        read = model.apply({"params": params}, hidden, method="head_input")
        made.append(Predicted(where, head_logits(read, head), hidden if plain else None))
    return made


def medusa_chain(
    model: MedusaModel,
    params: PyTree,
    head: PyTree,
    inputs: DrafterInputs,
    depths: int,
    key: Key[Array, ""] | None = None,
    config: Any = None,
) -> list[Predicted]:
    """Predicts by Medusa heads: depth d is head d on the feature d positions back, plus its Markov term."""
    made, length = [], inputs.tokens.shape[-1]
    roots = jnp.sort(inputs.first + scored(length - inputs.first, key, config))
    logits = model.apply({"params": params}, inputs.features[..., roots, :], head)
    after = model.apply({"params": params}, inputs.tokens[0], method="after")
    for depth in range(depths):
        # For roots near the end, the deepest guesses would be of the next picture.
        row, kept = min(depth, model.config.heads - 1), len(roots) - depth
        where = roots[:kept] + depth
        made.append(Predicted(where, logits[..., :kept, row, :] + after[None][..., where, :]))
    return made


def kept_anchors(count: int, depths: int, keep: float, least: float) -> list[int]:
    """Returns how many roots are trained at the depths 1 to ``depths - 1``: a share of max(keep^d, least) (P-EAGLE)."""
    return [max(round(count * max(keep**depth, least)), 1) for depth in range(1, depths)]


def parallel_chain(
    model: ParallelModel,
    params: PyTree,
    head: PyTree,
    inputs: DrafterInputs,
    depths: int,
    key: Key[Array, ""] | None = None,
    config: Any = None,
) -> list[Predicted]:
    """Predicts by the parallel drafter: element (a, d) is mask d behind the committed position a.

    It sees the committed positions up to a and, of its own chain, (a, 1), ..., (a, d). With a key, a random part of the
    roots of one depth (of the `scored` ones at the first) is trained at the next, as in P-EAGLE's released code (arXiv
    2602.01469): a share of ``config.anchors_kept`` to the power of the depth, at least ``config.anchors_least``. Row i
    of every masked depth has the same root, so what a row sees of its own chain is row i of earlier depths. Without a
    key, all roots whose chain ends within the picture are trained.

    Raises LanternError for more depths than the drafter has masks.
    """
    if depths > 1 + model.config.masks:
        raise LanternError(f"{depths} passes: the drafter has depth 0 and {model.config.masks} masks")
    length, leading = inputs.tokens.shape[-1], (None,) * (inputs.tokens.ndim - 1)
    valid = seen(model.config, inputs.valid)
    rotary, keys = sequence_rotary(model.config, valid), valid[..., None, :]
    anchors = jnp.arange(inputs.first, length - depths + 1, dtype=jnp.int32)
    counts = [len(anchors)] * (depths - 1)
    if key is not None:
        anchors = anchors[jax.random.permutation(key, scored(len(anchors), key, config))]
        counts = kept_anchors(len(anchors), depths, config.anchors_kept, config.anchors_least)
    predicted, (block,) = model.apply(
        {"params": params},
        inputs.features,
        inputs.tokens,
        rotary,
        padded_causal_mask(valid),
        method="committed",
    )
    where = inputs.first + scored(length - inputs.first, key, config)
    predicted = predicted[..., where, :]
    made = [Predicted(where, head_logits(predicted.astype(jnp.float32), head), predicted)]
    blocks = [block]
    asked = model.apply({"params": params}, method="masked")
    for depth, count in enumerate(counts, 1):
        roots = anchors[:count]
        where, shape = roots + depth, (*inputs.tokens.shape[:-1], count, model.config.dim)
        committed = jnp.arange(length, dtype=jnp.int32)[None] <= roots[:, None]
        masks = [committed[leading] & keys]
        masks += [np.eye(count, places[0].shape[-2], dtype=bool)[leading] for places in blocks[1:]]
        predicted, (block,) = model.apply(
            {"params": params},
            jnp.broadcast_to(asked[depth - 1], shape),
            jnp.take(rotary, where, axis=-3),
            np.eye(count, dtype=bool)[leading],
            tuple((places,) for places in blocks),
            tuple(masks),
            method="run",
        )
        blocks.append(block)
        after = model.apply({"params": params}, inputs.tokens[0][:, where], method="after")
        predicted = predicted.astype(jnp.float32)
        made.append(Predicted(where, head_logits(predicted, head) + after[None], predicted))
    return made


@dataclass(frozen=True)
class Kind:
    """A kind of drafter, as training needs it.

    Attributes:
        config, model: the classes of its sizes and of its module.
        init: (module, key) -> its parameters.
        chain: how it predicts along whole sequences.
    """

    config: type
    model: type[nn.Module]
    init: Callable[[nn.Module, Key[Array, ""]], PyTree]
    chain: Chain


def _init_sequence(model: nn.Module, key: Key[Array, ""]) -> PyTree:
    """Draws the parameters of a module that reads features and tokens."""
    sizes = model.config
    width = inputs_width(sizes) - (sizes.dim if isinstance(sizes, Eagle3Config) else 0)
    rotary = sequence_rotary(sizes, jnp.ones((1, 2), bool))
    features, tokens = jnp.zeros((1, 2, width), jnp.float32), jnp.zeros((1, 2), jnp.int32)
    method = "__call__" if type(model) is DrafterModel else "whole"
    return model.init(key, features, tokens, rotary, jnp.tril(jnp.ones((1, 2, 2), bool)), method=method)[
        "params"
    ]


def _init_heads(model: MedusaModel, key: Key[Array, ""]) -> PyTree:
    sizes = model.config
    head = jnp.zeros((sizes.dim, sizes.num_codes), jnp.float32)
    features, tokens = jnp.zeros((1, sizes.dim), jnp.float32), jnp.zeros(1, jnp.int32)
    return model.init(key, features, head, tokens, method="whole")["params"]


KINDS = {
    "eagle": Kind(DrafterConfig, DrafterModel, _init_sequence, eagle_chain),
    "eagle3": Kind(Eagle3Config, Eagle3Model, _init_sequence, eagle_chain),
    "medusa": Kind(MedusaConfig, MedusaModel, _init_heads, medusa_chain),
    "parallel": Kind(ParallelConfig, ParallelModel, _init_sequence, parallel_chain),
}


def kind_of(sizes: Any) -> Kind:
    """Returns the kind of a drafter's config by its exact class, as one may be a subclass of another's."""
    return next(kind for kind in KINDS.values() if kind.config is type(sizes))


def inputs_width(sizes: Any) -> int:
    """Returns F, how much of the stored features a drafter's training reads, from their end.

    The last D are the target's final features, which say what to predict; EAGLE-3 reads the taps before them.
    """
    return sizes.dim * (1 + len(getattr(sizes, "taps", ())))


def check_layers(sizes: Any, stored: Sequence[int], name: str) -> None:
    """Raises LanternError unless stored features end with the states that a drafter's training reads.

    Args:
        stored: the layers that the states enter, the number of layers last (`train.features.stored_layers`).
        name: of the drafter, for messages.
    """
    wanted = (*getattr(sizes, "taps", ()), stored[-1])
    if tuple(stored[-len(wanted) :]) != wanted:
        raise LanternError(
            f"{name} reads layers {errors.listed(wanted)}, the features are of {errors.listed(stored)}: "
            f"extract others, with --taps={','.join(map(str, wanted))}"
        )
