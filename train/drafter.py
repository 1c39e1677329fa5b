"""Train a drafter on its target's features, stored or computed in every step.

    python -m train.drafter --config configs/demo_drafter.py --target DIR --features DIR --workdir DIR
    python -m train.drafter --config configs/demo_drafter.py --target DIR --folder DIR|--tokens DIR --workdir DIR

The first form reads what `train.features` wrote. The second takes pictures as `train.features` does, keeps their codes
in the working folder and computes features in the step that reads them: a step is a pass of the target longer, and a
picture takes some kilobytes of disk in place of megabytes.

The target, whose head training needs, is a checkpoint directory or the working folder of `train.target`. The
same command resumes after a kill, on other devices too (`--mesh data=2,model=4`; `--hosts` as lantern takes it).
The experiment's `kind` is EAGLE's drafter, EAGLE-3's, Medusa heads, or a parallel drafter (`train.chains` says how
each predicts along a sequence).

EAGLE's recipe (arXiv 2401.15077): smooth-L1 between predicted and true features plus cross-entropy against the
target's distribution, uniform noise on the input features, conditional and unconditional rows. Two additions: a loss
on the *guided* distributions, from which drafts are drawn, chosen among `train.losses`, and several passes that feed
the drafter its own predictions as it meets them below the root of a tree (HASS, arXiv 2408.15766). Of the other kinds,
only the parallel drafter has features to predict; their passes are the depths of a tree. Modules that the experiment
lists as `frozen`, such as the target's token table, stay as they began.

Axes: G guidance rows, B batch, P prefix, T tokens of a stream, R positions of a depth, S features of a sequence,
F width of the stored features, V codes, D width.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Key, PyTree
from ml_collections import ConfigDict

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.commands.options import DTYPES
from lantern_jax.checkpoints.checkpoint import Checkpoint, describe_shapes
from lantern_jax.checkpoints.store import load
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.devices import hosts
from lantern_jax.devices.partition import mesh_sizes
from lantern_jax.devices.platform import parameter_dtype
from lantern_jax.drafters.eagle3 import Eagle3Config
from lantern_jax.drafters.medusa import MedusaConfig
from lantern_jax.drafters.registry import kind_name
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.heads import head_logits, head_width
from train import script, target
from train.averaging import (
    TrainState,
    all_but,
    check_frozen,
    compute_dtype,
    make_optimizer,
    matrices,
    next_state,
    restore_parameters,
    start_state,
)
from train.chains import KINDS, check_layers, drafter_inputs, inputs_width, kind_of, scored_count
from train.claims import claim, claimed, parameters_digest
from train.feature_store import FeatureStore
from train.features import stored_layers, target_claims
from train.loop import Metrics, Task, check, epoch_indices, loop_config, read_config, run, working
from train.losses import agreement, counted_mean, distribution_loss, soft_cross_entropy
from train.picture_codes import PictureCodes, pictures_of

# The target's name in the note of a run's folder.
_TARGET = "target in float16"


def drafter_config(config: ConfigDict, sizes: TargetConfig) -> Any:
    """Returns the drafter's sizes: the target's, with the experiment's `model`.

    `model` has the fields of the kind's config that the target leaves open, for EAGLE num_heads, hidden_dim, qk_norm;
    the kind is the experiment's `kind`, "eagle" by default. Raises LanternError for an unknown kind.
    """
    kind = config.get("kind", "eagle")
    if kind not in KINDS:
        raise LanternError(f"unknown kind {errors.quoted(kind)} of drafter: choose one of {', '.join(KINDS)}")
    shared = {"norm_eps": sizes.norm_eps, "rope_base": sizes.rope_base, "num_codes": sizes.num_codes}
    shared |= sizes.shared_with_drafter
    fields = {field.name for field in dataclasses.fields(KINDS[kind].config)}
    return KINDS[kind].config(
        **config.model, **{name: value for name, value in shared.items() if name in fields}
    )


def smooth_l1(difference: Float[Array, "*rows D"]) -> Float[Array, "*rows"]:
    """Returns Huber's loss with threshold 1, the mean over the width."""
    size = jnp.abs(difference)
    return jnp.mean(jnp.where(size < 1, 0.5 * size**2, size - 0.5), axis=-1)


