"""What a device does per second: from its data sheet, or, where there is none, measured once and kept.

What a real pass gets of these is less: the shares below are what passes were seen to get (docs/results.md, H100; the
demo on two cores of a CPU).
"""

import contextlib
import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from lantern_jax.devices.data_sheets import DEVICES, GPU, Device
from lantern_jax.devices.platform import device_name
from lantern_jax.io.files import read_json, write_file

# The shares of the bandwidth, and of the rate of products in 16 bits and in float32, that passes get.
_READING, _PRODUCTS, _IN_FULL = 0.87, 0.5, 0.125
# Likewise of what is measured by the pieces below; and the most operations per byte that are believed: a busy machine
# seems to read slowly.
_READING_HERE, _PRODUCTS_HERE, _MOST_PER_BYTE = 0.65, 0.65, 8
# Seconds of a kernel that does next to nothing, in a loop on the device.
_LAUNCH = {GPU: 2e-6, "tpu": 1e-6, "cpu": 2e-6}
# JAX's name of a kind of device matches the word of its data sheet; the first that fits counts.
_WORDS = {
    "v5 lite": "v5e", "v5e": "v5e", "v6 lite": "v6e", "v6e": "v6e", "v5p": "v5p", "v5": "v5p", "v4(?! lite)": "v4",
    "tpu7x": "tpu7x",
} | {name: name for name, device in DEVICES.items() if device.platform == GPU}  # fmt: skip
# Weights of more bytes than the caches of most processors hold, the rows that read and those that compute, their
# width, and the seconds of each piece.
_MEASURED_BYTES, _READING_ROWS, _MEASURED_ROWS, _MEASURED_WIDTH, _SECONDS = 64 << 20, 2, 32, 512, 0.06


@dataclass(frozen=True)
class Figures:
    """What passes get of a device.

    Attributes:
        bandwidth: bytes of memory per second.
        rate: operations of matrix products per second.
        launch: seconds that an operation takes at least.
        cached: the share of a cache that a pass reads: half on average where attention stops at what is filled.
    """

    bandwidth: float
    rate: float
    launch: float
    cached: float = 1.0


def data_sheet(kind: str) -> Device | None:
    """Returns the row of ``DEVICES`` of a device by JAX's name of its kind; None for one that is not there."""
    found = (name for word, name in _WORDS.items() if re.search(rf"\b{word}\b", kind.lower()))
    return next(map(DEVICES.__getitem__, found), None)


def sheet_figures(device: Device, is_full: bool) -> Figures:
    """Returns what passes get by a data sheet; ``is_full``: with products of float32, of TPUs in six parts."""
    rate = device.peak * _PRODUCTS
    if is_full and device.platform == GPU:
        facts = device.facts
        cores = facts["core_count"] * facts["fpus_per_core"]
        rate = 2 * cores * facts["clock_rate_ghz"] * 1e9 * _IN_FULL
    elif is_full:
        rate /= 6
    cached = 0.5 if device.platform == GPU else 1.0
    return Figures(device.bandwidth * _READING, rate, _LAUNCH[device.platform], cached)


def figures_of(grid: np.ndarray, is_full: bool, directory: Path) -> Figures:
    """Returns what passes get of each device of an engine.

    Args:
        grid: devices [data, model].
        is_full: whether products are in float32.
        directory: where measured figures are kept.
    """
    device = grid[0, 0]
    sheet = data_sheet(device.device_kind) if device.platform in ("gpu", "tpu") else None
    if sheet is not None:
        return sheet_figures(sheet, is_full)
    file, name = (
        directory / "figures.json",
        f"{device_name(grid[:1, :1])}, {'float32' if is_full else '16 bits'}, {_MEASURED_BYTES >> 20} MiB",
    )
    with contextlib.suppress(ValueError, OSError, TypeError, KeyError, AttributeError):
        kept = Figures(**read_json(file, 10**5)[name])
        if all(type(value) is float and value > 0 for value in vars(kept).values()):
            return kept
    found, others = _measured(device, is_full), {}
    with contextlib.suppress(ValueError, OSError):
        others = read_json(file, 10**5)
    with contextlib.suppress(OSError):
        kept = others if isinstance(others, dict) else {}
        write_file(file, json.dumps(kept | {name: asdict(found)}, indent=1) + "\n", parents=True)
    return found


def _measured(device, is_full: bool) -> Figures:
    """Measures a device: the quickest of many short pieces, so that others who compute meanwhile count little."""
    dtype = jnp.float32 if is_full else jnp.bfloat16
    width, rows = _MEASURED_WIDTH, _MEASURED_ROWS
    with jax.default_device(device):
        square, block = jnp.ones((width, width), dtype), jnp.ones((rows, width), dtype)
        # As passes read: a product of few rows gets less of the bandwidth than a sum.
        layers = jnp.ones((_MEASURED_BYTES // square.nbytes, width, width), dtype)
        reading = _quickest(_through, block[:_READING_ROWS], layers)
        product = _quickest(lambda a, b: lax.fori_loop(0, 4, lambda _, a: a @ b, a), block, square)
    rate = 4 * 2 * rows * width**2 / product * _PRODUCTS_HERE
    bandwidth = max(layers.nbytes / reading * _READING_HERE, rate / _MOST_PER_BYTE)
    return Figures(bandwidth, rate, _LAUNCH.get(device.platform, _LAUNCH[GPU]))


def _through(rows: Float[Array, "R D"], layers: Float[Array, "L D D"]) -> Float[Array, "R D"]:
    """Multiplies rows by one layer after the other."""
    return lax.scan(lambda rows, layer: (rows @ layer, None), rows, layers)[0]


def _quickest(function, *arguments) -> float:
    program = jax.jit(function).lower(*arguments).compile()
    found, began = [], time.perf_counter()
    while len(found) < 4 or (time.perf_counter() - began < _SECONDS and len(found) < 1000):
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        found.append(time.perf_counter() - start)
    return min(found)
