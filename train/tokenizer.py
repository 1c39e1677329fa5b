"""Train the VQ tokenizer on the built-in landscapes.

    python -m train.tokenizer --config configs/demo_tokenizer.py --workdir DIR [--config.steps=N ...]

The same command resumes after a kill. A config may name a finished run to `start_from`, and parts of it that stay
`frozen`: with all but the decoder frozen, codes keep their meaning, and a target trained on them remains valid.
Losses: pixel and Laplacian-pyramid distances, the commitment loss of VQ-VAE (arXiv 1711.00937), and, after a warm-up, a
patch discriminator with feature matching whose share of the picture's gradient is fixed (the adaptive weight of VQGAN,
arXiv 2012.09841, measured at the picture).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Key, PyTree
from ml_collections import ConfigDict
from optax.contrib import MuonDimensionNumbers, muon

from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file
from lantern_jax.models.vq import VQConfig, VQModel, l2_normalize, nearest_code
from lantern_jax.pictures.images import encode_png
from train import codebook as cb
from train import script
from train.averaging import all_but, check_frozen, compute_dtype, cosine_decay, restore_parameters, stacked
from train.discriminator import PatchDiscriminator, judge
from train.loop import Metrics, Task, check, epoch_indices, loop_config, read_config, run, working
from train.picture_losses import CELL, LossConfig, picture_psnr, reconstruction_loss
from train.rendered import rendered_landscapes
from train.script import reading


@flax.struct.dataclass
class TokenizerState:
    """Everything a step needs. `params` are VQModel's, their codebook kept equal to what `average` stands for."""

    step: Array
    params: PyTree
    optimizer: PyTree
    average: cb.CodebookAverage
    critic: PyTree
    critic_optimizer: PyTree


def make_optimizers(config: ConfigDict) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    """Returns Muon on the tokenizer's convolutions and Adam on its vectors, and Adam on the critic.

    The codebook is not trained by gradients, nor are the parts that `config.frozen` names.
    """

    def schedule(peak: float) -> optax.Schedule:
        return cosine_decay(peak, config.warmup, config.steps, 0.01 * peak)

    def dimensions(params: PyTree) -> PyTree:
        convolution = MuonDimensionNumbers(reduction_axis=(0, 1, 2), output_axis=(3,))
        return jax.tree.map(lambda leaf: convolution if leaf.ndim == 4 else None, params)

    def make(numbers: Callable[[PyTree], PyTree]) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(config.clip),
            muon(
                schedule(config.rate),
                adam_learning_rate=schedule(config.adam_rate),
                adam_b2=0.99,
                muon_weight_dimension_numbers=numbers,
                consistent_rms=0.2,
            ),
        )

    tokenizer = all_but(stacked(dimensions, make), {"codebook", *config.get("frozen", ())})
    critic_rate = optax.linear_schedule(config.critic_rate, 0.1 * config.critic_rate, config.steps)
    return tokenizer, optax.adam(critic_rate, b1=0.5, b2=0.99)


def initial_state(config: ConfigDict, key: Key[Array, ""], start: PyTree | None = None) -> TokenizerState:
    """Returns the state before the first step; `start` holds the parameters to begin from, None draws them."""
    model_key, critic_key, code_key = jax.random.split(key, 3)
    example = jnp.zeros((1, config.size, config.size, 3), jnp.float32)
    params = VQModel(vq_config(config)).init(model_key, example)["params"]
    codes = l2_normalize(jax.random.normal(code_key, params["codebook"].shape, jnp.float32))
    params = {**params, "codebook": codes} if start is None else begun_from(start, params)
    critic_params = PatchDiscriminator(**config.critic).init(critic_key, example)["params"]
    optimizer, critic_optimizer = make_optimizers(config)
    return TokenizerState(
        step=jnp.int32(0),
        params=params,
        optimizer=optimizer.init(params),
        average=cb.start_average(params["codebook"]),
        critic=critic_params,
        critic_optimizer=critic_optimizer.init(critic_params),
    )


def begun_from(start: PyTree, drawn: PyTree) -> PyTree:
    """Returns a finished run's parameters and, as drawn, those that the run does not have.

    Blocks that it does not have add nothing at first, so that a deeper decoder begins equal to the run's.
    Raises LanternError if the run has parameters that the model does not, or of other shapes.
    """
    old, new = flatten_dict(start), flatten_dict(drawn)
    for path, leaf in old.items():
        if path not in new or new[path].shape != leaf.shape:
            raise LanternError(
                f"the run that start_from names has a {'.'.join(path)} of {leaf.shape}, which this model does not: "
                "change --config.model"
            )

    def first(path: tuple[str, ...], leaf: Array) -> Array:
        if path in old:
            return jnp.asarray(old[path])
        # The last layers of residual blocks and of attention.
        return jnp.zeros_like(leaf) if path[-2] in ("conv2", "proj_out") else leaf

    return unflatten_dict({path: first(path, leaf) for path, leaf in new.items()})