def drafter_loss(
    model: nn.Module,
    params: PyTree,
    head: PyTree,
    batch: PyTree,
    key: Key[Array, ""],
    config: ConfigDict,
    free: Bool[np.ndarray, " T"],
) -> tuple[Float[Array, ""], Metrics]:
    """Returns the loss over all depths, and the agreement at each under guidance.

    head: the target's, as in `head_logits`.
    batch: features [B, G, S, F] (float16), prefix int32 [B, G, P], tokens int32 [B, T]. Where the next token is
    forced (not `free`) only the features count: the drafter continues from them.
    """
    features, prefix = (jnp.swapaxes(batch[name], 0, 1) for name in ("features", "prefix"))
    tokens = jnp.broadcast_to(batch["tokens"][None], (len(prefix), *batch["tokens"].shape))
    inputs, wanted = drafter_inputs(features.astype(jnp.float32), prefix, tokens)
    wanted = wanted[..., -head_width(head) :]
    noise_key, chain_key, loss_key = jax.random.split(key, 3)
    noise = jax.random.uniform(noise_key, inputs.features.shape, jnp.float32, -config.noise, config.noise)
    inputs = inputs.replace(features=inputs.features + noise)
    made = kind_of(model.config).chain(model, params, head, inputs, config.passes, chain_key, config)
    guidance = jnp.full(tokens.shape[1], config.guidance, jnp.float32)
    distance = distribution_loss(config.get("loss", "cross_entropy"))
    # Where only a part of the rows is scored, the target's logits are computed for that part alone.
    target_logits = head_logits(wanted, head) if config.get("scored", 1.0) == 1.0 else None
    sampled = jnp.asarray(free[1:], jnp.float32)

    total, weights, metrics = jnp.float32(0), 0.0, {}
    for depth, predicted in enumerate(made):
        logits, at = predicted.logits, (..., predicted.where, slice(None))
        true = head_logits(wanted[at], head) if target_logits is None else target_logits[at]
        guided, true_guided = apply_guidance(logits, guidance), apply_guidance(true, guidance)
        counts = sampled[predicted.where - inputs.first]
        depth_key = jax.random.fold_in(loss_key, depth)
        loss = config.guided_weight * counted_mean(distance(guided, true_guided, depth_key), counts)
        if config.token_weight:
            loss += config.token_weight * counted_mean(soft_cross_entropy(logits, true), counts)
        if config.feature_weight and predicted.features is not None:
            difference = predicted.features - wanted[at]
            loss += config.feature_weight * jnp.mean(smooth_l1(difference))
        weight = config.pass_weight**depth
        total, weights = total + np.float32(weight) * loss, weights + weight
        found = agreement(guided, true_guided, counts)
        metrics |= {f"{name}_{depth}": value for name, value in found.items()}
    return total / np.float32(weights), metrics


def make_task(
    config: ConfigDict,
    sizes: Any,
    head: PyTree | None = None,
    examples: FeatureStore | PictureCodes | None = None,
    *,
    target_params: PyTree | None = None,
    free: Bool[np.ndarray, " T"] | None = None,
    initial: PyTree | None = None,
) -> Task:
    """Returns the drafter's training task. Without a head and examples it only describes the state.

    Args:
        head: the target's.
        target_params: all of the target's, for examples whose features are computed.
        free: which positions of the stream are sampled; None for all.
        initial: parameters to start from, by module: of all modules, or of some and the rest random.
    """
    # At a rate of 0, Adam trains all parameters.
    optimizer = make_optimizer(config, matrices(*(("layer_", "fc") if config.rate else ())))
    if frozen := config.get("frozen", ()):
        optimizer = all_but(optimizer, frozen)
    kind = kind_of(sizes)
    model = kind.model(sizes, compute_dtype(config))

    def init(key: Key[Array, ""], *initial: PyTree) -> TrainState:
        params = kind.init(model, key)
        for modules in initial:
            params = params | jax.tree.map(lambda leaf: leaf.astype(jnp.float32), modules)
        return start_state(params, optimizer)

    def batch(step: int) -> dict[str, np.ndarray]:
        chosen = epoch_indices(config.seed, step, config.batch_size, len(examples))
        if isinstance(examples, PictureCodes):
            return examples.read(chosen)
        features, prefix, tokens = examples.read(chosen)
        return {"features": features[..., -inputs_width(sizes) :], "prefix": prefix, "tokens": tokens}

    def update(
        state: TrainState, batch: PyTree, key: Key[Array, ""], head: PyTree, target: PyTree | None = None
    ) -> tuple[TrainState, Metrics]:
        batch = batch if "features" in batch else examples.with_features(target, batch)
        sampled = np.ones(batch["tokens"].shape[-1], bool) if free is None else free

        def loss_of(params: PyTree) -> tuple[Array, Metrics]:
            return drafter_loss(model, params, head, batch, key, config, sampled)

        (loss, metrics), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        return next_state(state, gradients, optimizer, config.average), {"loss": loss, **metrics}

    fixed = {"head": head} | ({} if target_params is None else {"target": target_params})
    return Task(init, batch, update, initial=() if initial is None else (initial,), fixed=fixed)


