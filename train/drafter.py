"""Train the drafter on stored features of its target.

    python -m train.drafter --config configs/demo_drafter.py --target DIR --features DIR --workdir DIR

The same command resumes after a kill. EAGLE's recipe (arXiv 2401.15077): smooth-L1 between predicted and true
features plus cross-entropy against the target's distribution, uniform noise on the input features, conditional
and unconditional rows. Two additions: the cross-entropy of the *guided* distributions, because that is what
drafts are drawn from, and several passes that feed the drafter its own predictions as it meets them below the
root of a tree (HASS, arXiv 2408.15766).

Axes: G guidance rows, B batch, P prefix, T tokens of a picture, N = P + T - 2 drafter positions, V codes, D width.
"""

from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jaxtyping import Array, Float, Int, Key, PyTree
from ml_collections import ConfigDict, config_flags
from optax.contrib import muon

from lantern_jax.data.feature_store import FeatureStore
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.models.drafter import DrafterConfig, DrafterModel, sequence_rotary
from lantern_jax.models.llamagen import LlamaGenConfig
from train import target
from train.loop import Metrics, Task, epoch_indices, loop_config, read_config, run, write_config


@flax.struct.dataclass
class DrafterTrainState:
    """Everything a step needs: parameters, their running average, the optimizer's state."""

    step: Int[Array, ""]
    params: PyTree
    average: PyTree
    optimizer: PyTree


def drafter_config(config: ConfigDict, sizes: LlamaGenConfig) -> DrafterConfig:
    """The drafter's sizes: the target's, with heads and feed-forward width from an experiment's config."""
    return DrafterConfig(
        dim=sizes.dim,
        num_heads=config.model.num_heads,
        hidden_dim=config.model.hidden_dim,
        vocab_size=sizes.vocab_size,
        grid=sizes.grid,
        prefix_length=sizes.prefix_length,
        norm_eps=sizes.norm_eps,
        rope_base=sizes.rope_base,
    )


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """Muon on the matrices of the layer and of `fc`, Adam elsewhere, as the target's."""

    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        muon(
            target.linear_decay(config.rate, config.warmup, config.steps),
            adam_learning_rate=target.linear_decay(config.adam_rate, config.warmup, config.steps),
            adam_b1=0.9,
            adam_b2=0.98,
            muon_weight_dimension_numbers=target.matrices("layer_", "fc"),
        ),
    )


def drafter_passes(
    model: DrafterModel,
    params: PyTree,
    features: Float[Array, "*rows N D"],
    tokens: Int[Array, "*rows N"],
    passes: int,
) -> list[Float[Array, "*rows N D"]]:
    """Predicted features of every position at tree depth 0, 1, ..., passes - 1.

    Pass 0 reads the target's features, as when committed tokens are absorbed. In pass s a position reads what
    pass s - 1 predicted for it, and sees the true sequence up to s positions back and its s - 1 ancestors as
    the passes between made them: exactly a chain of s nodes below a root, for all roots at once. The first
    positions, whose chain would begin before the first token, read the target's features in all passes.
    """
    length, leading = features.shape[-2], (None,) * (features.ndim - 2)
    first = model.config.prefix_length - 1
    rotary = sequence_rotary(model.config, jnp.ones((1,) * len(leading) + (length,), bool))
    causal = np.tril(np.ones((length, length), bool))
    predicted, (block,) = model.apply({"params": params}, features, tokens, rotary, causal[leading])
    made, blocks = [predicted], [block]
    for depth in range(1, passes):
        shifted = jnp.concatenate([features[..., :1, :], made[-1][..., :-1, :]], axis=-2)
        drafted = (np.arange(length) >= first + depth)[*leading, :, None]
        inputs = jnp.where(drafted, jax.lax.stop_gradient(shifted), features)
        masks = [np.tril(causal, -depth)] + [np.eye(length, k=i - depth, dtype=bool) for i in range(1, depth)]
        predicted, (block,) = model.apply(
            {"params": params}, inputs, tokens, rotary, np.eye(length, dtype=bool)[leading],
            tuple((past,) for past in blocks), tuple(mask[leading] for mask in masks),
        )  # fmt: skip
        made.append(predicted)
        blocks.append(block)
    return made


