"""What the target's and the drafters' training share: Muon and Adam, and a running average of the parameters."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PyTree
from ml_collections import ConfigDict
from optax.contrib import MuonDimensionNumbers, muon

from lantern_jax.apps.commands.options import DTYPES
from lantern_jax.devices.platform import default_dtype
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.quantization import INPUT_AXES, KERNEL
from train.loop import Task, restore_latest


@flax.struct.dataclass
class TrainState:
    """Everything a step needs: parameters, their running average, the optimizer's state."""

    step: Int[Array, ""]
    params: PyTree
    average: PyTree
    optimizer: PyTree


def start_state(params: PyTree, optimizer: optax.GradientTransformation) -> TrainState:
    average = jax.tree.map(jnp.copy, params)
    return TrainState(jnp.int32(0), params, average, optimizer.init(params))


def next_state(
    state: TrainState, gradients: PyTree, optimizer: optax.GradientTransformation, decay: float
) -> TrainState:
    """Returns the state after a step of the optimizer, its parameters averaged with the earlier ones."""
    changes, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
    params = optax.apply_updates(state.params, changes)
    average = running_average(state.average, params, state.step, decay)
    return TrainState(state.step + 1, params, average, optimizer_state)


def running_average(average: PyTree, params: PyTree, step: Int[Array, ""], decay: float) -> PyTree:
    """Returns the next exponential average; short at first, so that it soon forgets the initial weights."""
    count = step.astype(jnp.float32)
    keep = jnp.minimum(jnp.float32(decay), (count + 1) / (count + 10))
    return jax.tree.map(lambda a, p: a + (1 - keep) * (p - a), average, params)


def compute_dtype(config: ConfigDict) -> np.dtype:
    """Returns the dtype of a step's products: `config.dtype` ("auto" for what suits the device), float32 if unset.

    Raises LanternError for an unknown one.
    """
    name = config.get("dtype", "float32")
    if name not in (known := ("auto", *DTYPES)):
        raise errors.unknown("--config.dtype", name, known)
    return default_dtype() if name == "auto" else jnp.dtype(name)


def make_optimizer(config: ConfigDict, numbers: Callable[[PyTree], PyTree]) -> optax.GradientTransformation:
    """Returns Muon on what has dimension numbers and Adam elsewhere, both clipped, warmed up and decayed to 0."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        muon(
            linear_decay(config.rate, config.warmup, config.steps),
            adam_learning_rate=linear_decay(config.adam_rate, config.warmup, config.steps),
            adam_b1=0.9,
            adam_b2=0.98,
            muon_weight_dimension_numbers=numbers,
        ),
    )


def stacked(
    numbers: Callable[[PyTree], PyTree],
    make: Callable[[Callable[[PyTree], PyTree]], optax.GradientTransformation],
) -> optax.GradientTransformation:
    """Returns an optimizer that treats all matrices of one shape as one array.

    Muon's products are many and small: one by one, a GPU spends more on starting them than on computing them.

    Args:
        numbers: maps parameters to their dimension numbers, inputs before outputs, None for what is no matrix.
        make: maps such a function of stacks to the optimizer.
    """

    def groups(tree: PyTree) -> dict[str, list[list[int]]]:
        """Returns the places of leaves that are stacked, by their number of input axes; 0 is no matrix."""
        leaves, structure = jax.tree.flatten(tree)
        found: dict[str, dict[Any, list[int]]] = {}
        for place, (leaf, kind) in enumerate(
            zip(leaves, structure.flatten_up_to(numbers(tree)), strict=True)
        ):
            inputs = 0 if kind is None else len(kind.reduction_axis)
            found.setdefault(str(inputs), {}).setdefault(leaf.shape if inputs else place, []).append(place)
        return {inputs: list(of_shape.values()) for inputs, of_shape in found.items()}

    def stack(tree: PyTree) -> PyTree:
        leaves = jax.tree.leaves(tree)
        return {
            inputs: [jnp.stack([leaves[place] for place in places]) for places in of_shape]
            for inputs, of_shape in groups(tree).items()
        }

    def unstack(stacks: PyTree, like: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(like)
        for inputs, of_shape in groups(like).items():
            for array, places in zip(stacks[inputs], of_shape, strict=True):
                for place, leaf in zip(places, array, strict=True):
                    leaves[place] = leaf
        return jax.tree.unflatten(structure, leaves)

    def of_stack(path: tuple, leaf: Array) -> MuonDimensionNumbers | None:
        inputs, axes = int(path[0].key), tuple(range(1, leaf.ndim))
        return MuonDimensionNumbers(axes[:inputs], axes[inputs:]) if inputs else None

    inner = make(lambda stacks: jax.tree_util.tree_map_with_path(of_stack, stacks))

    def update(updates: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
        changes, state = inner.update(stack(updates), state, stack(params))
        return unstack(changes, updates), state

    return optax.GradientTransformation(lambda params: inner.init(stack(params)), update)


def all_but(optimizer: optax.GradientTransformation, kept: Collection[str]) -> optax.GradientTransformation:
    """Returns an optimizer of all modules but those named in `kept`, which stay as they are."""

    def labels(params: PyTree) -> PyTree:
        return {name: "kept" if name in kept else "trained" for name in params}

    return optax.multi_transform({"trained": optimizer, "kept": optax.set_to_zero()}, labels)


def check_frozen(config: ConfigDict, task: Task) -> None:
    """Raises LanternError if a module that is to stay frozen is not one of the model's."""
    if frozen := config.get("frozen", ()):
        modules = jax.eval_shape(task.init, jax.random.key(0), *task.initial).params
        for name in sorted({*frozen} - {*modules}):
            raise errors.unknown("part in --config.frozen", name, modules)