def reconstruct(
    model: VQModel,
    params: PyTree,
    real: Float[Array, "B H W 3"],
    noise: Float[Array, "B h w C"],
    quantizing: Array,
    dtype: Any = jnp.float32,
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Returns ((pictures made, commitment), (encoder's vectors [B, h, w, C], their codes [B, h, w])), straight-through.

    Unless `quantizing`, the decoder reads the vectors plus `noise` instead of the codes. `dtype` is that of encoder and
    decoder; their vectors, codes and pictures are float32.
    """

    def apply(method: str, inputs: Array) -> Array:
        narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        return model.apply({"params": narrow}, inputs.astype(dtype), method=method).astype(jnp.float32)

    l2_norm = model.config.l2_norm
    z = apply("encode", real)
    vectors = l2_normalize(z) if l2_norm else z
    codes = jax.lax.stop_gradient(nearest_code(vectors, params["codebook"], l2_norm=l2_norm))
    table = model.apply({"params": params}, method="code_vectors")
    quantized = jax.lax.stop_gradient(table[codes])
    commitment = jnp.mean((vectors - quantized) ** 2)
    read = vectors + jnp.where(quantizing, jax.lax.stop_gradient(quantized - vectors), noise)
    return (apply("decode_vectors", read), commitment), (vectors, codes)


def next_average(
    average: cb.CodebookAverage,
    vectors: Array,
    codes: Array,
    step: Array,
    key: Key[Array, ""],
    loss: LossConfig,
) -> cb.CodebookAverage:
    """Folds a step's vectors in, and restarts dead codes when it is time."""
    flat = vectors.reshape(-1, vectors.shape[-1])
    average = cb.update_average(average, flat, codes.reshape(-1), decay=loss.decay)
    restarting = ((step + 1) % loss.restart_every == 0) & (step < loss.restart_until)
    restarted = cb.restart_dead(average, flat, key, threshold=loss.dead_threshold)
    return jax.tree.map(lambda a, b: jnp.where(restarting, a, b), restarted, average)


def make_task(config: ConfigDict, pictures: np.ndarray, start: PyTree | None = None) -> Task:
    """Returns the training task on uint8 pictures [n, H, W, 3] (may be memory-mapped).

    `start` holds the VQModel parameters to begin from, None draws them.
    """
    vq, loss = vq_config(config), LossConfig(**config.loss)
    dtype = compute_dtype(config)
    model, critic = VQModel(vq), PatchDiscriminator(**config.critic, dtype=dtype)
    optimizer, critic_optimizer = make_optimizers(config)

    def batch(step: int) -> np.ndarray:
        indices = epoch_indices(config.seed, step, config.batch_size, len(pictures))
        chosen = np.stack([pictures[i] for i in indices])
        flip = np.random.default_rng((config.seed, step, 1)).random(len(chosen)) < 0.5
        return np.where(flip[:, None, None, None], chosen[:, :, ::-1], chosen)

    def update(state: TokenizerState, batch: Array, key: Key[Array, ""]) -> tuple[TokenizerState, Metrics]:
        real = batch.astype(jnp.float32) / 127.5 - 1.0
        noise_key, restart_key, shift_key = jax.random.split(key, 3)
        grid = (real.shape[0], real.shape[1] // vq.downsampling, real.shape[2] // vq.downsampling)
        noise = loss.noise * jax.random.normal(noise_key, (*grid, vq.codebook_dim), jnp.float32)
        quantizing = state.step >= loss.continuous
        (made, commitment), pull_back, (vectors, codes) = jax.vjp(
            lambda params: reconstruct(model, params, real, noise, quantizing, dtype),
            state.params,
            has_aux=True,
        )
        rebuilt, picture_gradient = jax.value_and_grad(lambda m: reconstruction_loss(real, m, loss))(made)
        critic_params, critic_optimizer_state, adversarial_gradient, critic_value = judge(
            critic,
            critic_optimizer,
            state.critic,
            state.critic_optimizer,
            real,
            made,
            shift_key,
            matching=loss.matching,
            shift=loss.shift,
        )
        ramp = (state.step - loss.adversarial_start).astype(jnp.float32) / loss.adversarial_ramp
        share = loss.adversarial * jnp.clip(ramp, 0.0, 1.0)
        scale = jnp.linalg.norm(picture_gradient) / (jnp.linalg.norm(adversarial_gradient) + 1e-12)
        weight = jnp.where(quantizing, jnp.float32(loss.commitment), jnp.float32(0.0))
        (gradients,) = pull_back((picture_gradient + share * scale * adversarial_gradient, weight))
        changes, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, changes)
        average = next_average(state.average, vectors, codes, state.step, restart_key, loss)
        if "codebook" not in config.get("frozen", ()):
            params = {**params, "codebook": cb.codes_of(average, l2_norm=vq.l2_norm)}
        metrics = {
            "loss": rebuilt + loss.commitment * commitment,
            "psnr": picture_psnr(real, made),
            "commitment": commitment,
            "codes_used": jnp.sum(~cb.dead_codes(average, threshold=loss.dead_threshold)).astype(jnp.float32),
            "perplexity": cb.usage_perplexity(average.count),
            "critic": critic_value,
        }
        return TokenizerState(
            step=state.step + 1,
            params=params,
            optimizer=optimizer_state,
            average=average,
            critic=critic_params,
            critic_optimizer=critic_optimizer_state,
        ), metrics

    return Task(init=lambda key: initial_state(config, key, start), batch=batch, update=update)


def vq_config(config: ConfigDict) -> VQConfig:
    """Returns the tokenizer's sizes, from an experiment's config."""
    return VQConfig(**config.model)


def write_reconstructions(path: Path, vq: VQConfig, params: PyTree, pictures: np.ndarray) -> float:
    """Writes originals above reconstructions as one PNG, up to eight per row; returns the PSNR in dB of `pictures`."""
    real = pictures.astype(np.float32) / 127.5 - 1.0
    made = jax.jit(VQModel(vq).apply)({"params": params}, real)
    psnr = float(picture_psnr(jnp.asarray(real), made))
    rounded = np.asarray(jnp.clip(jnp.round((made + 1.0) * 127.5), 0, 255).astype(jnp.uint8))
    rows, across = [], min(len(pictures), 8)
    for first in range(0, min(len(pictures), 32) // across * across, across):
        rows += [np.concatenate(list(block[first : first + across]), axis=1) for block in (pictures, rounded)]
    write_file(path, encode_png(np.concatenate(rows)))
    return psnr


def export(workdir: str | Path) -> tuple[VQConfig, PyTree]:
    """Reads a run's newest checkpoint as (sizes, VQModel parameters in float32 NumPy arrays).

    Raises LanternError if `workdir` holds no run.
    """
    config = read_config(workdir)
    with reading(f"the run in {workdir}", "give the working folder of a tokenizer's run"):
        vq = vq_config(config)
    example = np.zeros((1, config.size, config.size, 3), np.uint8)
    return vq, restore_parameters(make_task(config, example), workdir, "params")


def check_sizes(config: ConfigDict, vq: VQConfig) -> None:
    """Raises LanternError for a size that codes, losses or the critic cannot divide, or without held-out pictures."""
    loss, critic = LossConfig(**config.loss), PatchDiscriminator(**config.critic)
    if config.held_out < 1:
        raise LanternError(f"held_out is {config.held_out}, expected at least 1")
    for what, side, of, part in (
        ("size", config.size, "a code's pixels", vq.downsampling),
        ("size", config.size, "2 ** loss.pyramid_levels", 2 ** min(loss.pyramid_levels, 64)),
        ("size", config.size, "the cells of loss.contrast", min(CELL, config.size) if loss.contrast else 1),
        ("size less loss.shift", config.size - loss.shift, "critic.fold", critic.fold),
    ):
        if side < 1 or side % part:
            raise LanternError(f"{what} is {side}, no multiple of {of}, {part}")


def train(config: ConfigDict, workdir: str | Path) -> None:
    """Trains in `workdir` as `config` says; resumes a run that is there."""
    workdir, loop = Path(workdir), loop_config(config)
    with reading("the experiment", "change its --config"):
        vq = vq_config(config)
        check_sizes(config, vq)
        example = np.zeros((1, config.size, config.size, 3), np.uint8)
    start = export(config.start_from)[1] if config.get("start_from") else None
    task = make_task(config, example, start)
    check(task, loop)
    check_frozen(config, task)
    epoch_indices(config.seed, 0, config.batch_size, config.pictures)

    def on_save(step: int, state: TokenizerState) -> None:
        psnr = write_reconstructions(workdir / f"reconstructions_{step:06d}.png", vq, state.params, held_out)
        print(f"step {step}: held-out PSNR {psnr:.2f} dB", flush=True)

    with working(workdir, config):
        pictures, held_out = (
            rendered_landscapes(workdir / name, seed, count, config.size)
            for name, seed, count in (
                ("pictures", config.data_seed, config.pictures),
                ("held_out", config.data_seed + 1, config.held_out),
            )
        )
        run(make_task(config, pictures, start), loop, workdir, on_save)


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    script.add_experiment(parser)
    script.add_workdir(parser, "where checkpoints, metrics and pictures go")
    options = script.parse(parser, argv, "demo_tokenizer.py")
    train(options.config, options.workdir)


if __name__ == "__main__":
    run_script(main)
