"""Workers of a picture set as Ray's actors: they hold accelerators, and come and go with the cluster's machines."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lantern_jax.decoding.knobs import Knob
from lantern_jax.engine.generation import Progress
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError, MissingExtra
from lantern_jax.sets.driving import Event
from lantern_jax.sets.order import SetOrder, open_order
from lantern_jax.sets.plan import SetPlan, read_plan

NEEDS = '--ray needs Ray: pip install "lantern-jax[ray]", or start workers with --worker'
# What a worker may hold, the first that a cluster has being the default.
ACCELERATORS = ("GPU", "TPU", "CPU")
# Seconds between two tellings of a worker's progress, and between two looks at the cluster.
TELLING, LOOKING = 1.0, 2.0
# Seconds in which a cluster's head has to answer.
CONNECTING = 10.0
_CACHE = "JAX_COMPILATION_CACHE_DIR"


@dataclass(frozen=True)
class Share:
    """What a worker holds: ``amount`` of ``kind``, one of ``ACCELERATORS``."""

    kind: str
    amount: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """From KIND or KIND=N.

        Raises:
            ValueError: another kind, or no whole number.
        """
        kind, given, amount = text.partition("=")
        if kind not in ACCELERATORS or (given and not (amount.isascii() and amount.isdecimal())):
            raise errors.invalid(
                "--ray-resources", text, "GPU, TPU or CPU, or a number of them such as TPU=4"
            )
        return cls(kind, Knob("--ray-resources", int, 1, "", low=1).read(amount) if given else 1)

    @property
    def options(self) -> dict[str, Any]:
        """An actor's options."""
        if self.kind == "CPU":
            return {"num_cpus": self.amount}
        # A TPU is one of Ray's named resources; reading and writing files takes no core of its own.
        held = {"num_gpus": self.amount} if self.kind == "GPU" else {"resources": {self.kind: self.amount}}
        return {"num_cpus": 0, **held}


