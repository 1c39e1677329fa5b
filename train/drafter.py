"""Train the drafter on stored features of its target.

    python -m train.drafter --config configs/demo_drafter.py --target DIR --features DIR --workdir DIR

The target is a checkpoint directory or the working folder of `train.target`; of it training needs the head. The
same command resumes after a kill. EAGLE's recipe (arXiv 2401.15077): smooth-L1 between predicted and true
features plus cross-entropy against the target's distribution, uniform noise on the input features, conditional
and unconditional rows. Two additions: the cross-entropy of the *guided* distributions, because that is what
drafts are drawn from, and several passes that feed the drafter its own predictions as it meets them below the
root of a tree (HASS, arXiv 2408.15766).

Axes: G guidance rows, B batch, P prefix, T tokens of a stream, N = P + T - 2 drafter positions, V codes, D width.
"""

from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from ml_collections import ConfigDict, config_flags
from optax.contrib import muon

from lantern_jax.data.feature_store import FeatureStore
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.families import TargetConfig, family_of
from lantern_jax.models.drafter import DrafterConfig, DrafterModel, sequence_rotary
from lantern_jax.models.transformer import padded_causal_mask
from train import target
from train.features import target_claims
from train.loop import Metrics, Task, epoch_indices, loop_config, read_config, run, write_config
from train.sources import claimed


@flax.struct.dataclass
class DrafterTrainState:
    """Everything a step needs: parameters, their running average, the optimizer's state."""

    step: Int[Array, ""]
    params: PyTree
    average: PyTree
    optimizer: PyTree


def drafter_config(config: ConfigDict, sizes: TargetConfig) -> DrafterConfig:
    """The drafter's sizes: what the target decides, with the experiment's `model`: num_heads, hidden_dim, qk_norm."""
    shared = {"norm_eps": sizes.norm_eps, "rope_base": sizes.rope_base, **sizes.shared_with_drafter}
    return DrafterConfig(**config.model, **shared)


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """Muon on the matrices of the layer and of `fc`, Adam elsewhere, as the target's; a `rate` of 0: Adam on all."""
    matrices = ("layer_", "fc") if config.rate else ()
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        muon(
            target.linear_decay(config.rate, config.warmup, config.steps),
            adam_learning_rate=target.linear_decay(config.adam_rate, config.warmup, config.steps),
            adam_b1=0.9,
            adam_b2=0.98,
            muon_weight_dimension_numbers=target.matrices(*matrices),
        ),
    )


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


def smooth_l1(difference: Float[Array, "*rows D"]) -> Float[Array, "*rows"]:
    """Huber's loss with threshold 1, mean over the width."""
    size = jnp.abs(difference)
    return jnp.mean(jnp.where(size < 1, 0.5 * size**2, size - 0.5), axis=-1)


def soft_cross_entropy(
    logits: Float[Array, "*rows V"], target_logits: Float[Array, "*rows V"]
) -> Float[Array, "*rows"]:
    """Cross-entropy of the drafter's distribution under the target's."""
    return -jnp.sum(jax.nn.softmax(target_logits) * jax.nn.log_softmax(logits), axis=-1)


def agreement(logits: Float[Array, "*rows V"], target_logits: Float[Array, "*rows V"]) -> Metrics:
    """How often both have the same best code, and sum of min(p, q): what a strict draft token is worth."""
    same = jnp.argmax(logits, axis=-1) == jnp.argmax(target_logits, axis=-1)
    overlap = jnp.sum(jnp.minimum(jax.nn.softmax(logits), jax.nn.softmax(target_logits)), axis=-1)
    return {"top1": jnp.mean(same.astype(jnp.float32)), "overlap": jnp.mean(overlap)}


def drafter_loss(
    model: DrafterModel,
    params: PyTree,
    head: Float[Array, "D V"],
    batch: PyTree,
    key: Key[Array, ""],
    config: ConfigDict,
    free: Bool[np.ndarray, " T"],
) -> tuple[Float[Array, ""], Metrics]:
    """The loss over all passes, and the agreement of the first and last pass under guidance.

    batch: features [B, G, S, D] (float16), prefix int32 [B, G, P], tokens int32 [B, T]. Where the next token is
    forced (not `free`), distributions do not matter and only the features count: the drafter goes on from them.
    """
    features, prefix = (jnp.swapaxes(batch[name], 0, 1) for name in ("features", "prefix"))
    tokens = jnp.broadcast_to(batch["tokens"][None], (len(prefix), *batch["tokens"].shape))
    inputs, wanted = drafter_inputs(features.astype(jnp.float32), prefix, tokens)
    noise = jax.random.uniform(key, inputs.features.shape, jnp.float32, -config.noise, config.noise)
    inputs = inputs.replace(features=inputs.features + noise)
    made = drafter_passes(model, params, inputs, config.passes)
    guidance = jnp.full(tokens.shape[1], config.guidance, jnp.float32)

    total, weights, metrics = jnp.float32(0), 0.0, {}
    for depth, predicted in enumerate(made):
        begin = inputs.first + depth
        predicted, true = predicted[..., begin:, :], wanted[..., begin:, :]
        sampled = slice(None) if free.all() else np.flatnonzero(free[1 + depth :])
        logits, target_logits = (
            jnp.einsum("...d,dv->...v", values[..., sampled, :], head) for values in (predicted, true)
        )
        guided = apply_guidance(logits, guidance), apply_guidance(target_logits, guidance)
        loss = config.feature_weight * jnp.mean(smooth_l1(predicted - true))
        loss += config.token_weight * jnp.mean(soft_cross_entropy(logits, target_logits))
        loss += config.guided_weight * jnp.mean(soft_cross_entropy(*guided))
        weight = config.pass_weight**depth
        total, weights = total + np.float32(weight) * loss, weights + weight
        metrics |= {f"{name}_{depth}": value for name, value in agreement(*guided).items()}
    return total / np.float32(weights), metrics