def start_modules(config: ConfigDict, sizes: Any, target_params: PyTree) -> PyTree | None:
    """Returns the modules that a run does not start at random: `initial` of `make_task`.

    With the experiment's `start_from`, a checkpoint directory, they are all modules of its drafter of the same kind, or
    of its EAGLE drafter if it has none (a parallel drafter is EAGLE's and more). Otherwise they are the target's token
    table if `embedding_from_target` says so, its final norm for EAGLE-3, and its head for Medusa's heads.

    Raises LanternError if the directory has no such drafter, or where a target's head cannot start heads.
    """
    params, initial = target_params["params"], {}
    shapes = jax.eval_shape(
        lambda key: kind_of(sizes).init(kind_of(sizes).model(sizes), key), jax.random.key(0)
    )
    if config.get("start_from", ""):
        held = load(config.start_from, np.float32).drafters
        _, found = held.get(kind_name(sizes), held.get("eagle", (None, {"params": {}})))
        found = found["params"]
        initial = {name: found[name] for name in shapes if name in found}
        if not initial or describe_shapes(initial, {name: shapes[name] for name in initial}):
            raise LanternError(f"{config.start_from} has no drafter of these sizes: change --config.model")
    elif config.get("embedding_from_target", False) and "tokens" in shapes:
        initial["tokens"] = {"embedding": params["tokens"]["embedding"]}
    if isinstance(sizes, Eagle3Config):
        initial.setdefault("norm", params["transformer"]["norm"])
    if "heads" in shapes and "heads" not in initial:
        if "kernel" not in params["head"]:
            raise LanternError(
                "heads of their own start as the target's, which has two layers here: "
                "give --config.model.shared_head=True"
            )
        initial["heads"] = np.broadcast_to(params["head"]["kernel"], shapes["heads"].shape)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), initial) or None


def free_positions(sizes: TargetConfig) -> Bool[np.ndarray, " T"]:
    """Returns which positions of a target's stream are sampled; the format forces the others."""
    return family_of(sizes).target(sizes, jnp.dtype(jnp.float32)).forced < 0


def read_head(checkpoint: Checkpoint) -> PyTree:
    """Returns the head of a checkpoint's target, as `head_logits` takes it, in float32."""
    head = family_of(checkpoint.target_config).head(checkpoint.target_params)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), head)


def target_digest(checkpoint: Checkpoint) -> str:
    """Returns a short digest of a target's weights in half precision, the same for a run and for its export."""
    return parameters_digest(checkpoint.target_params, np.float16)


def export(workdir: str | Path, checkpoint: Checkpoint) -> tuple[Any, PyTree]:
    """Reads a run's newest checkpoint as (sizes, averaged parameters of its module in float32 NumPy arrays).

    Args:
        checkpoint: of the target; for runs without a note, only its sizes are compared.

    Raises LanternError if the folder holds no run, or one for another target.
    """
    config, note = read_config(workdir), claimed(Path(workdir))
    wish = "give the working folder of a drafter's run for this target"
    with script.reading(f"the run in {workdir}", wish):
        sizes = drafter_config(config, checkpoint.target_config)
    if _TARGET in note and note[_TARGET] != target_digest(checkpoint):
        raise LanternError(f"{workdir} holds a drafter for a target of other weights: {wish}")
    return sizes, restore_parameters(make_task(config, sizes), workdir)


