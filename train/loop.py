"""The training loop shared by the tokenizer, the target and the drafter.

A `Task` says how to start, what a step's batch is and how one step updates the state; `run` adds the rest: one jit
with the batch, and the model if asked, split over devices; batches prepared in the background; checkpoints; metrics.

A step depends only on the state and on pure functions of (seed, step): after a kill at any moment, the same command
continues from the last checkpoint with the data in the same order and, on one CPU machine, ends with the same bits.
"""

import collections
import contextlib
import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, Key, PyTree
from ml_collections import ConfigDict

from lantern_jax.apps.terminal import locks
from lantern_jax.devices import hosts
from lantern_jax.devices.partition import AXES, DATA, device_grid, everywhere, place, sharding_at
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json, write_file
from train.reports import Log
from train.script import check_workdir, reading
from train.signals import deferred

Metrics = dict[str, Array]

# How many steps devices may be behind. More would only hold more batches; and with 32 queued on several devices of a
# CPU, its runtime waits forever: threads that launch a step wait for a place, and those that reduce over devices wait
# for these threads.
STEPS_AHEAD = 4
# What may change when a run is continued: how long it is, and how often it writes.
FREE = ("steps", "log_every", "save_every", "keep")
# What it means if a config lacks the name, as those of older runs do.
UNSAID = {"dtype": "float32", "scored": 1.0, "loss": "cross_entropy"}
_LARGEST = 2**28  # The most bytes of a config.


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained.

    init(key, *initial) -> state, any pytree of arrays: parameters, optimizer state, running averages.
    batch(step) -> pytree of NumPy arrays whose leading axis is the global batch; a pure function of the step.
    update(state, batch, key, **fixed) -> state, metrics (float32 scalars); traced once. `key` is the step's own.
    initial, fixed: large arrays that `init` and `update` read. What a jitted function closes over becomes a constant of
        the program; arguments do not.

    Over a mesh, each array is placed like the parameter of its name (`partition`); batches are split over "data".
    """

    init: Callable[..., PyTree]
    batch: Callable[[int], PyTree]
    update: Callable[..., tuple[PyTree, Metrics]]
    initial: tuple[PyTree, ...] = ()
    fixed: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long to train, and how often to write; the last `keep` checkpoints are kept."""

    steps: int
    batch_size: int
    seed: int = 0
    log_every: int = 20
    save_every: int = 200
    keep: int = 2

    def __post_init__(self):
        for name in ("steps", "batch_size", "log_every", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise LanternError(
                    f"{name} is {getattr(self, name)}, expected at least 1; change --config.{name}"
                )


def loop_config(config: ConfigDict) -> LoopConfig:
    """Returns the loop's part of an experiment's config."""
    names = [f.name for f in dataclasses.fields(LoopConfig)]
    return LoopConfig(**{name: config[name] for name in names if name in config})


def write_config(config: ConfigDict, workdir: str | Path) -> None:
    """Writes an experiment's config beside its checkpoints, so that they can be read without the experiment."""
    path = Path(workdir) / "config.json"
    write_file(path, config.to_json_best_effort(indent=1) + "\n", parents=True)


def read_config(workdir: str | Path) -> ConfigDict:
    """Reads the config that `write_config` wrote. Raises LanternError if there is none."""
    path = Path(workdir) / "config.json"
    if not path.is_file():
        raise LanternError(f"{workdir} holds no config.json; give the working folder of a training run")
    with reading(path, "give the working folder of another training run"):
        return ConfigDict(read_json(path, _LARGEST))


@contextlib.contextmanager
def working(workdir: str | Path, config: ConfigDict | None = None) -> Iterator[None]:
    """Makes a folder that only this process works in during the block, and keeps an experiment's config in it.

    Raises LanternError if another process works there, or if it holds a run of another config.
    """
    workdir = Path(workdir)
    if config is not None:
        check_workdir(workdir)
    if config is not None and any((workdir / "checkpoints").glob("step_*")):
        both = (json.loads(part.to_json_best_effort()) for part in (read_config(workdir), config))
        kept, given = (UNSAID | values for values in both)
        other = [name for name in kept if name not in FREE and given.get(name, kept[name]) != kept[name]]
        if other:
            raise LanternError(
                f"{workdir} holds a run of another --config.{other[0]}: name another --workdir, or give "
                f"{errors.short(kept[other[0]])}"
            )
    busy = f"another process works in {workdir}: wait for it, or name another --workdir"
    with locks.sole(workdir / "run", busy) if hosts.is_first() else contextlib.nullcontext():
        if config is not None and hosts.is_first():
            write_config(config, workdir)
        yield


def training_mesh(devices: str | Sequence[jax.Device] | None = None) -> Mesh:
    """Returns the mesh [data, model] of devices as in `device_grid`; None for all, each with a whole model."""
    return Mesh(device_grid(jax.devices() if devices is None else devices), AXES)


def shardings(tree: PyTree, mesh: Mesh) -> PyTree:
    """Returns the shardings of a training state: averages and moments are split like their parameters."""

    def sharding(path: tuple, leaf: Any) -> Sharding:
        names = [key for key in path if isinstance(key, jax.tree_util.DictKey)]
        return sharding_at(mesh, [jax.tree_util.DictKey("params"), *names], leaf.shape)

    return jax.tree_util.tree_map_with_path(sharding, tree)


def epoch_indices(seed: int, step: int, batch_size: int, count: int) -> np.ndarray:
    """Returns the indices [batch_size] of a step's examples, each epoch of `count` examples in its own random order.

    Epochs follow each other without a gap, so a batch may straddle two. A batch that exceeds an epoch raises
    LanternError.
    """
    if batch_size > count:
        raise LanternError(
            f"a batch of {batch_size} exceeds the {count} examples; lower batch_size or add examples"
        )
    first = step * batch_size
    epoch, offset = divmod(first, count)
    order = np.random.default_rng((seed, epoch)).permutation(count)
    taken = order[offset : offset + batch_size]
    if len(taken) < batch_size:
        following = np.random.default_rng((seed, epoch + 1)).permutation(count)
        taken = np.concatenate([taken, following[: batch_size - len(taken)]])
    return taken


def prefetch(
    batch: Callable[[int], PyTree], first: int, last: int, sharding: NamedSharding, depth: int = 2
) -> Iterator[PyTree]:
    """Yields the batches of steps first..last-1 on the devices, made ahead by a background thread.

    An error in the thread is raised here, in its place in the order.
    """
    ready: queue.Queue = queue.Queue(depth)
    closed = threading.Event()

    def put(item: tuple[PyTree, Exception | None]) -> None:
        while not closed.is_set():
            try:
                return ready.put(item, timeout=0.2)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for step in range(first, last):
                put((place(batch(step), sharding), None))
                if closed.is_set():
                    return
        except Exception as error:
            put((None, error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        for _ in range(first, last):
            value, error = ready.get()
            if error is not None:
                raise error
            yield value
    finally:
        closed.set()
        thread.join()


def open_checkpoints(workdir: Path, keep: int, clean: bool = False) -> ocp.CheckpointManager:
    """Opens a run's checkpoints, each made visible by a rename once it is whole.

    Saving blocks: the step after it donates the state's buffers. `clean` removes what killed runs left behind.
    """
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        step_prefix="step",
        enable_async_checkpointing=False,
        cleanup_tmp_directories=clean,
    )
    return ocp.CheckpointManager((Path(workdir) / "checkpoints").absolute(), options=options)


def restore_latest(workdir: str | Path, abstract_state: PyTree) -> tuple[int, PyTree]:
    """Reads (step, state) of the newest checkpoint, shaped and placed like `abstract_state`.

    `abstract_state` may be a part of what was saved, with dicts for records and fewer names. Raises LanternError if
    there is no checkpoint, or none of that shape.
    """
    with open_checkpoints(workdir, keep=1000) as checkpoints:
        step = checkpoints.latest_step()
        if step is None:
            raise LanternError(f"{workdir} holds no checkpoint; train there first")
        placement = ocp.checkpoint_utils.construct_restore_args(abstract_state)
        arguments = ocp.args.PyTreeRestore(abstract_state, restore_args=placement, partial_restore=True)
        with reading(f"step {step} of {workdir}", "remove it to take the one before, or train anew"):
            return step, checkpoints.restore(step, args=arguments)


def start_or_resume(
    task: Task, seed: int, checkpoints: ocp.CheckpointManager, mesh: Mesh
) -> tuple[int, PyTree]:
    """Returns (steps done, state) on the mesh: from the newest checkpoint if there is one, else from `init`."""

    def init(*initial: PyTree) -> PyTree:
        return task.init(_keys(seed)[0], *initial)

    shapes = jax.eval_shape(init, *task.initial)
    places = shardings(shapes, mesh)
    done = checkpoints.latest_step() or 0
    if not done:
        return 0, jax.jit(init, out_shardings=places)(*everywhere(task.initial, mesh))
    shapes = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), shapes, places
    )
    with reading(f"step {done} in {checkpoints.directory}", "remove it to go on from the one before"):
        return done, checkpoints.restore(done, args=ocp.args.StandardRestore(shapes))