def make_task(
    config: ConfigDict,
    sizes: DrafterConfig,
    head: Float[np.ndarray, "D V"] | None = None,
    store: FeatureStore | None = None,
    *,
    free: Bool[np.ndarray, " T"] | None = None,
    embedding: Float[np.ndarray, "vocab D"] | jax.ShapeDtypeStruct | None = None,
) -> Task:
    """The drafter's training task. Without a head and a store it only describes the state.

    Args:
        head: the target's.
        free: which positions of the stream are sampled; None for all.
        embedding: the target's token table, for the drafter's own to start from; None for a random one.
    """
    optimizer = make_optimizer(config)
    model = DrafterModel(sizes, jnp.dtype(config.get("dtype", "float32")))

    def init(key: Key[Array, ""], *embedding: Float[Array, "vocab D"]) -> DrafterTrainState:
        example = jnp.zeros((1, 2, sizes.dim), jnp.float32), jnp.zeros((1, 2), jnp.int32)
        rotary = sequence_rotary(sizes, jnp.ones((1, 2), bool))
        mask = jnp.tril(jnp.ones((1, 2, 2), bool))
        params = model.init(key, *example, rotary, mask)["params"]
        for table in embedding:
            params = params | {"tokens": {"embedding": table.astype(jnp.float32)}}
        average = jax.tree.map(jnp.copy, params)
        return DrafterTrainState(jnp.int32(0), params, average, optimizer.init(params))

    def batch(step: int) -> dict[str, np.ndarray]:
        chosen = epoch_indices(config.seed, step, config.batch_size, len(store))
        return dict(zip(("features", "prefix", "tokens"), store.read(chosen), strict=True))

    def update(
        state: DrafterTrainState, batch: PyTree, key: Key[Array, ""], head: Float[Array, "D V"]
    ) -> tuple[DrafterTrainState, Metrics]:
        sampled = np.ones(batch["tokens"].shape[-1], bool) if free is None else free

        def loss_of(params: PyTree) -> tuple[Array, Metrics]:
            return drafter_loss(model, params, head, batch, key, config, sampled)

        (loss, metrics), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        changes, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, changes)
        average = target.running_average(state.average, params, state.step, config.average)
        return DrafterTrainState(state.step + 1, params, average, optimizer_state), {"loss": loss, **metrics}

    initial = () if embedding is None else (embedding,)
    return Task(init, batch, update, initial=initial, fixed=(head,))


def export(workdir: str | Path, target_folder: str | Path) -> tuple[DrafterConfig, PyTree]:
    """The newest checkpoint of a run as (sizes, averaged DrafterModel parameters in float32 NumPy arrays).

    Raises ValueError where a folder holds no run.
    """
    config = read_config(workdir)
    sizes = drafter_config(config, target.read_target(target_folder, abstract=True).target_config)
    return sizes, target.restore_parameters(make_task(config, sizes), workdir)


def train(
    config: ConfigDict, target_folder: str | Path, features_folder: str | Path, workdir: str | Path
) -> None:
    """Train as `config` says on stored features, in `workdir`; resumes.

    Raises ValueError where the target or the features are missing, or do not belong together.
    """
    store = FeatureStore(features_folder)
    # A run's parameters are float32, a checkpoint's stay as stored: of 7 billion a few rows are needed.
    checkpoint = target.read_target(target_folder, None)
    sizes, params = checkpoint.target_config, checkpoint.target_params["params"]
    found = claimed(Path(features_folder))
    wanted = target_claims(sizes, checkpoint.target_params, found.get("dtype", "float32"))
    if any(found.get(name) != value for name, value in wanted.items()):
        raise ValueError(
            f"{features_folder} holds features of another target than {target_folder}: extract them again"
        )
    free = family_of(sizes).target(sizes, jnp.dtype(jnp.float32)).forced < 0
    head = np.asarray(family_of(sizes).head(checkpoint.target_params), np.float32)
    embedding = None
    if config.get("embedding_from_target", False):
        embedding = np.asarray(params["tokens"]["embedding"])
    del checkpoint, params
    write_config(config, workdir)
    task = make_task(config, drafter_config(config, sizes), head, store, free=free, embedding=embedding)
    run(task, loop_config(config), workdir)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    train(options.config, options.target, options.features, options.workdir)


if __name__ == "__main__":
    config_flags.DEFINE_config_file(
        "config", None, "experiment, e.g. configs/demo_drafter.py", lock_config=True
    )
    flags.DEFINE_string(
        "target", None, "checkpoint directory, or working folder of the target's training run"
    )
    flags.DEFINE_string("features", None, "folder that train.features wrote")
    flags.DEFINE_string("workdir", None, "where checkpoints and metrics go")
    flags.mark_flags_as_required(["config", "target", "features", "workdir"])
    app.run(main)
