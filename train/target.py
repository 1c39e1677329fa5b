"""Train the label-conditional LlamaGen target on encoded pictures.

    python -m train.target --config configs/demo_target.py --tokens DIR --workdir DIR [--config.steps=N ...]

The same command resumes after a kill. LlamaGen's recipe (arXiv 2406.06525): cross-entropy over the picture's codes,
with all of the conditioning dropped for a tenth of the pictures, so that guidance has an unconditional row. Single
attributes are dropped as well, so prompts may leave some out. Muon on the layers' matrices, Adam on the rest; the
exported weights are a running average.

Axes: B batch, A attributes, T codes of a picture.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree
from ml_collections import ConfigDict

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import load
from lantern_jax.devices.partition import Where, place
from lantern_jax.families.llamagen.model import LlamaGen, LlamaGenConfig
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_arrays
from train import script
from train.averaging import (
    TrainState,
    compute_dtype,
    make_optimizer,
    matrices,
    next_state,
    restore_parameters,
    stacked,
    start_state,
)
from train.claims import claim, parameters_digest
from train.loop import Metrics, Task, check, epoch_indices, loop_config, read_config, run, working

VALIDATION_BATCH = 16
# The defaults for drawing pictures, judged by eye on sheets of 36 prompts and two seeds: guidance 4.5 looks no more
# real than 3, shows fewer terrains and costs tokens per pass. At temperature 1, a few tokens in every picture come from
# what the model has not learnt.
SAMPLING = {"guidance": 3.0, "temperature": 0.8}


def target_config(config: ConfigDict) -> LlamaGenConfig:
    """Returns the target's sizes, from an experiment's config."""
    labels = {
        "num_labels": LANDSCAPES.num_labels,
        "label_slots": LANDSCAPES.num_attributes,
        "null_labels": LANDSCAPES.null_labels().tolist(),
    }
    return LlamaGenConfig(**labels | config.model.to_dict())


def scale_residual_outputs(params: PyTree, num_layers: int) -> PyTree:
    """Divides what the layers add to the stream by sqrt(2 layers), against its growth with depth (GPT-2's init)."""

    def scale(path: tuple, leaf: Array) -> Array:
        names = [getattr(part, "key", None) for part in path]
        added = "out" in names or "down" in names
        return leaf * np.float32((2 * num_layers) ** -0.5) if added else leaf

    return jax.tree_util.tree_map_with_path(scale, params)


def drop_labels(
    labels: Int[Array, "B A"], null: Int[Array, " A"], key: Key[Array, ""], all_rate: float, one_rate: float
) -> Int[Array, "B A"]:
    """Replaces all labels of a picture by the `null` ones at `all_rate`, and each label by itself at `one_rate`."""
    all_key, one_key = jax.random.split(key)
    everything = jax.random.bernoulli(all_key, all_rate, (labels.shape[0], 1))
    single = jax.random.bernoulli(one_key, one_rate, labels.shape)
    return jnp.where(everything | single, null[None], labels)


def cross_entropy(logits: Float[Array, "B T V"], tokens: Int[Array, "B T"]) -> Float[Array, ""]:
    """Returns the mean nats per token."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens))


def make_task(config: ConfigDict, tokens: np.ndarray, attributes: np.ndarray) -> Task:
    """Returns the target's training task.

    Args:
        tokens: integers [n, T].
        attributes: int32 [n, A], indices as the data set gives them (-1 is unspecified).
    """
    sizes = target_config(config)
    model = LlamaGen(sizes, compute_dtype(config))
    optimizer = stacked(matrices("layer_"), partial(make_optimizer, config))
    labels, null = (
        LANDSCAPES.label_ids(attributes),
        jnp.asarray(sizes.unconditional_labels, jnp.int32),
    )

    def init(key: Key[Array, ""]) -> TrainState:
        example = jnp.zeros((1, labels.shape[1]), jnp.int32), jnp.zeros((1, sizes.num_tokens), jnp.int32)
        params = scale_residual_outputs(model.init(key, *example)["params"], sizes.num_layers)
        return start_state(params, optimizer)

    def batch(step: int) -> dict[str, np.ndarray]:
        chosen = epoch_indices(config.seed, step, config.batch_size, len(tokens))
        return {"tokens": tokens[chosen].astype(np.int32), "labels": labels[chosen]}

    def update(state: TrainState, batch: PyTree, key: Key[Array, ""]) -> tuple[TrainState, Metrics]:
        dropped = drop_labels(batch["labels"], null, key, config.drop_all, config.drop_one)

        def loss_of(params: PyTree) -> Array:
            _, logits = model.apply({"params": params}, dropped, batch["tokens"])
            return cross_entropy(logits.astype(jnp.float32), batch["tokens"])

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        metrics = {"loss": loss, "gradient_norm": optax.tree.norm(gradients)}
        return next_state(state, gradients, optimizer, config.average), metrics

    return Task(init=init, batch=batch, update=update)


def read_tokens(folder: str | Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads tokens [n, T] and attributes [n, A] from a file of `train.encode`.

    Its `name` is "train" or "validation".

    Raises LanternError if they are missing, or are of landscapes with other attributes.
    """
    path = Path(folder) / f"{name}.npz"
    if not path.is_file():
        raise LanternError(f"{path} is missing; run `python -m train.encode` first")
    with script.reading(path, "run `python -m train.encode` again"):
        arrays = read_arrays(path)
        LANDSCAPES.label_ids(arrays["attributes"])
        return arrays["tokens"], arrays["attributes"]


@partial(jax.jit, static_argnums=0)
def held_out_loss(
    sizes: LlamaGenConfig, params: PyTree, labels: Int[Array, "B A"], tokens: Int[Array, "B T"]
) -> Float[Array, ""]:
    """Returns the mean nats per token."""
    _, logits = LlamaGen(sizes).apply({"params": params}, labels, tokens)
    return cross_entropy(logits, tokens)


def validation_loss(
    sizes: LlamaGenConfig, params: PyTree, tokens: Int[np.ndarray, "n T"], labels: Int[np.ndarray, "n A"]
) -> tuple[float, float]:
    """Returns the mean nats per token on held-out pictures, (with all their labels, with none of them)."""
    nulls = np.broadcast_to(np.array(sizes.unconditional_labels, np.int32), labels.shape)
    means = []
    for rows in (labels, nulls):
        parts = [
            slice(i, i + VALIDATION_BATCH)
            for i in range(0, len(tokens) - VALIDATION_BATCH + 1, VALIDATION_BATCH)
        ]
        values = [held_out_loss(sizes, params, rows[part], tokens[part].astype(np.int32)) for part in parts]
        means.append(float(np.mean([float(value) for value in values])))
    return means[0], means[1]


def export(workdir: str | Path) -> tuple[LlamaGenConfig, PyTree]:
    """Reads a run's newest checkpoint as (sizes, averaged LlamaGen parameters in float32 NumPy arrays).

    Raises LanternError if `workdir` holds no run.
    """
    config = read_config(workdir)
    with script.reading(f"the run in {workdir}", "give the working folder of a target's run"):
        sizes = target_config(config)
    nothing = np.zeros((1, sizes.num_tokens), np.int32), np.zeros((1, sizes.label_slots), np.int32)
    return sizes, restore_parameters(make_task(config, *nothing), workdir)


def read_target(
    folder: str | Path,
    dtype: Any = np.float32,
    sharding: Where | None = None,
) -> Checkpoint:
    """Reads the target of a checkpoint directory, or of the working folder of a run of this script.

    Args:
        dtype, sharding: as in `store.load`; a run's parameters are float32.

    Raises LanternError if the folder is neither.
    """
    if not (Path(folder) / "checkpoints").is_dir():
        return load(folder, dtype, sharding)
    sizes, params = export(folder)
    return Checkpoint(
        model="landscapes",
        target_config=sizes,
        target_params={"params": params} if sharding is None else place({"params": params}, sharding),
        vocabulary=LANDSCAPES,
        defaults=dict(SAMPLING),
    )


def train(config: ConfigDict, tokens_folder: str | Path, workdir: str | Path) -> None:
    """Trains in `workdir` as `config` says, on the tokens of `train.encode`; resumes a run that is there.

    Raises LanternError if the tokens are missing or do not fit the config, or if the folder holds a run on others.
    """
    tokens, attributes = read_tokens(tokens_folder, "train")
    held_out, held_out_attributes = read_tokens(tokens_folder, "validation")
    with script.reading("the experiment", "change --config.model"):
        sizes = target_config(config)
    if tokens.shape[1] != sizes.num_tokens or tokens.max() >= sizes.vocab_size:
        raise LanternError(
            f"tokens {tokens.shape} up to {tokens.max()}: expected {sizes.num_tokens} per picture below "
            f"{sizes.vocab_size}; change --config.model.grid and --config.model.vocab_size"
        )
    loop, task = loop_config(config), make_task(config, tokens, attributes)
    check(task, loop)
    epoch_indices(config.seed, 0, config.batch_size, len(tokens))
    if min(config.validation, len(held_out)) < VALIDATION_BATCH:
        raise LanternError(
            f"--config.validation {config.validation} of {len(held_out)}: take at least {VALIDATION_BATCH}"
        )
    held_out_labels = LANDSCAPES.label_ids(held_out_attributes)

    def on_save(step: int, state: TrainState) -> None:
        rows = (part[: config.validation] for part in (held_out, held_out_labels))
        losses = validation_loss(sizes, state.average, *rows)
        print(
            f"step {step}: held-out {losses[0]:.4f} nats per token, {losses[1]:.4f} without labels",
            flush=True,
        )

    with working(workdir, config):
        claim(Path(workdir), {"tokens": parameters_digest({"tokens": tokens, "attributes": attributes})})
        run(task, loop, workdir, on_save)


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    script.add_experiment(parser)
    add = parser.add_argument
    add("--tokens", type=arguments.folder, required=True, help="folder that train.encode wrote")
    script.add_workdir(parser, "where checkpoints and metrics go")
    options = script.parse(parser, argv, "demo_target.py")
    train(options.config, options.tokens, options.workdir)


if __name__ == "__main__":
    run_script(main)