def check_positions(config: ConfigDict, sizes: Any, tokens: int) -> None:
    """Raises LanternError where a depth of the drafter would have no position among the `tokens` of a stream."""
    share = config.get("scored", 1.0)
    if not 1 <= config.passes < tokens:
        raise LanternError(f"--config.passes {config.passes}: give 1 to {tokens - 1}")
    if not 0 < share <= 1:
        raise errors.invalid("--config.scored", share, "a share of the positions, above 0 and up to 1")
    # Each of the last roots has one scored depth fewer than the one before.
    if isinstance(sizes, MedusaConfig) and scored_count(tokens - 1, share) < config.passes:
        raise LanternError(
            f"--config.scored {share} of {tokens - 1} positions is too few for {config.passes} passes of heads: "
            "give more, or fewer --config.passes"
        )


def train(
    config: ConfigDict,
    target_folder: str | Path,
    features_folder: str | Path | None,
    workdir: str | Path,
    mesh: str | None = None,
    *,
    pictures: Mapping[str, Any] | None = None,
    dtype: Any = np.float32,
) -> None:
    """Trains in `workdir` as `config` says; resumes a run that is there.

    Args:
        features_folder: stored features; None to compute them.
        mesh: the devices, as in `loop.training_mesh`.
        pictures: the arguments of `picture_codes.pictures_of`, whose features are computed.
        dtype: of the target that computes them.

    Raises LanternError if the target, features or pictures are missing or do not belong together, or if the folder
    holds a run on others.
    """
    # A run's parameters are float32, a checkpoint's stay as stored: of 7 billion, few are needed.
    checkpoint = target.read_target(target_folder, None if features_folder else dtype)
    sizes = checkpoint.target_config
    with script.reading("the experiment", "change --config.model"):
        drafter_sizes = drafter_config(config, sizes)
    distribution_loss(config.get("loss", "cross_entropy"))
    free = free_positions(sizes)
    check_positions(config, drafter_sizes, len(free))
    if features_folder:
        examples, params = FeatureStore(features_folder), None
        layers = stored_layers(features_folder, checkpoint, target_folder)
        check_layers(drafter_sizes, layers, "this drafter")
        sources = claimed(Path(features_folder))
    else:
        with working(workdir):
            source = pictures_of(checkpoint, workdir, **pictures, dtype=dtype)
        taps = getattr(drafter_sizes, "taps", ())
        record = family_of(sizes).target(sizes, jnp.dtype(dtype), (*taps, sizes.num_layers) if taps else ())
        examples, params = PictureCodes(record, source), checkpoint.target_params
        sources = target_claims(sizes, params, dtype) | {source.name: f"{source.count} {source.digest}"}
    sources |= {_TARGET: target_digest(checkpoint)}
    head = read_head(checkpoint)
    initial = start_modules(config, drafter_sizes, checkpoint.target_params)
    del checkpoint
    task = make_task(config, drafter_sizes, head, examples, target_params=params, free=free, initial=initial)
    loop = loop_config(config)
    check(task, loop, mesh)
    check_frozen(config, task)
    epoch_indices(config.seed, 0, config.batch_size, len(examples))
    with working(workdir, config):
        claim(Path(workdir), sources)
        run(task, loop, workdir, devices=mesh)


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    script.add_experiment(parser)
    script.add_target(parser)
    add = parser.add_argument
    given = parser.add_mutually_exclusive_group(required=True).add_argument
    given("--features", type=arguments.folder, help="folder that train.features wrote")
    given("--folder", type=arguments.folder, help="pictures with captions, or in class folders")
    given("--tokens", type=arguments.folder, help="folder that train.encode wrote")
    add("--pictures", type=arguments.whole(), help="the most to take of --folder or --tokens (default: all)")
    add("--dtype", choices=DTYPES, help="of the target that computes features: float32 on a CPU, or bfloat16")
    script.add_workdir(parser, "where checkpoints and metrics go")
    add("--mesh", help="devices, as lantern takes them: data=2,model=4 (default: all, data)")
    add("--hosts", help="be one of several processes, as lantern's --hosts")
    options = script.parse(parser, argv, "demo_drafter.py")
    for name in ("pictures", "dtype"):
        if options.features is not None and getattr(options, name) is not None:
            raise LanternError(f"--{name} is for --folder and --tokens: features have theirs, leave it out")
    if options.mesh is not None:
        mesh_sizes(options.mesh)
    if options.hosts is not None:
        hosts.join(options.hosts)
    pictures = {"folder": options.folder, "tokens": options.tokens, "most": options.pictures}
    train(
        options.config, options.target, options.features, options.workdir, options.mesh, pictures=pictures,
        dtype=parameter_dtype(options.dtype),
    )  # fmt: skip


if __name__ == "__main__":
    run_script(main)
