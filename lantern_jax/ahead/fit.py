"""How many pictures fit together on a device or a slice, by its compiler's own account.

Programs are compiled from shapes alone: no parameter is read and nothing runs.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

from lantern_jax.ahead.arguments import Batch
from lantern_jax.ahead.compiling import bytes_on_each, compile_batch
from lantern_jax.devices.data_sheets import GPU, TPU, Device
from lantern_jax.devices.platform import core_count
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.program_cache import ProgramCache
from lantern_jax.measuring.shapes import Shapes, size_of

# Programs come in powers of two; larger batches than this are no faster anywhere.
MOST = 256
# The variable that sets the share of a GPU's memory that JAX takes, and the share it takes otherwise.
_FRACTION, _GPU_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"
# By how much hasty compiling may be wrong: shares of a device's memory, too little and too much, and a share of the
# working memory.
_MISSED, _ADDED, _MISSED_WORKING = 0.01, 0.01, 0.25
# The most compilers side by side: each takes a few gigabytes for a large model.
_MOST_AT_A_TIME = 4


@dataclass(frozen=True)
class Need:
    """The bytes that a device needs while n pictures are decoded and drawn.

    Attributes:
        pictures: n.
        parameters: those of target, drafter, codebook and VQ tokenizer.
        state: caches, and what else the loop keeps from round to round.
        working: what the largest program needs besides.
    """

    pictures: int
    parameters: int
    state: int
    working: int

    @property
    def total(self) -> int:
        return self.parameters + self.state + self.working

    def times(self, pictures: int) -> "Need":
        """Returns the need of another number of pictures, if only the state grows with it."""
        return replace(self, pictures=pictures, state=self.state * pictures // self.pictures)

    def beside(self, other: "Need") -> "Need":
        """Returns the need of these programs together with others that have no state."""
        parameters, working = self.parameters + other.parameters, max(self.working, other.working)
        return replace(self, parameters=parameters, working=working)


def limit_of(device: Device) -> int:
    """Returns the bytes of a device that programs get: on a GPU, the share that JAX takes."""
    share = float(os.environ.get(_FRACTION, _GPU_SHARE)) if device.platform == GPU else 1
    return int(device.memory * share)


def fitting(
    shapes: Shapes,
    jobs: Mapping[str, Job],
    limit: int,
    tell: Callable[[str], None],
    devices: np.ndarray | None = None,
    platform: str | None = None,
) -> dict[str, Need]:
    """Returns, by job, each device's need for the largest batch that fits ``limit`` bytes, or else for the smallest.

    Args:
        tell: called with the name of each job that is done.
        devices, platform: for a slice, its stand-ins (``devices_of``) and their platform; None for a device of this
            process.
    """
    devices = np.array(jax.local_devices()[:1])[:, None] if devices is None else devices
    drawn = ProgramCache()

    def largest(name: str) -> tuple[str, Need]:
        smallest = least_of(Batch(shapes, jobs[name], len(devices), devices))

        def compiled(pictures: int, hasty: bool) -> Need:
            batch = Batch(shapes, jobs[name], pictures, devices)
            of = partial(need_there, batch, platform, limit, hasty=hasty)
            # Drawing is the same for all jobs, and compiles sooner than decoding.
            drawing, _ = drawn.obtain((batch.drawn_together, hasty), lambda: (of(("draw",)), 0.0))
            least = smallest.times(pictures).beside(drawing)
            sure = limit * (1 + _ADDED) if hasty else limit
            if least.total > sure and pictures > smallest.pictures:
                return least
            return of(("start", "advance")).beside(drawing)

        def needs(pictures: int) -> Need:
            if platform == TPU and is_clear(found := compiled(pictures, hasty=True), limit):
                return found
            return compiled(pictures, hasty=False)

        found = largest_there(needs, limit, smallest)
        tell(name)
        return name, found

    with ThreadPoolExecutor(min(core_count(), _MOST_AT_A_TIME)) as pool:
        return dict(pool.map(largest, jobs))


def largest_there(needs: Callable[[int], Need], limit: int, smallest: Need) -> Need:
    """Returns the need of the largest batch, ``smallest.pictures`` times a power of two, that fits in ``limit`` bytes.

    No batch is compiled whose parameters and state alone are too large, so the first one is mostly the answer or twice
    as large. If the smallest does not fit, its need is returned.

    Args:
        needs: pictures -> what they need.
        smallest: what the smallest batch needs at least.
    """
    least = smallest.pictures
    room = (limit - smallest.parameters) / max(1, smallest.state / least)
    pictures = min(_power(room, least), MOST * least)
    found = needs(pictures)
    while found.total > limit and pictures > least:
        pictures //= 2
        found = needs(pictures)
    return found


def is_clear(hasty: Need, limit: int) -> bool:
    """Tells whether programs compiled in haste say for certain that a batch fits, or that it does not."""
    most = hasty.total + _MISSED * limit + _MISSED_WORKING * hasty.working
    return most <= limit or hasty.total > limit * (1 + _ADDED)


def least_of(batch: Batch) -> Need:
    """Returns what a batch needs at least on each device, from its shapes: parameters and its share of the state."""
    target, drafting = batch.inputs.target_params, dict(batch.inputs.drafting_params or {})
    # The head that a drafter is given is the target's.
    drafting.pop("head", None)
    start = batch.start()
    _, state = jax.eval_shape(start.function, *start.arguments)
    share = size_of(state) // batch.devices.size
    return Need(batch.pictures, bytes_on_each((target, drafting)), share, 0)


def need_there(
    batch: Batch, platform: str | None, limit: int, kinds: tuple[str, ...], hasty: bool = False
) -> Need:
    """Returns what programs of a batch need on each device; the programs' code counts as parameters.

    Parameters and state are those that ``advance`` is given, and drawing adds its own parameters. The working memory of
    a program that was refused is what it asked for, or ``limit``.
    """
    parameters = state = working = 0
    for made in compile_batch(batch, kinds, platform, hasty):
        # Parameters that a program does not read still take up memory; tiles may be padded.
        arguments, own, asked = made.arguments, made.state, made.needed or limit
        if made.program is not None:
            used = made.program.memory_analysis()
            arguments = max(arguments, used.argument_size_in_bytes)
            own = used.alias_size_in_bytes or own
            parameters += used.generated_code_size_in_bytes
            # The first program creates the state.
            results = 0 if made.kind == "start" else used.output_size_in_bytes - own
            asked = used.temp_size_in_bytes + results
        if made.kind == "advance":
            # The head that a drafter is given is the target's.
            shared = bytes_on_each((batch.inputs.drafting_params or {}).get("head"))
            parameters, state = parameters + arguments - own - shared, own
        elif made.kind == "draw":
            parameters += arguments
        working = max(working, asked)
    return Need(batch.pictures, parameters, state, working)


def _power(count: float, least: int) -> int:
    """Returns the largest power of two times ``least`` that is not above ``count``, but at least ``least``."""
    found = least
    while 2 * found <= count:
        found *= 2
    return found
