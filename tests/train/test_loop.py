"""The shared training loop: data order, several devices, metrics, and resumption to the same bits."""

import dataclasses
import json
import os
import re
import signal
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from configs.tiny_tokenizer import get_config
from lantern_jax.apps.commands import command_line
from tests.cases import slow
from tests.refused import refused_each
from train.loop import (
    LoopConfig,
    Task,
    epoch_indices,
    prefetch,
    restore_latest,
    run,
    training_mesh,
    working,
)


def test_each_epoch_shows_every_example_once():
    drawn = np.concatenate([epoch_indices(3, step, 8, 20) for step in range(5)])
    first, second = drawn[:20], drawn[20:]
    assert sorted(first) == sorted(second) == list(range(20))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(epoch_indices(3, 2, 8, 20), drawn[16:24])
    assert not np.array_equal(epoch_indices(4, 0, 8, 20), drawn[:8])
    with pytest.raises(ValueError, match="a batch of 21 exceeds"):
        epoch_indices(3, 0, 21, 20)


def read_metrics(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "examples_per_second"} for line in lines]


def regression_task():
    """Least squares by gradient descent on 16 fixed rows, with noise from the step's key in the metrics."""
    rng = np.random.default_rng(0)
    rows, targets = rng.standard_normal((16, 3), np.float32), rng.standard_normal(16, np.float32)

    def batch(step):
        chosen = epoch_indices(0, step, 8, 16)
        return {"x": rows[chosen], "y": targets[chosen]}

    def update(state, batch, key):
        distance = lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2)  # noqa: E731
        loss, gradient = jax.value_and_grad(distance)(state["w"])
        return {"w": state["w"] - 0.1 * gradient}, {"loss": loss, "noise": jax.random.normal(key)}

    return Task(init=lambda key: {"w": jax.random.normal(key, (3,), jnp.float32)}, batch=batch, update=update)


def test_a_longer_run_continues_from_the_checkpoint(tmp_path):
    """On all devices, with the numbers of plain NumPy; what a killed run left after its checkpoint is dropped."""
    task, config = regression_task(), LoopConfig(steps=7, batch_size=8, save_every=3, log_every=1)
    whole = run(task, config, tmp_path / "whole")["w"]
    assert whole.sharding.device_set == set(jax.devices())
    weights = np.asarray(task.init(jax.random.split(jax.random.key(0))[0])["w"])
    for step in range(7):
        x, y = task.batch(step).values()
        weights = weights - 0.1 * 2 / 8 * x.T @ (x @ weights - y)
    np.testing.assert_allclose(whole, weights, rtol=1e-5, atol=1e-6)
    run(task, dataclasses.replace(config, steps=3), tmp_path / "parts")
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 9}\n{"step": 5, "lo')
    leftover = tmp_path / "parts" / "checkpoints" / "step_6.orbax-checkpoint-tmp-1"
    leftover.mkdir()
    seen = []
    parts = run(task, config, tmp_path / "parts", on_save=lambda step, _: seen.append(step))
    np.testing.assert_array_equal(whole, parts["w"])
    assert seen == [6, 7] and not leftover.exists()
    assert read_metrics(tmp_path / "whole") == read_metrics(tmp_path / "parts")


def test_errors_come_before_the_work(tmp_path):
    refused_each({
        "steps is 0": lambda: LoopConfig(steps=0, batch_size=8),
        "batch_size 9 does not divide over 8 devices": (
            lambda: run(regression_task(), LoopConfig(steps=1, batch_size=9), tmp_path / "none")
        ),
        "holds no checkpoint": lambda: restore_latest(tmp_path, None),
    })  # fmt: skip
    assert not (tmp_path / "none").exists()


def test_an_error_in_a_batch_is_raised_at_that_batch():
    def batch(step):
        if step == 2:
            raise ValueError("picture 2 is broken")
        return np.full(8, step)

    seen = []
    with pytest.raises(ValueError, match="picture 2 is broken"):
        for value in prefetch(batch, 0, 9, NamedSharding(training_mesh(), PartitionSpec("data"))):
            seen.append(int(value[0]))
    assert seen == [0, 1]


def signalled(task: Task, number: int, step: int) -> Task:
    def batch(now):
        if now == step:
            os.kill(os.getpid(), number)
        return task.batch(now)

    return dataclasses.replace(task, batch=batch)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM)])
def test_a_signal_saves_the_step_and_the_run_can_continue(tmp_path, capfd, number):
    # As in a process of its own: the test runner may handle these signals.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {each: signal.signal(each, handler) for each, handler in usual.items()}
    task, config = regression_task(), LoopConfig(steps=400, batch_size=8, save_every=400, log_every=100)
    status = command_line.run("train.x", lambda: run(signalled(task, number, 20), config, tmp_path / "parts"))
    for each, handler in before.items():
        signal.signal(each, handler)
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    line = rf"train\.x: {word}, step (\d+) of 400 is saved in \S+: give the same command to go on\n"
    said = re.fullmatch(line, capfd.readouterr().err)
    assert status == 128 + number and 15 < int(said[1]) < 400
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())
    parts, whole = run(task, config, tmp_path / "parts"), run(task, config, tmp_path / "whole")
    np.testing.assert_array_equal(whole["w"], parts["w"])
    assert read_metrics(tmp_path / "whole") == read_metrics(tmp_path / "parts")


def test_a_folder_takes_one_run_at_a_time_and_one_config(tmp_path):
    config = get_config()
    with working(tmp_path / "run", config):
        with pytest.raises(ValueError, match=r"another process works in .*run: wait for it"):
            working(tmp_path / "run", config).__enter__()
        (tmp_path / "run" / "checkpoints" / "step_000001").mkdir(parents=True)
    # A run may be made longer; nothing else may change.
    config.steps = 2 * config.steps
    with working(tmp_path / "run", config):
        pass
    config.model.ch = 2 * config.model.ch
    with pytest.raises(ValueError, match=r"holds a run of another --config\.model: name another --workdir"):
        working(tmp_path / "run", config).__enter__()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"checkpoints", "config.json"}
