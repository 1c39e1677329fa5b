"""Train the classifier of landscapes that the demo's quality is measured with.

    python -m train.classifier [--config FILE] [--tokenizer DIR] [--workdir DIR] [--out FILE] [--config.steps=N ...]

The same command resumes after a kill. Half of the pictures of a batch are as painted, half as the demo's tokenizer
reconstructs them, all mirrored, moved and tinted a little at random. Writes the parameters in float16 as one .npz, such
as lantern_jax/assets/demo_classifier.npz, and prints the accuracy of every attribute on held-out pictures, painted and
reconstructed.

Axes: B batch, n pictures, H W height and width, A attributes, V values of all of them.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree, UInt8
from ml_collections import ConfigDict

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.metrics.agreement import (
    CELL,
    Classifier,
    DemoClassifier,
    by_attribute,
    classifier_arrays,
    read_classifier,
)
from lantern_jax.apps.metrics.landscapes import ATTRIBUTES
from lantern_jax.checkpoints.store import model_directory
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import new_file, write_file
from lantern_jax.models.vq import VQConfig, VQModel
from train import script
from train.averaging import cosine_decay
from train.claims import claim
from train.encode import Tokenizer, claims, read_tokenizer
from train.feature_store import map_array
from train.loop import LoopConfig, Metrics, Task, check, epoch_indices, loop_config, run, working
from train.painter.scenes import sample_scene
from train.rendered import rendered_landscapes

# Pictures per pass.
CHUNK = 32


@flax.struct.dataclass
class ClassifierState:
    """Parameters and the optimizer's state."""

    params: PyTree
    optimizer: PyTree


def attributes_of(seed: int, count: int) -> Int[np.ndarray, "n A"]:
    """Returns the indices of the values of landscapes 0..count-1 of a seed, int32."""
    return np.array([sample_scene(seed, i).indices() for i in range(count)], np.int32)


@partial(jax.jit, static_argnums=0)
def reconstruct(
    config: VQConfig, params: PyTree, pictures: UInt8[Array, "n H W 3"]
) -> UInt8[Array, "n H W 3"]:
    """Encodes and decodes pictures with a tokenizer; ``params`` are ``VQModel``'s."""
    made = VQModel(config).apply(params, scaled(pictures))
    return jnp.round((jnp.clip(made, -1.0, 1.0) + 1.0) * 127.5).astype(jnp.uint8)


def reconstructed(path: Path, pictures: UInt8[np.ndarray, "n H W 3"], tokenizer: Tokenizer) -> np.ndarray:
    """Returns pictures as a tokenizer reconstructs them, read-only and memory-mapped.

    The first call writes them to ``path``; a killed call leaves no file of that name.
    """
    if not path.exists():
        with new_file(path) as temporary:
            store = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=pictures.shape)
            for first in range(0, len(pictures), CHUNK):
                part = pictures[first : first + CHUNK]
                filled = np.resize(part, (CHUNK, *part.shape[1:]))
                made = reconstruct(tokenizer.config, {"params": tokenizer.params}, filled)
                store[first : first + len(part)] = np.asarray(made)[: len(part)]
            store.flush()
    return map_array(path)


def scaled(pictures: UInt8[Array, "n H W 3"]) -> Float[Array, "n H W 3"]:
    """Converts bytes to [-1, 1]."""
    return pictures.astype(jnp.float32) / 127.5 - 1.0


def moved(
    pictures: UInt8[np.ndarray, "n H W 3"], shift: int, generator: np.random.Generator
) -> UInt8[np.ndarray, "n H W 3"]:
    """Mirrors half of the pictures at random, and moves all by at most ``shift`` pixels either way, edges repeated."""
    count, height, width, _ = pictures.shape
    padded = np.pad(pictures, ((0, 0), (shift, shift), (shift, shift), (0, 0)), mode="edge")
    rows, columns = generator.integers(2 * shift + 1, size=(2, count))
    cut = [
        padded[i, row : row + height, column : column + width]
        for i, (row, column) in enumerate(zip(rows, columns, strict=True))
    ]
    mirror = generator.random(count) < 0.5
    return np.stack([part[:, ::-1] if flip else part for part, flip in zip(cut, mirror, strict=True)])


