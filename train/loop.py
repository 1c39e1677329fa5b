"""The training loop shared by the tokenizer, the target and the drafter.

A `Task` says how to start, what a step's batch is and how one step updates the state; `run` adds the rest:
one jit with the batch split over all devices, batches prepared in a background thread, checkpoints, metrics,
and exact resumption.

Everything a step depends on is in the state or is a pure function of (seed, step): killed at any moment, the
same command continues from the last checkpoint with the same data order and, on one CPU machine, ends with
the same bits.
"""

import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key, PyTree
from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lantern_jax.files import write_file

Metrics = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained.

    init(key, *initial) -> state, any pytree of arrays: parameters, optimizer state, running averages.
    batch(step) -> pytree of NumPy arrays whose leading axis is the global batch; a pure function of the step.
    update(state, batch, key, *fixed) -> state, metrics (float32 scalars); traced once. `key` is the step's own.
    initial, fixed: large arrays that the two read. What a jitted function closes over becomes a constant of the
        program; arguments do not.
    """

    init: Callable[..., PyTree]
    batch: Callable[[int], PyTree]
    update: Callable[..., tuple[PyTree, Metrics]]
    initial: tuple[PyTree, ...] = ()
    fixed: tuple[PyTree, ...] = ()


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long, and how often to write. Checkpoints are kept for the last `keep` saves."""

    steps: int
    batch_size: int
    seed: int = 0
    log_every: int = 20
    save_every: int = 200
    keep: int = 2

    def __post_init__(self):
        for name in ("steps", "batch_size", "log_every", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, expected at least 1; change --config.{name}"
                )


def loop_config(config: ConfigDict) -> LoopConfig:
    """The loop's part of an experiment's config (an ml_collections ConfigDict)."""
    names = [f.name for f in dataclasses.fields(LoopConfig)]
    return LoopConfig(**{name: config[name] for name in names if name in config})


def write_config(config: ConfigDict, workdir: str | Path) -> None:
    """Keep an experiment's config beside its checkpoints, so that these can be read without it."""
    path = Path(workdir) / "config.json"
    write_file(path, config.to_json_best_effort(indent=1) + "\n", parents=True)


def read_config(workdir: str | Path) -> ConfigDict:
    """The config that `write_config` kept. Raises ValueError where there is none."""
    path = Path(workdir) / "config.json"
    if not path.is_file():
        raise ValueError(f"{workdir} holds no config.json; give the working folder of a training run")
    return ConfigDict(json.loads(path.read_text()))


def data_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Devices, all by default, along one axis, "data"."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), ("data",))


