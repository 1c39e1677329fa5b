"""How many pictures together fit a device that is not here, or a slice of them, by its own compiler."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np

from lantern_jax.ahead.account import Account, account_of
from lantern_jax.ahead.arguments import Batch
from lantern_jax.ahead.compiling import Compiled, compile_batch
from lantern_jax.devices.data_sheets import GPU, Device, Slice
from lantern_jax.devices.platform import core_count
from lantern_jax.engine.jobs import Job
from lantern_jax.measuring.fit import MOST, Need, Shapes

# What JAX takes of a GPU unless it is told otherwise, and how.
_FRACTION, _GPU_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"
# Memory is so nearly affine in the batch that a forecast above this share of the limit needs no compiling.
_SURE = 1.05
# Compilers side by side: each takes a few gigabytes for a large model.
_MOST_AT_A_TIME = 4


def limit_of(device: Device) -> int:
    """Returns the bytes of a device that programs get: of a GPU the share that JAX takes."""
    share = float(os.environ.get(_FRACTION, _GPU_SHARE)) if device.platform == GPU else 1
    return int(device.memory * share)


def fitting(
    shapes: Shapes, jobs: Mapping[str, Job], slice_: Slice, devices: np.ndarray, tell: Callable[[str], None]
) -> dict[str, Need]:
    """Returns the need of each device for the largest batch of each job that fits a slice, or of the smallest.

    Args:
        devices: its stand-ins (``devices_of``).
        tell: is told which job is done.
    """

    def largest(name: str) -> tuple[str, Need]:
        def needs(pictures: int, kinds: tuple[str, ...]) -> Need:
            return need_there(Batch(shapes, jobs[name], pictures, devices), slice_.device, kinds)

        found = largest_there(needs, limit_of(slice_.device), len(devices))
        tell(name)
        return name, found

    with ThreadPoolExecutor(min(core_count(), _MOST_AT_A_TIME)) as pool:
        return dict(pool.map(largest, jobs))


def largest_there(needs: Callable[[int, tuple[str, ...]], Need], limit: int, least: int = 1) -> Need:
    """Returns the need of the largest batch, ``least`` times a power of two, that fits in ``limit`` bytes.

    Two small batches tell how much more a larger one takes; the batch that they predict is compiled, and its neighbours
    where the forecast is close. Where ``least`` does not fit its need is returned.

    Args:
        needs: (pictures, kinds of programs) -> what these take.
    """
    advancing = cache(lambda pictures: needs(pictures, ("advance",)))
    # What prefills and draws is mostly smaller, and so is left to the end.
    others = cache(lambda pictures: needs(pictures, ("start", "draw")))

    def total(pictures: int) -> int:
        return advancing(pictures).total

    def whole(pictures: int) -> Need:
        one, other = advancing(pictures), others(pictures)
        return replace(
            one, parameters=one.parameters + other.parameters, working=max(one.working, other.working)
        )

    one, pictures = advancing(least), least
    if one.total > limit:
        return one
    # Nothing is given back when a batch grows: what the state alone forbids need not be compiled.
    room = (limit - one.parameters - one.working) / max(1, one.state / least)
    roof = min(_power(room, least), MOST * least)
    if roof > least and total(2 * least) <= limit:
        a_picture = max(1, (total(2 * least) - one.total) / least)
        pictures = min(roof, max(2 * least, _power(least + (limit - one.total) / a_picture, least)))
        while pictures > 2 * least and total(pictures) > limit:
            pictures //= 2
        while 2 * pictures <= roof and 2 * total(pictures) - one.parameters <= _SURE * limit:
            if total(2 * pictures) > limit:
                break
            pictures *= 2
    while pictures > least and whole(pictures).total > limit:
        pictures //= 2
    return whole(pictures)


def need_there(batch: Batch, device: Device, kinds: tuple[str, ...]) -> Need:
    """Returns what programs of a batch take of each device; the code of the programs counts among parameters.

    Parameters and state are those that ``advance`` is given, and drawing adds its own. Of a program that was refused
    the working memory is what it asked for.
    """
    parameters = state = working = 0
    for made in compile_batch(batch, kinds, device.platform):
        account = _account(made, device)
        parameters += account.code
        if made.kind == "advance":
            parameters, state = parameters + account.arguments - account.state, account.state
        elif made.kind == "draw":
            parameters += account.arguments
        # The state is born in the first program.
        results = 0 if made.kind == "start" else account.results
        working = max(working, account.temporaries + results)
    return Need(batch.pictures, parameters, state, working)


def _power(count: float, least: int) -> int:
    """Returns the largest power of two times ``least`` that is not above ``count``, ``least`` at least."""
    found = least
    while 2 * found <= count:
        found *= 2
    return found


def _account(made: Compiled, device: Device) -> Account:
    if made.program is not None:
        return account_of(made.program, device, made.kind == "advance", made.grids)
    return Account(made.arguments, made.needed or device.memory, 0, made.state, 0, 0, None, None)