def tinted(
    pictures: Float[Array, "B H W 3"], gain: float, offset: float, key: Key[Array, ""]
) -> Float[Array, "B H W 3"]:
    """Scales and offsets each channel of pictures in [-1, 1] a little."""
    one, other = jax.random.normal(key, (2, pictures.shape[0], 1, 1, 3), jnp.float32)
    return jnp.clip(pictures * jnp.exp(gain * one) + offset * other, -1.0, 1.0)


def loss_and_right(
    scores: Float[Array, "B V"], attributes: Int[Array, "B A"], counts: Sequence[int]
) -> tuple[Float[Array, ""], Float[Array, " A"]]:
    """Returns the mean cross-entropy of the attributes, in nats, and the share of right answers of each.

    ``counts`` says how many values each attribute has.
    """
    losses, right = [], []
    for i, part in enumerate(by_attribute(scores, counts)):
        losses.append(jnp.mean(optax.softmax_cross_entropy_with_integer_labels(part, attributes[:, i])))
        right.append(jnp.mean((jnp.argmax(part, axis=-1) == attributes[:, i]).astype(jnp.float32)))
    return jnp.mean(jnp.stack(losses)), jnp.stack(right)


def make_task(
    config: ConfigDict,
    painted: UInt8[np.ndarray, "n H W 3"],
    rebuilt: UInt8[np.ndarray, "n H W 3"],
    attributes: Int[np.ndarray, "n A"],
) -> Task:
    """Returns the training task on pictures as painted and as reconstructed (may be memory-mapped)."""
    model = DemoClassifier()
    schedule = cosine_decay(config.rate, config.warmup, config.steps)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.clip), optax.adamw(schedule, weight_decay=config.decay)
    )

    def init(key: Key[Array, ""]) -> ClassifierState:
        params = model.init(key, jnp.zeros((1, *painted.shape[1:]), jnp.float32))["params"]
        return ClassifierState(params=params, optimizer=optimizer.init(params))

    def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
        indices = epoch_indices(config.seed, step, config.batch_size, len(painted))
        generator = np.random.default_rng((config.seed, step, 1))
        sources = generator.random(len(indices)) < 0.5
        chosen = np.stack(
            [(rebuilt if source else painted)[i] for i, source in zip(indices, sources, strict=True)]
        )
        return moved(chosen, config.shift, generator), attributes[indices]

    def update(
        state: ClassifierState, batch: tuple[Array, Array], key: Key[Array, ""]
    ) -> tuple[ClassifierState, Metrics]:
        pictures = tinted(scaled(batch[0]), config.gain, config.offset, key)

        def loss(params: PyTree) -> tuple[Array, Array]:
            return loss_and_right(model.apply({"params": params}, pictures)[1], batch[1], model.counts)

        (value, right), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        changes, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, changes)
        metrics = {"loss": value} | dict(zip(ATTRIBUTES, right, strict=True))
        return ClassifierState(params=params, optimizer=optimizer_state), metrics

    return Task(init=init, batch=batch, update=update)


@partial(jax.jit, static_argnums=0)
def right_of(
    model: DemoClassifier, params: PyTree, pictures: UInt8[Array, "B H W 3"], attributes: Int[Array, "B A"]
) -> Float[Array, " A"]:
    """Returns the share of right answers of each attribute."""
    scores = model.apply({"params": params}, scaled(pictures))[1]
    return loss_and_right(scores, attributes, model.counts)[1]