def share_and_room(
    total: dict[str, float], machines: int, share: Share | None, workers: int | None
) -> tuple[Share, int]:
    """What each worker holds, and how many there may be.

    Args:
        total: the cluster's resources.
        machines: of the cluster.
        share: what was asked for; None: an accelerator of the first kind there is, else a CPU.
        workers: how many were asked for; None: as many as fit, and without accelerators one a machine, since a
            worker computes on all cores of its machine.
    """
    kind = next(kind for kind in ACCELERATORS if total.get(kind) or kind == "CPU")
    held = Share(kind, 1) if share is None else share
    fitting = machines if share is None and kind == "CPU" else int(total.get(held.kind, 0) // held.amount)
    return held, max(1, fitting if workers is None else workers)


class SetWorker:
    """The actor: it opens an order once, then makes shards of it."""

    def open(self, order: SetOrder, directory: Path, cache: str | None) -> tuple[SetPlan, str]:
        """What it would make, and with which software.

        Args:
            directory: of the set.
            cache: where programs are kept unless this machine's environment says it.
        """
        if cache:
            os.environ.setdefault(_CACHE, cache)
        from lantern_jax.devices.platform import versions

        self._directory, self._opened = directory, open_order(order)
        return self._opened.plan, ", ".join(f"{name} {version}" for name, version in versions().items())

    def make(self, shard: int) -> Iterator[Progress]:
        """Writes a shard; tells how far it is now and then."""
        from lantern_jax.sets.making import make_shards

        opened = self._opened
        if read_plan(self._directory).difference(opened.plan) is not None:
            raise LanternError(
                f"{self._directory} holds another set on this machine: all must share the folder"
            )
        told = time.perf_counter() - TELLING
        parts = opened.pipeline, opened.plan, self._directory, [shard], opened.knobs
        for _, now in make_shards(*parts, reader=opened.reader):
            if time.perf_counter() - told >= TELLING:
                told = time.perf_counter()
                yield now


class RayFleet:
    """Actors of a Ray cluster, as ``driving.Fleet``.

    Args:
        address: of a cluster, "auto" for the one of this machine, or "local" for one of this machine alone.
        workers, share: as ``share_and_room``.

    Raises:
        ImportError: Ray is not there.
        ValueError: no cluster answers.
    """

    def __init__(
        self, address: str, workers: int | None, share: Share | None, order: SetOrder, directory: Path
    ):
        self.ray = _connected(address, workers, share)
        self._workers, self._share = workers, share
        self._order, self._directory = order, directory
        self._actors: dict[int, Any] = {}
        # What each worker was asked last: (what, the answer on its way).
        self._asked: dict[int, tuple[str, Any]] = {}
        self._looked, self._room = 0.0, 1

    def room(self) -> int:
        if time.monotonic() - self._looked > LOOKING:
            self._look()
        return self._room

    def _look(self) -> Share:
        machines = sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in self.ray.nodes())
        total = self.ray.cluster_resources()
        share, self._room = share_and_room(total, machines, self._share, self._workers)
        self._looked = time.monotonic()
        return share

    def start(self, worker: int) -> None:
        options = self._look().options | {"scheduling_strategy": "SPREAD"}
        actor = self.ray.remote(SetWorker).options(**options).remote()
        self._actors[worker] = actor
        answer = actor.open.remote(self._order, self._directory, os.environ.get(_CACHE))
        self._asked[worker] = "open", answer

    def make(self, worker: int, shard: int) -> None:
        making = self._actors[worker].make.options(num_returns="streaming").remote(shard)
        self._asked[worker] = "make", making

    def events(self) -> list[Event]:
        waiting = {answer: worker for worker, (_, answer) in self._asked.items()}
        if not waiting:
            time.sleep(TELLING)
            return []
        ready, _ = self.ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        if not ready:
            ready, _ = self.ray.wait(list(waiting), num_returns=1, timeout=TELLING)
        return [self._heard(waiting[answer]) for answer in ready]

    def _heard(self, worker: int) -> Event:
        what, answer = self._asked[worker]
        gone = self.ray.exceptions
        try:
            if what == "make":
                return Event(worker, "progress", self.ray.get(next(answer)))
            event = Event(worker, "opened", self.ray.get(answer))
        except StopIteration:
            event = Event(worker, "written")
        except gone.RayTaskError as error:
            cause = getattr(error, "cause", None) or error
            mistaken = what == "open" and isinstance(cause, ValueError | OSError | ImportError)
            event = Event(worker, "refused" if mistaken else "lost", _line(cause))
        except gone.RayError as error:
            event = Event(worker, "lost", f"its process died: {_line(error)}")
        del self._asked[worker]
        if event.kind == "lost":
            self.stop(worker)
        return event

    def stop(self, worker: int) -> None:
        self._asked.pop(worker, None)
        actor = self._actors.pop(worker, None)
        if actor is not None:
            with contextlib.suppress(Exception):
                self.ray.kill(actor)

    def close(self) -> None:
        for worker in list(self._actors):
            self.stop(worker)
        self.ray.shutdown()


def _connected(address: str, workers: int | None, share: Share | None) -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(NEEDS) from error
    if address.startswith("ray://"):
        raise LanternError(
            f"{address} is the address of a client: give the command to a machine of the cluster, by ray job submit, "
            "with --ray auto"
        )
    if address not in ("auto", "local"):
        _check_listening(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False}
        if workers is not None and (share is None or share.kind == "CPU"):
            options |= {"num_cpus": workers * (1 if share is None else share.amount)}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise LanternError(
            f"no Ray cluster answers at {address} ({_line(error)}): give another, or local"
        ) from None
    return ray


def _check_listening(address: str) -> None:
    """Raises ValueError unless something listens at HOST:PORT: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5:
        raise errors.invalid("--ray", address, "local, auto, or HOST:PORT of a cluster's head")
    try:
        socket.create_connection((host, int(port)), CONNECTING).close()
    except (OSError, OverflowError) as error:
        raise LanternError(
            f"no Ray cluster answers at {address} ({_line(error)}): give the HOST:PORT of its head, or local"
        ) from None


def _line(error: BaseException, limit: int = 200) -> str:
    """What an error says last, on a part of a line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if len(lines[-1]) <= limit else f"{lines[-1][:limit].rsplit('. ', 1)[0]} ..."