def check(task: Task, config: LoopConfig, devices: str | Sequence[jax.Device] | None = None) -> None:
    """Raises LanternError, before any work, if the batch does not divide over devices or no state can be made."""
    data = training_mesh(devices).shape[DATA]
    if config.batch_size % data:
        raise LanternError(f"batch_size {config.batch_size} does not divide over {data} devices; change it")
    with reading("the experiment", "change --config.model"):
        jax.eval_shape(lambda *initial: task.init(_keys(config.seed)[0], *initial), *task.initial)


def _keys(seed: int) -> Key[Array, "2"]:
    """Returns the keys for the start and for the steps, on the devices that use them."""
    return jax.random.split(jax.random.key(seed))


def run(
    task: Task,
    config: LoopConfig,
    workdir: str | Path,
    on_save: Callable[[int, PyTree], None] | None = None,
    *,
    devices: str | Sequence[jax.Device] | None = None,
) -> PyTree:
    """Trains to `config.steps`, from the newest checkpoint in `workdir` if there is one; returns the final state.

    Writes checkpoints/ and metrics.jsonl in `workdir`. `on_save(step, state)` runs before each checkpoint, for
    pictures and evaluation. `devices` are as in `training_mesh`; if they belong to several processes, all of these
    call `run`, and the first one writes metrics. In a script, Ctrl-C and SIGTERM wait for the end of a step, which is
    saved. Raises LanternError as `check` does, before computing anything.
    """
    check(task, config, devices)
    workdir, mesh = Path(workdir), training_mesh(devices)
    workdir.mkdir(parents=True, exist_ok=True)
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(DATA))
    checkpoints = open_checkpoints(workdir, config.keep, clean=True)
    start, state = start_or_resume(task, config.seed, checkpoints, mesh)
    places, fixed_places = (shardings(tree, mesh) for tree in (state, task.fixed))
    fixed = jax.tree.map(place, dict(task.fixed), fixed_places)

    def update(state: PyTree, batch: PyTree, step: Array, fixed: dict) -> tuple[PyTree, Metrics]:
        return task.update(state, batch, jax.random.fold_in(_keys(config.seed)[1], step), **fixed)

    jitted = jax.jit(
        update,
        in_shardings=(places, split, whole, fixed_places),
        out_shardings=(places, whole),
        donate_argnums=0,
    )
    log = Log(workdir, start, config.steps)
    since, seconds_step = time.perf_counter(), start
    with contextlib.ExitStack() as ending:
        ending.callback(log.close), ending.callback(checkpoints.close)
        signal = ending.enter_context(deferred())
        # Closed first, so that its thread has ended before anything else is closed.
        batches = ending.enter_context(contextlib.closing(prefetch(task.batch, start, config.steps, split)))
        queued: collections.deque[Metrics] = collections.deque()
        for step, batch in enumerate(batches, start + 1):
            state, metrics = jitted(state, batch, np.int32(step - 1), fixed)
            queued.append(metrics)
            if len(queued) > STEPS_AHEAD:
                jax.block_until_ready(queued.popleft())
            if step % config.log_every == 0 or step == config.steps:
                values = {name: float(value) for name, value in jax.device_get(metrics).items()}
                rate = (step - seconds_step) / (time.perf_counter() - since)
                since, seconds_step = time.perf_counter(), step
                values = {"step": step, **values, "examples_per_second": rate * config.batch_size}
                log.write(values)
            stop, due = signal(), step % config.save_every == 0 or step == config.steps
            if due and on_save is not None:
                on_save(step, state)
            # Several processes would save different steps: the last save that was due stands.
            if due or (stop and jax.process_count() == 1):
                checkpoints.save(step, args=ocp.args.StandardSave(state))
            if stop:
                kept = f"step {checkpoints.latest_step() or 0} of {config.steps} is saved in {workdir}"
                raise KeyboardInterrupt(f"{stop}, {kept}: give the same command to go on")
    return state