def epoch_indices(seed: int, step: int, batch_size: int, count: int) -> np.ndarray:
    """Indices [batch_size] of a step's examples, each epoch of `count` examples in its own random order.

    Epochs follow each other without a gap, so a batch may straddle two. Raises ValueError where a batch
    exceeds an epoch.
    """
    if batch_size > count:
        raise ValueError(
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
    """Batches of the steps first..last-1 on the devices, made ahead by one background thread.

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
                put((jax.device_put(batch(step), sharding), None))
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


class MetricsFile:
    """Appends one JSON object a line; lines of steps after `step` (a run that was killed) are dropped first."""

    def __init__(self, path: Path, step: int):
        kept = []
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        write_file(path, "".join(kept))
        self._file = path.open("a", buffering=1)

    def write(self, values: dict[str, float]) -> None:
        self._file.write(json.dumps(values) + "\n")

    def close(self) -> None:
        self._file.close()


class Reporter:
    """A rich progress bar in a terminal, plain lines elsewhere."""

    def __init__(self, steps: int, done: int, unit: str = "step"):
        console = Console()
        self._steps, self._unit = steps, unit
        self._progress = None
        if console.is_terminal:
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._progress = Progress(*columns, console=console)
            self._task = self._progress.add_task("starting", total=steps, completed=done)
            self._progress.start()

    def show(self, values: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "step")
        if self._progress is None:
            print(f"{self._unit} {values['step']}/{self._steps}  {text}", flush=True)
        else:
            self._progress.update(self._task, completed=values["step"], description=text)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def open_checkpoints(workdir: Path, keep: int) -> ocp.CheckpointManager:
    """Checkpoints of a run, each made visible by a rename once it is whole.

    Saving blocks: the step after it donates the state's buffers.
    """
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, step_prefix="step", enable_async_checkpointing=False
    )
    return ocp.CheckpointManager((Path(workdir) / "checkpoints").absolute(), options=options)


def restore_latest(workdir: str | Path, abstract_state: PyTree) -> tuple[int, PyTree]:
    """(step, state) of the newest checkpoint, shaped and placed like `abstract_state`.

    `abstract_state` may be a part of what was saved: dicts for records, fewer names. Raises ValueError where
    there is no checkpoint, or none of that shape.
    """
    with open_checkpoints(workdir, keep=1000) as checkpoints:
        step = checkpoints.latest_step()
        if step is None:
            raise ValueError(f"{workdir} holds no checkpoint; train there first")
        placement = ocp.checkpoint_utils.construct_restore_args(abstract_state)
        arguments = ocp.args.PyTreeRestore(abstract_state, restore_args=placement, partial_restore=True)
        return step, checkpoints.restore(step, args=arguments)


def start_or_resume(
    task: Task, key: Key[Array, ""], checkpoints: ocp.CheckpointManager, whole: NamedSharding
) -> tuple[int, PyTree]:
    """(steps done, state): from the newest checkpoint if there is one, else from `init`; placed as `whole`."""
    init = jax.jit(task.init, out_shardings=whole)
    done = checkpoints.latest_step() or 0
    if not done:
        return 0, init(key, *task.initial)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole),
        jax.eval_shape(init, key, *task.initial),
    )
    return done, checkpoints.restore(done, args=ocp.args.StandardRestore(shapes))


def run(
    task: Task,
    config: LoopConfig,
    workdir: str | Path,
    on_save: Callable[[int, PyTree], None] | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
) -> PyTree:
    """Train to `config.steps`, from the newest checkpoint in `workdir` if there is one; returns the final
    state.

    Writes checkpoints/ and metrics.jsonl in `workdir`. `on_save(step, state)` runs at each checkpoint, for
    pictures and evaluation. The batch is split over `devices`, None being all. Raises ValueError, before
    computing, where it does not divide over them.
    """
    workdir, mesh = Path(workdir), data_mesh(devices)
    if config.batch_size % mesh.size:
        raise ValueError(
            f"batch_size {config.batch_size} does not divide over {mesh.size} devices; change it"
        )
    workdir.mkdir(parents=True, exist_ok=True)
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    init_key, update_key = jax.random.split(jax.random.key(config.seed))
    checkpoints = open_checkpoints(workdir, config.keep)
    start, state = start_or_resume(task, init_key, checkpoints, whole)
    fixed = jax.device_put(task.fixed, whole)

    def update(state: PyTree, batch: PyTree, step: Array, fixed: tuple) -> tuple[PyTree, Metrics]:
        return task.update(state, batch, jax.random.fold_in(update_key, step), *fixed)

    jitted = jax.jit(
        update, in_shardings=(whole, split, whole, whole), out_shardings=(whole, whole), donate_argnums=0
    )
    metrics_file, reporter = MetricsFile(workdir / "metrics.jsonl", start), Reporter(config.steps, start)
    since, seconds_step = time.perf_counter(), start
    try:
        for step, batch in enumerate(prefetch(task.batch, start, config.steps, split), start + 1):
            state, metrics = jitted(state, batch, np.int32(step - 1), fixed)
            if step % config.log_every == 0 or step == config.steps:
                values = {name: float(value) for name, value in jax.device_get(metrics).items()}
                rate = (step - seconds_step) / (time.perf_counter() - since)
                since, seconds_step = time.perf_counter(), step
                values = {"step": step, **values, "examples_per_second": rate * config.batch_size}
                metrics_file.write(values)
                reporter.show(values)
            if step % config.save_every == 0 or step == config.steps:
                checkpoints.save(step, args=ocp.args.StandardSave(state))
                if on_save is not None:
                    on_save(step, state)
    finally:
        checkpoints.close()
        metrics_file.close()
        reporter.close()
    return state