def drafter_inputs(
    features: Float[Array, "*rows S D"], tokens: Int[Array, "*rows T"], prefix_length: int
) -> tuple[Float[Array, "*rows N D"], Int[Array, "*rows N"], Float[Array, "*rows N D"]]:
    """(input features, tokens one position ahead, features to predict); the prefix's tokens are 0."""
    ahead = jnp.pad(tokens[..., :-1], [(0, 0)] * (tokens.ndim - 1) + [(prefix_length - 1, 0)])
    return features[..., :-1, :], ahead, features[..., 1:, :]


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
) -> tuple[Float[Array, ""], Metrics]:
    """The loss over all passes, and the agreement of the first and last pass under guidance.

    batch: features [B, G, S, D] (float16), tokens int32 [B, T].
    """
    features = jnp.swapaxes(batch["features"], 0, 1).astype(jnp.float32)
    tokens = jnp.broadcast_to(batch["tokens"][None], (2, *batch["tokens"].shape))
    inputs, tokens, wanted = drafter_inputs(features, tokens, model.config.prefix_length)
    noise = jax.random.uniform(key, inputs.shape, jnp.float32, -config.noise, config.noise)
    made = drafter_passes(model, params, inputs + noise, tokens, config.passes)
    guidance = jnp.full(inputs.shape[1], config.guidance, jnp.float32)

    def logits_of(values: Float[Array, "G B N D"]) -> Float[Array, "G B N V"]:
        return jnp.einsum("...d,dv->...v", values, head)

    total, weights, metrics = jnp.float32(0), 0.0, {}
    for depth, predicted in enumerate(made):
        begin = model.config.prefix_length - 1 + depth
        predicted, true = predicted[..., begin:, :], wanted[..., begin:, :]
        logits, target_logits = logits_of(predicted), logits_of(true)
        guided = apply_guidance(logits, guidance), apply_guidance(target_logits, guidance)
        loss = config.feature_weight * jnp.mean(smooth_l1(predicted - true))
        loss += config.token_weight * jnp.mean(soft_cross_entropy(logits, target_logits))
        loss += config.guided_weight * jnp.mean(soft_cross_entropy(*guided))
        weight = config.pass_weight**depth
        total, weights = total + np.float32(weight) * loss, weights + weight
        metrics |= {f"{name}_{depth}": value for name, value in agreement(*guided).items()}
    return total / np.float32(weights), metrics


def make_task(
    config: ConfigDict, sizes: DrafterConfig, head: Float[np.ndarray, "D V"], store: FeatureStore | None
) -> Task:
    """The drafter's training task; `head` is the target's. Without a store it only describes the state."""
    model, optimizer = DrafterModel(sizes), make_optimizer(config)

    def init(key: Key[Array, ""]) -> DrafterTrainState:
        example = jnp.zeros((1, 2, sizes.dim), jnp.float32), jnp.zeros((1, 2), jnp.int32)
        rotary = sequence_rotary(sizes, jnp.ones((1, 2), bool))
        mask = jnp.tril(jnp.ones((1, 2, 2), bool))
        params = model.init(key, *example, rotary, mask)["params"]
        average = jax.tree.map(jnp.copy, params)
        return DrafterTrainState(jnp.int32(0), params, average, optimizer.init(params))

    def batch(step: int) -> dict[str, np.ndarray]:
        chosen = epoch_indices(config.seed, step, config.batch_size, len(store))
        features, tokens = store.read(chosen)
        return {"features": np.swapaxes(features, 0, 1), "tokens": tokens}

    def update(
        state: DrafterTrainState, batch: PyTree, key: Key[Array, ""]
    ) -> tuple[DrafterTrainState, Metrics]:
        def loss_of(params: PyTree) -> tuple[Array, Metrics]:
            return drafter_loss(model, params, jnp.asarray(head), batch, key, config)

        (loss, metrics), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        changes, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, changes)
        average = target.running_average(state.average, params, state.step, config.average)
        return DrafterTrainState(state.step + 1, params, average, optimizer_state), {"loss": loss, **metrics}

    return Task(init=init, batch=batch, update=update)


def export(workdir: str | Path, target_folder: str | Path) -> tuple[DrafterConfig, PyTree]:
    """The newest checkpoint of a run as (sizes, averaged DrafterModel parameters in float32 NumPy arrays).

    Raises ValueError where a folder holds no run.
    """
    config = read_config(workdir)
    sizes = drafter_config(config, target.target_config(read_config(target_folder)))
    head = np.zeros((sizes.dim, sizes.vocab_size), np.float32)
    return sizes, target.restore_parameters(make_task(config, sizes, head, None), workdir)


def train(
    config: ConfigDict, target_folder: str | Path, features_folder: str | Path, workdir: str | Path
) -> None:
    """Train as `config` says on stored features, in `workdir`; resumes.

    Raises ValueError where the target or the features are missing, or a sequence has the wrong length.
    """
    store = FeatureStore(features_folder)
    target_sizes, params = target.export(target_folder)
    expected = target_sizes.prefix_length + target_sizes.num_tokens - 1
    found = store.read([0])[0].shape[2]
    if found != expected:
        raise ValueError(
            f"{features_folder} holds {found} features a picture, the target makes {expected}; extract them again"
        )
    sizes = drafter_config(config, target_sizes)
    write_config(config, workdir)
    run(make_task(config, sizes, params["head"]["kernel"], store), loop_config(config), workdir)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    train(options.config, options.target, options.features, options.workdir)


if __name__ == "__main__":
    config_flags.DEFINE_config_file(
        "config", None, "experiment, e.g. configs/demo_drafter.py", lock_config=True
    )
    flags.DEFINE_string("target", None, "working folder of the target's training run")
    flags.DEFINE_string("features", None, "folder that train.features wrote")
    flags.DEFINE_string("workdir", None, "where checkpoints and metrics go")
    flags.mark_flags_as_required(["config", "target", "features", "workdir"])
    app.run(main)
