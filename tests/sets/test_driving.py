"""Making a set with workers that die, come late and are no good: those of Ray, run in this process without Ray."""

import dataclasses
import os
import re
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import lantern_jax.devices.compilation
import lantern_jax.pipeline.pipeline
from lantern_jax.commands.main import main
from lantern_jax.engine.generation import Progress
from lantern_jax.pipeline import plan as call_plan
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.sets import making, ray_workers, writing
from lantern_jax.sets.driving import Driver, Event
from lantern_jax.sets.order import SetOrder, open_order
from lantern_jax.sets.plan import Worker, begin, shard_paths
from lantern_jax.sets.ray_workers import SetWorker, Share, share_and_room
from lantern_jax.sets.reading import read_set
from lantern_jax.settings.settings import settings_json
from lantern_jax.settings.tuned import Found
from tests.command import assert_refused, must_not_run
from tests.tiny_checkpoint import CODES, PROMPTS, SIDE, TOKENS, tiny_pipeline

ORDER = SetOrder(
    "tiny", None, None, {"batch": 4}, PROMPTS, num=2, seed=3, format="png", shard_size=3, sums=False
)
SHARDS = 5


@pytest.fixture(autouse=True)
def tiny(request, monkeypatch):
    """The tiny checkpoint in place of any."""
    monkeypatch.setattr(
        lantern_jax.pipeline.pipeline, "load", lambda model, dtype=None, mesh=None: tiny_pipeline()
    )
    monkeypatch.setattr(lantern_jax.devices.compilation, "keep_compiled_programs", lambda: None)
    monkeypatch.setattr("lantern_jax.tensors.checksums.checkpoint_digest", lambda directory: "digest")
    monkeypatch.setattr(ray_workers, "TELLING", 0)
    if "real" not in request.fixturenames:
        monkeypatch.setattr(making, "make_shards", quick_shards)


@pytest.fixture
def real(monkeypatch):
    """Shards are decoded and drawn, not made up."""
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)


def quick_shards(pipeline, plan, directory, shards, knobs, reader=None):
    """In the place of ``make_shards``: pictures of noise that depend on their shard alone."""
    for shard in shards:
        generator, count = np.random.default_rng(shard), len(plan.numbers(shard))
        for known in range(3):
            yield None, Progress(known * count, count * TOKENS, 0, 1.0)
        pictures = generator.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
        tokens = generator.integers(0, CODES, (count, TOKENS))
        writing.write_shard(directory, plan, shard, pictures, tokens, tokens[:, 0])
        yield shard, Progress(count * TOKENS, count * TOKENS, count, 1.0)


