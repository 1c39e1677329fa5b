"""What a device does per second: from its data sheet, or, if there is none, measured once and kept.

A real pass gets less than that: the shares below are what passes were seen to get (docs/results.md, H100; the demo on
two cores of a CPU).
"""

import contextlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lantern_jax.devices.data_sheets import DEVICES, GPU, Device
from lantern_jax.devices.partition import outside_mesh
from lantern_jax.devices.platform import device_name
from lantern_jax.devices.products import EIGEN_ROWS, dot_by_columns
from lantern_jax.io.files import read_json, write_file

# The shares that passes get of the bandwidth, and of the rate of products in 16 bits and in float32.
_READING, _PRODUCTS, _IN_FULL = 0.87, 0.5, 0.125
# On a CPU: attention's operations per second as a share of a product's; and the number of nodes whose time attention
# over several takes at least, since it transposes all keys for these.
_ON_CPU: dict[str, Any] = {"attending": 0.125, "nodes": 8}
# Seconds that a kernel doing next to nothing takes, in a loop on the device.
_LAUNCH = {GPU: 2e-6, "tpu": 1e-6, "cpu": 2e-6}
# The share of a cache that passes on a GPU read: their attention stops at the end of what is filled.
_CACHED = 0.5
# Patterns in JAX's name of a kind of device -> its data sheet; the first that matches counts.
_WORDS = {
    "v5 lite": "v5e", "v5e": "v5e", "v6 lite": "v6e", "v6e": "v6e", "v5p": "v5p", "v5": "v5p", "v4(?! lite)": "v4",
    "tpu7x": "tpu7x",
} | {name: name for name, device in DEVICES.items() if device.platform == GPU}  # fmt: skip
# Words of cards that match a data sheet's pattern, but are slower or smaller than its card.
_OTHERS = r"\b(pcie|nvl|mig|40gb|64gb)\b"
# Bytes of weights, more than the caches of most processors hold; their shape; the rows of the products that are
# measured; and the seconds spent on each of these.
_BYTES, _SHAPE, _ROWS, _SECONDS = 64 << 20, (512, 1024), (2, 8, 24, 64), 0.06


@dataclass(frozen=True)
class Figures:
    """What passes get out of a device.

    Attributes:
        bandwidth: bytes of memory per second.
        rate: operations of matrix products per second.
        launch: the least seconds that an operation takes.
        cached: the share of a cache that a pass reads: half on average where attention stops at the filled part.
        attending: attention's operations per second as a share of a product's.
        nodes: the number of nodes whose time attention over more than one takes at least.
        products: seconds per byte of weights that a product takes, by its rows, if that was measured.
    """

    bandwidth: float
    rate: float
    launch: float
    cached: float = 1.0
    attending: float = 1.0
    nodes: int = 1
    products: Mapping[int, float] = field(default_factory=dict)

    def product(self, rows: int, itemsize: float) -> float:
        """Returns the seconds that a product of this many rows takes per byte of weights."""
        if not self.products:
            return 1 / self.bandwidth + 2 * rows / (itemsize * self.rate)
        measured = sorted(self.products)
        seconds = float(np.interp(rows, measured, [self.products[row] for row in measured]))
        return seconds * max(1.0, rows / measured[-1])


def data_sheet(kind: str) -> Device | None:
    """Returns a device's entry in ``DEVICES`` by JAX's name of its kind; None if there is none."""
    kind = kind.lower()
    if re.search(_OTHERS, kind):
        return None
    found = (name for word, name in _WORDS.items() if re.search(rf"\b{word}\b", kind))
    return next(map(DEVICES.__getitem__, found), None)


def sheet_figures(device: Device, is_full: bool) -> Figures:
    """Returns what passes get by a data sheet; ``is_full``: with float32 products, which TPUs do in six parts."""
    rate = device.peak * _PRODUCTS
    if is_full and device.platform == GPU:
        facts = device.facts
        cores = facts["core_count"] * facts["fpus_per_core"]
        rate = 2 * cores * facts["clock_rate_ghz"] * 1e9 * _IN_FULL
    elif is_full:
        rate /= 6
    cached = _CACHED if device.platform == GPU else 1.0
    return Figures(device.bandwidth * _READING, rate, _LAUNCH[device.platform], cached)