def accuracy(
    classifier: Classifier, pictures: UInt8[np.ndarray, "n H W 3"], attributes: Int[np.ndarray, "n A"]
) -> dict[str, float]:
    """Returns the share of right answers by attribute, over whole chunks of the pictures."""
    firsts = range(0, len(pictures) - CHUNK + 1, CHUNK)
    right = [
        right_of(
            classifier.model,
            classifier.params,
            pictures[first : first + CHUNK],
            attributes[first : first + CHUNK],
        )
        for first in firsts
    ]
    means = np.mean(jax.device_get(right), axis=0)
    return {name: round(float(value), 4) for name, value in zip(classifier.attributes, means, strict=True)}


def train(
    config: ConfigDict, tokenizer: str | Path, workdir: str | Path, out: str | Path | None = None
) -> None:
    """Trains in ``workdir`` as ``config`` says; resumes a run that is there.

    The parameters go to ``out``, by default in ``workdir``; ``tokenizer`` is as ``read_tokenizer`` takes it.
    """
    workdir, loop = Path(workdir), loop_config(config)
    example = np.zeros((1, config.size, config.size, 3), np.uint8)
    with script.reading("the experiment", "change its --config"):
        none = np.zeros((1, len(ATTRIBUTES)), np.int32)
        if config.size % CELL:
            raise LanternError(f"pictures of {config.size} pixels, no multiple of {CELL}")
        task = make_task(config, example, example, none)
    check(task, loop)
    epoch_indices(config.seed, 0, config.batch_size, config.pictures)
    trained = read_tokenizer(tokenizer)
    if config.held_out < CHUNK:
        raise LanternError(f"--config.held_out {config.held_out} is too few: give at least {CHUNK}")
    with working(workdir, config):
        train_in(config, loop, trained, workdir, Path(out or workdir / "demo_classifier.npz"))


def train_in(config: ConfigDict, loop: LoopConfig, tokenizer: Tokenizer, workdir: Path, path: Path) -> None:
    """Trains once all but the folder is checked: raises LanternError if that holds pictures of another tokenizer."""
    given = tokenizer._replace(seed=config.data_seed, side=config.size)
    claim(workdir, claims(given, pictures=config.pictures, held_out=config.held_out))
    sets = {}
    for name, seed, count in (
        ("pictures", config.data_seed, config.pictures),
        ("held_out", config.data_seed + 1, config.held_out),
    ):
        painted = rendered_landscapes(workdir / name, seed, count, config.size)
        rebuilt = reconstructed(workdir / f"{name}_rebuilt_{seed}_{count}.npy", painted, tokenizer)
        sets[name] = painted, rebuilt, attributes_of(seed, count)
    state = run(make_task(config, *sets["pictures"]), loop, workdir)
    trained = Classifier(jax.device_get(state.params), dict(ATTRIBUTES), config.size)
    write_file(path, lambda file: np.savez(file, **classifier_arrays(trained)))
    classifier = read_classifier(path)
    painted, rebuilt, attributes = sets["held_out"]
    report = {"parameters": sum(leaf.size for leaf in jax.tree.leaves(classifier.params))}
    for name, pictures in (("painted", painted), ("reconstructed", rebuilt)):
        report[name] = accuracy(classifier, pictures, attributes)
    print(json.dumps(report, indent=1))


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    script.add_experiment(parser, "configs/demo_classifier.py")
    add = parser.add_argument
    add(
        "--tokenizer",
        type=arguments.model,
        default="demo",
        metavar="DIR",
        help="working folder of the tokenizer's run, or a checkpoint directory (default: the demo's)",
    )
    script.add_workdir(parser, "where pictures, checkpoints and metrics go", "runs/demo/classifier")
    add(
        "--out",
        type=arguments.new_file,
        help="file for the parameters (default: WORKDIR/demo_classifier.npz)",
    )
    options = script.parse(parser, argv, "demo_classifier.py")
    train(options.config, model_directory(options.tokenizer), options.workdir, options.out)


if __name__ == "__main__":
    run_script(main)