def contents(directory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def whole(tmp_path, tiny):
    """The set of a single process."""
    directory, opened = tmp_path / "whole", open_order(ORDER)
    begin(directory, opened.plan)
    making.make_set(opened.pipeline, opened.plan, directory, Worker(), ORDER.knobs)
    return contents(directory)


class Fleet:
    """Workers of Ray's class in turns: at every look each one does a step.

    Args:
        rooms: how many there may be at each look; the last one stays.
        dies: worker -> the step at which it dies; 0 is before it opened.
        opens: worker -> what it opens in place of the order, or the error that this is.
    """

    def __init__(self, order, directory, rooms=(2,), dies=None, opens=None):
        self.order, self.directory, self.rooms = order, directory, list(rooms)
        self.dies, self.opens = dies or {}, opens or {}
        self.workers, self.making, self.steps, self.log, self.closed = {}, {}, {}, [], False

    def room(self):
        return self.rooms[0]

    def start(self, worker):
        self.workers[worker], self.steps[worker] = None, 0

    def make(self, worker, shard):
        assert worker not in self.making
        self.log.append((worker, shard))
        self.making[worker] = self.workers[worker].make(shard)

    def stop(self, worker):
        for kept in (self.workers, self.making):
            kept.pop(worker, None)

    def close(self):
        self.closed = True

    def events(self):
        self.rooms = self.rooms[1:] or self.rooms
        return [event for worker in list(self.workers) if (event := self.step(worker)) is not None]

    def step(self, worker):
        if self.steps[worker] == self.dies.get(worker):
            self.stop(worker)
            return Event(worker, "lost", "its process died")
        self.steps[worker] += 1
        if self.workers[worker] is None:
            order = self.opens.get(worker, self.order)
            if isinstance(order, Exception):
                return Event(worker, "refused", str(order))
            self.workers[worker] = SetWorker()
            return Event(worker, "opened", self.workers[worker].open(order, self.directory, None))
        if worker not in self.making:
            return None
        try:
            return Event(worker, "progress", next(self.making[worker]))
        except StopIteration:
            del self.making[worker]
            return Event(worker, "written")
        except ValueError as error:
            self.stop(worker)
            return Event(worker, "lost", str(error))


def drive(directory, **script):
    """The fleet, what was told of shards and progress, and the notes."""
    fleet, notes = Fleet(ORDER, directory, **script), []
    driver = Driver(fleet, ORDER, directory, notes.append)
    driver.open()
    return fleet, list(driver.make()), notes


SCRIPTS = {
    "one worker": {"rooms": [1]},
    "two": {},
    "more workers than shards": {"rooms": [9]},
    "one dies in a shard": {"dies": {1: 3}},
    "both die, more than once": {"dies": {1: 2, 2: 4, 3: 5, 4: 3}},
    "one dies before it is opened": {"dies": {2: 0}},
    "one comes late": {"rooms": [1, 1, 1, 1, 1, 1, 3]},
    "one dies and another comes late": {"rooms": [2, 2, 2, 2, 3], "dies": {1: 3}},
    "machines go": {"rooms": [3, 3, 3, 1], "dies": {1: 3, 2: 4}},
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_set_is_that_of_a_single_process(name, whole, tmp_path):
    directory = tmp_path / "set"
    fleet, told, notes = drive(directory, **SCRIPTS[name])
    assert contents(directory) == whole
    assert sorted(shard for shard, _ in told if shard is not None) == list(range(SHARDS))
    died = {worker: step for worker, step in SCRIPTS[name].get("dies", {}).items() if worker in fleet.steps}
    assert [note for note in notes if "lost" in note] == [
        f"worker {worker} is lost: its process died"
        for worker in sorted(
            died, key=lambda worker: notes.index(f"worker {worker} is lost: its process died")
        )
    ]
    assert len(fleet.log) == SHARDS + sum(step > 1 for step in died.values())
    assert max(len(fleet.steps), 1) <= max(SCRIPTS[name].get("rooms", [2])) + len(died)
    progress = [now for _, now in told]
    assert progress[-1].pictures == 14 and progress[-1].tokens == progress[-1].total == 14 * TOKENS
    assert all(now.tokens <= now.total and now.pictures <= 14 for now in progress)
    assert fleet.closed


def test_pictures_that_are_decoded_are_the_same_too(real, whole, tmp_path):
    fleet, told, _ = drive(tmp_path / "set", rooms=[2, 2, 2, 2, 3], dies={1: 3})
    assert contents(tmp_path / "set") == whole
    assert len(fleet.steps) == 4 and told[-1][1].tokens == 14 * TOKENS


def test_a_dead_workers_shard_goes_to_another(whole, tmp_path):
    fleet, *_ = drive(tmp_path / "set", rooms=[2], dies={1: 3})
    makers = [worker for worker, shard in fleet.log if shard == 0]
    assert makers[0] == 1 and len(makers) == 2 and makers[1] != 1
    assert {worker for worker, _ in fleet.log} >= {2, 3}, "the one in its place works too"


def test_it_goes_on_where_it_was_stopped(whole, tmp_path):
    directory = tmp_path / "set"
    fleet = Fleet(ORDER, directory)
    driver = Driver(fleet, ORDER, directory, print)
    driver.open()
    for shard, _ in driver.make():
        if shard is not None:
            break
    (directory / ".shard-00004.tar.0123abcd.part").write_bytes(b"half")
    there = set(range(SHARDS)) - set(driver.plan.missing(directory))
    assert there and there <= {0, 1}
    fleet, *_ = drive(directory)
    assert sorted(shard for _, shard in fleet.log) == sorted(set(range(SHARDS)) - there)
    assert contents(directory) == whole
    fleet, told, _ = drive(directory)
    assert not told and not fleet.log


def test_what_the_first_worker_refuses_ends_it(tmp_path):
    directory = tmp_path / "set"
    with pytest.raises(ValueError, match="tiny is not a directory"):
        drive(directory, opens={1: ValueError("tiny is not a directory")})
    assert not directory.exists()
    begin(directory, dataclasses.replace(open_order(ORDER).plan, seed=4))
    with pytest.raises(ValueError, match=r"holds another set \(seed 4, not 3\)"):
        drive(directory)


def test_later_workers_that_are_no_good_are_left_out(whole, tmp_path):
    directory = tmp_path / "set"
    opens = {2: ValueError("no such checkpoint"), 3: dataclasses.replace(ORDER, seed=9)}
    fleet, _, notes = drive(directory, rooms=[1, 1, 3], opens=opens)
    assert contents(directory) == whole
    assert notes == [
        "worker 2 is left out: no such checkpoint",
        "worker 3 is left out: it would make another set (seed 9, not 3)",
    ]
    assert set(fleet.steps) == {1, 2, 3}, "nobody is started in their stead"


def test_other_software_is_left_out(whole, tmp_path, monkeypatch):
    versions = iter(["1", "2"])
    monkeypatch.setattr("lantern_jax.devices.platform.versions", lambda: {"jax": next(versions)})
    _, _, notes = drive(tmp_path / "set")
    assert notes == ["worker 2 is left out: it would make another set (jax 2, not jax 1)"]
    assert contents(tmp_path / "set") == whole


def test_a_worker_that_was_tuned_otherwise_is_left_out(whole, tmp_path, monkeypatch):
    opened = open_order(ORDER)
    found = iter([Found(), Found({"tree": "chain"}, "tuned: a chain")])
    monkeypatch.setattr(Pipeline, "tuning", lambda self, pictures, **knobs: next(found) if knobs else Found())
    _, _, notes = drive(tmp_path / "set")
    (note,) = notes
    assert note.startswith("worker 2 is left out: it would make another set (tree ")
    assert contents(tmp_path / "set") == whole
    assert opened.knobs == {"batch": 4} and opened.note == ""


def test_the_plan_has_the_tuned_settings_that_are_used(tmp_path, monkeypatch):
    found = Found({"tree": "chain"}, "tuned: a chain")
    monkeypatch.setattr(Pipeline, "tuning", lambda self, pictures, **knobs: found)
    opened = open_order(ORDER)
    assert (opened.knobs, opened.note) == ({"tree": "chain", "batch": 4}, "tuned: a chain")
    assert opened.plan.settings == settings_json(tiny_pipeline().settings({"tree": "chain"}))


def test_the_last_one_left_out_ends_it(tmp_path):
    opens = {2: ValueError("no such checkpoint"), 3: ValueError("no such checkpoint")}
    with pytest.raises(ValueError, match="no worker is left, the last was left out: no such checkpoint"):
        drive(tmp_path / "set", rooms=[1, 2, 2, 2, 2, 1], opens=opens, dies={1: 4})


def test_a_shard_that_always_fails_is_told_once_the_others_are_there(whole, tmp_path, monkeypatch):
    make = SetWorker.make

    def fail(self, shard):
        yield from make(self, shard) if shard != 2 else ()
        if shard == 2:
            raise ValueError("the device has too little memory")

    monkeypatch.setattr(SetWorker, "make", fail)
    directory = tmp_path / "set"
    with pytest.raises(ValueError) as error:
        drive(directory)
    assert (
        str(error.value) == "shard 2 failed 3 times, the last time because: the device has too little memory"
    )
    missing = {path.name for path in shard_paths(directory, 2)}
    assert contents(directory) == {name: content for name, content in whole.items() if name not in missing}


def test_workers_that_never_open_end_it(tmp_path):
    with pytest.raises(ValueError, match=r"[56] workers in a row were lost before they began"):
        drive(tmp_path / "set", dies=dict.fromkeys(range(1, 20), 0))


def test_a_worker_without_the_folder_says_so(tmp_path):
    directory = tmp_path / "set"
    begin(directory, open_order(ORDER).plan)
    worker = SetWorker()
    worker.open(ORDER, tmp_path / "elsewhere", None)
    with pytest.raises(ValueError, match=r"elsewhere is not a picture set: there is no set\.json in it"):
        next(worker.make(0))


def test_a_worker_takes_the_cache_that_the_driver_has(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    SetWorker().open(ORDER, tmp_path, None)
    assert os.environ == {}
    SetWorker().open(ORDER, tmp_path, "/shared/cache")
    SetWorker().open(ORDER, tmp_path, "/another")
    assert os.environ == {"JAX_COMPILATION_CACHE_DIR": "/shared/cache"}


def test_two_writers_of_one_shard_do_no_harm(tmp_path):
    """Two threads write a shard over and over; a reader finds it whole whenever it looks."""
    plan, directory = (
        dataclasses.replace(open_order(ORDER).plan, prompts=PROMPTS[:1], num=3),
        tmp_path / "set",
    )
    begin(directory, plan)
    pictures = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)
    tokens, failed = np.zeros((3, TOKENS), np.int32), []

    def write() -> None:
        try:
            for _ in range(25):
                writing.write_shard(directory, plan, 0, pictures, tokens, tokens[:, 0])
        except BaseException as error:
            failed.append(error)

    write()
    first = contents(directory)
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(list(read_set(directory))) == 3
    for thread in threads:
        thread.join()
    assert not failed
    assert contents(directory) == first


def test_what_a_worker_holds_and_how_many_there_are():
    cpus, gpus = {"CPU": 16.0, "memory": 1.0}, {"CPU": 64.0, "GPU": 8.0}
    assert share_and_room(cpus, 4, None, None) == (Share("CPU", 1), 4), "one a machine"
    assert share_and_room(gpus, 2, None, None) == (Share("GPU", 1), 8)
    assert share_and_room({"CPU": 8.0, "TPU": 16.0}, 4, None, None) == (Share("TPU", 1), 16)
    assert share_and_room(gpus, 2, Share("GPU", 3), None) == (Share("GPU", 3), 2)
    assert share_and_room(cpus, 4, Share("CPU", 4), None) == (Share("CPU", 4), 4)
    assert share_and_room(cpus, 4, None, 9) == (Share("CPU", 1), 9)
    assert share_and_room(cpus, 1, Share("GPU", 1), None) == (Share("GPU", 1), 1), "there may be one later"
    assert share_and_room({}, 0, None, None) == (Share("CPU", 1), 1)
    assert Share.parse("TPU=4").options == {"num_cpus": 0, "resources": {"TPU": 4}}
    assert Share.parse("GPU").options == {"num_cpus": 0, "num_gpus": 1}
    assert Share.parse("CPU=2").options == {"num_cpus": 2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    return tmp_path


def command(*more: str) -> list[str]:
    return [
        "set", "--prompts", "prompts.txt", "--out", "set", "--num", "2", "--seed", "3", "--shard-size", "3",
        "--no-sums", "--batch", "4", *more,
    ]  # fmt: skip


def on_ray(monkeypatch, **script) -> list:
    """The fake in the place of Ray's workers; what it was asked for."""
    made = []

    def fleet(address, workers, share, order, directory):
        made.append((address, workers, share, order.model))
        return Fleet(order, directory, **script)

    monkeypatch.setattr(ray_workers, "RayFleet", fleet)
    return made


def test_the_command_makes_the_set(folder, whole, monkeypatch, capsys):
    made = on_ray(monkeypatch, dies={1: 3})
    words = ["--ray", "auto", "--ray-workers", "3", "--ray-resources", "TPU=4", "--model", "tiny"]
    assert main(command(*words)) == 0
    assert made == [("auto", 3, Share("TPU", 4), str(folder / "tiny"))]
    printed = capsys.readouterr()
    assert printed.out == "wrote 14 pictures in 5 shards to set, on Ray\n"
    assert "worker 1 is lost: its process died\n" in printed.err
    assert len(re.findall(r"^shard \d of 5 is written: \d+/14 pictures", printed.err, re.MULTILINE)) == 5
    assert contents(Path("set")) == whole


def test_ctrl_c_stops_all_and_keeps_what_is_there(folder, whole, monkeypatch, capsys):
    fleets, events = [], Fleet.events

    def interrupt(self):
        fleets.append(self)
        if list(Path("set").glob("*.tar")):
            raise KeyboardInterrupt
        return events(self)

    on_ray(monkeypatch)
    monkeypatch.setattr(Fleet, "events", interrupt)
    assert main(command("--ray", "local")) == 130
    assert fleets[0].closed
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"lantern: interrupted, [12] of 5 shards were written to set: give the same command to go on", error
    )
    monkeypatch.setattr(Fleet, "events", events)
    assert main(command("--ray", "local")) == 0
    assert contents(Path("set")) == whole


REFUSED = {
    "--ray hands out the work itself: leave --worker and --hosts out": ["--ray", "local", "--worker", "auto"],
    "--ray-workers is for workers on Ray": ["--ray-workers", "2"],
    "--ray-resources is for workers on Ray": ["--ray-resources", "GPU"],
    "--ray-workers 0 is not valid": ["--ray", "local", "--ray-workers", "0"],
    "--ray-resources 'NPU' is not valid: give GPU, TPU or CPU": ["--ray", "local", "--ray-resources", "NPU"],
    "--ray-resources 'GPU=' is not valid": ["--ray", "local", "--ray-resources", "GPU="],
    "--ray-resources 0 is not valid": ["--ray", "local", "--ray-resources", "GPU=0"],
    "--worker auto found no SLURM array": ["--worker", "auto"],
    'pip install "lantern-jax[ray]"': ["--ray", "local"],
}


@pytest.mark.parametrize("line", REFUSED)
def test_flags_that_make_no_sense_are_one_line(line, folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", must_not_run)
    assert line in assert_refused(command(*REFUSED[line]), capsys)


ADDRESSES = {
    "is the address of a client: give the command to a machine of the cluster": "ray://head:10001",
    "--ray 'head' is not valid: give local, auto, or HOST:PORT": "head",
    "--ray 'head:port' is not valid": "head:port",
    "no Ray cluster answers at 127.0.0.1:1 (": "127.0.0.1:1",
    "no Ray cluster answers at 127.0.0.1:99999 (": "127.0.0.1:99999",
}


@pytest.mark.parametrize("line", ADDRESSES)
def test_addresses_where_no_cluster_is(line, folder, monkeypatch, capsys):
    """Ray itself is not asked."""
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    assert line in assert_refused(command("--ray", ADDRESSES[line]), capsys)


def test_a_worker_of_a_cluster_says_which_and_why(folder, monkeypatch, capsys):
    names = {"ID": "5", "MIN": "4", "MAX": "5", "COUNT": "2", "STEP": "1"}
    for name, value in names.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    for more in ((), ("--worker", "auto")):
        assert main(command(*more)) == 0
        printed = capsys.readouterr()
        assert printed.err.startswith("worker 2/2: task 5 of the SLURM array 4-5\n")
        assert "shards to set, worker 2/2\n3 of 5 shards are left" in printed.out
    assert main(command("--worker", "1/1")) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("worker 1/1: as --worker says, not 2/2 for task 5 of the SLURM array 4-5\n")