def figures_of(grid: np.ndarray, is_full: bool, directory: Path) -> Figures:
    """Returns what passes get out of each device of an engine.

    Args:
        grid: devices [data, model].
        is_full: whether products are in float32.
        directory: where measured figures are kept.
    """
    device = grid[0, 0]
    sheet = data_sheet(device.device_kind) if device.platform in ("gpu", "tpu") else None
    if sheet is not None:
        return sheet_figures(sheet, is_full)
    dtype = "float32 in full" if is_full else "16 bits"
    file = directory / "figures.json"
    name = f"{device_name(grid[:1, :1])}, {dtype}, {_BYTES >> 20} MiB, by rows"
    kept: Any = {}
    with contextlib.suppress(ValueError, OSError):
        kept = read_json(file, 10**5)
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        return _read(kept[name])
    found = _measured_once(device, is_full)
    with contextlib.suppress(OSError):
        others = kept if isinstance(kept, dict) else {}
        write_file(file, json.dumps(others | {name: asdict(found)}, indent=1) + "\n", parents=True)
    return found


def _read(kept: Mapping[str, Any]) -> Figures:
    """Reads figures that were kept; raises ValueError, TypeError, KeyError or AttributeError for anything else."""
    products = {int(rows): seconds for rows, seconds in kept["products"].items()}
    figures = Figures(**{**kept, "products": products})
    values = [*products.values(), *(value for name, value in vars(figures).items() if name != "products")]
    if not products or not all(type(value) in (int, float) and value > 0 for value in values):
        raise ValueError("a figure is no positive number")
    return figures


@lru_cache(16)
def _measured_once(device, is_full: bool) -> Figures:
    """Measures a device once per process: where nothing can be kept, the next call would measure again."""
    return _measured(device, is_full)


@outside_mesh()
def _measured(device, is_full: bool) -> Figures:
    """Measures a device by the quickest of many short runs, so that other work on it meanwhile counts little."""
    dtype = jnp.float32 if is_full else jnp.bfloat16
    height, width = _SHAPE
    # Programs compute products of float32 in full, as ``engine.programs`` does.
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        count = _BYTES // (height * width * dtype.dtype.itemsize)
        layers = [jnp.full(_SHAPE, 1 / height, dtype) for _ in range(count)]
        through = partial(_through, device.platform)
        times = [_quickest(through, jnp.ones((rows, height), dtype), layers) for rows in _ROWS]
    # More rows take no less time: a busy moment is not a property of the device.
    seconds = np.minimum.accumulate(times[::-1])[::-1] / _BYTES
    rate = 2 * _ROWS[-1] / (dtype.dtype.itemsize * seconds[-1])
    launch = _LAUNCH.get(device.platform, _LAUNCH[GPU])
    products = {rows: float(each) for rows, each in zip(_ROWS, seconds, strict=True)}
    more = {"cpu": _ON_CPU, "gpu": {"cached": _CACHED}}.get(device.platform, {})
    return Figures(float(1 / seconds[0]), float(rate), launch, products=products, **more)


def _through(
    platform: str, rows: Float[Array, "R D"], layers: list[Float[Array, "D E"]]
) -> Float[Array, "R D"]:
    """Multiplies rows by one layer after the other, as the layers of a model do."""
    turned = platform == "cpu" and len(rows) in EIGEN_ROWS and rows.dtype == jnp.float32
    for layer in layers:
        rows = (dot_by_columns if turned else jnp.dot)(rows, layer)[:, : rows.shape[1]]
    return rows


def _quickest(function, *arguments) -> float:
    program = jax.jit(function).lower(*arguments).compile()
    found, began = [], time.perf_counter()
    while len(found) < 4 or (time.perf_counter() - began < _SECONDS and len(found) < 1000):
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        found.append(time.perf_counter() - start)
    return min(found)