def linear_decay(peak: float, warmup: int, steps: int) -> optax.Schedule:
    """Returns a rate that rises from 0 over `warmup` steps, then falls linearly to 0 at `steps`."""
    rising = optax.linear_schedule(0.0, peak, warmup)
    return optax.join_schedules([rising, optax.linear_schedule(peak, 0.0, max(steps - warmup, 1))], [warmup])


def cosine_decay(peak: float, warmup: int, steps: int, last: float = 0.0) -> optax.Schedule:
    """Returns a rate that rises from 0 over `warmup` steps, then falls along a cosine to `last` at `steps`.

    Raises LanternError if the warmup leaves no steps.
    """
    if warmup >= steps:
        raise LanternError(
            f"a warmup of {warmup} leaves none of {steps} steps: change --config.warmup or steps"
        )
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, last)


def matrices(*prefixes: str) -> Callable[[PyTree], PyTree]:
    """Returns a function from parameters to Muon's dimension numbers.

    They are the input and the output axes of kernels in modules whose names begin with one of `prefixes`, and None,
    which means Adam, for everything else: scales and biases of heads have two axes too, but are no matrices.
    """

    def of_leaf(path: tuple, leaf: Array) -> MuonDimensionNumbers | None:
        names = [str(getattr(part, "key", "")) for part in path]
        if leaf.ndim < 2 or names[-1] != KERNEL or not any(name.startswith(prefixes) for name in names):
            return None
        axes, inputs = tuple(range(leaf.ndim)), next((INPUT_AXES[n] for n in names if n in INPUT_AXES), 1)
        return MuonDimensionNumbers(axes[:inputs], axes[inputs:])

    return lambda params: jax.tree_util.tree_map_with_path(of_leaf, params)


def restore_parameters(task: Task, workdir: str | Path, name: str = "average") -> Any:
    """Returns a part of a run's newest state, such as `average` or `params`, as NumPy arrays.

    Raises LanternError where `workdir` holds no checkpoint.
    """
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        getattr(jax.eval_shape(task.init, jax.random.key(0), *task.initial), name),
    )
    _, state = restore_latest(workdir, {name: shapes})
    return jax.tree.map(np.asarray, state[name])
