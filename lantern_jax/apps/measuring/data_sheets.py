"""Devices that programs can be compiled for without having one, and the slices they come in.

All numbers are per device as JAX counts them: a chip, with both cores of a v4 or v5p as one; a tpu7x chip is two.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lantern_jax.devices.mesh import mesh_sizes
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

GIB = 2**30
TPU, GPU = "tpu", "cuda"


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
        name: as ``--for`` takes it.
        platform: "tpu" or "cuda".
        memory: bytes that programs may use.
        bandwidth: bytes per second.
        peak: operations per second of 16-bit matrix products, without sparsity.
        clock: the TPU's cycles per second; 0 for a GPU, whose programs have no estimate in cycles.
        one: the slice of a single chip.
        slices: those of several chips; with three axes, sizes that are multiples of 4 exist too.
        options: further arguments of ``topologies.get_topology_desc``.
        facts: for a GPU, the fields of its ``GpuTargetConfigProto``.
    """

    name: str
    platform: str
    memory: int
    bandwidth: float
    peak: float
    clock: float = 0.0
    one: str = "1"
    slices: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, float | str] = field(default_factory=dict)


# Memory: what libtpu 0.0.42.1 says is available when it refuses a program. Bandwidth and peak:
# cloud.google.com/tpu/docs, half a chip's for tpu7x. Clock: the peak divided by the matrix units' operations per
# cycle, with product and sum as one each: four units of 128 x 128 per core up to v5p, of 256 x 256 since. (By the
# compiler's own cycles, a product of 8192 squared gets 70 to 93 % of these.)
_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
_V1 = 2 * 4 * 128 * 128
_V6 = 2 * 4 * 256 * 256
_TPUS = (
    Device(
        "v4", TPU, int(30.75 * GIB), 1.228e12, 275e12, 275e12 / (2 * _V1), "1x1x1", _CUBES,
        {"chip_config_name": "megacore"},
    ),
    Device("v5e", TPU, int(15.75 * GIB), 8.19e11, 197e12, 197e12 / _V1, "1x1", _FLAT),
    Device("v5p", TPU, int(95.74 * GIB), 2.765e12, 459e12, 459e12 / (2 * _V1), "1x1x1", _CUBES),
    Device("v6e", TPU, int(31.25 * GIB), 1.64e12, 918e12, 918e12 / _V6, "1x1", _FLAT),
    Device("tpu7x", TPU, int(94.75 * GIB), 3.69e12, 1153.5e12, 1153.5e12 / _V6, "1x1x1", _CUBES),
)  # fmt: skip


def _gpu(
    name: str, title: str, capability: str, memory: int, bandwidth: float, peak: float, cores: int, units: int,
    shared: int, threads: int, cache: int, clock: float,
) -> Device:  # fmt: skip
    """Returns a GPU.

    Args:
        cores, units: streaming multiprocessors, and float32 units of each.
        shared: bytes of shared memory per core; a block gets 1 KiB less, on Turing all of it.
        threads: resident threads per core.
        cache: bytes of the second-level cache.
        clock: GHz.
    """
    major, minor = capability.split(".")
    newer = int(major) >= 9
    extension = " feature_extension: ACCELERATED_FEATURES" if newer else ""
    facts = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": shared,
        "threads_per_core_limit": threads,
        "core_count": cores,
        "fpus_per_core": units,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(bandwidth),
        "l2_cache_size": cache,
        "clock_rate_ghz": clock,
        "device_memory_size": memory,
        "shared_memory_per_block_optin": shared - (1024 if int(major) >= 8 else 0),
        "cuda_compute_capability": f"{{ major: {major} minor: {minor}{extension} }}",
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "title": title,
    }
    return Device(name, GPU, memory, bandwidth, peak, slices=("2", "4", "8"), facts=facts)


# A100 80 GB, H100, H200, B200: openxla/xla, xla/backends/gpu/target_config/specs. T4, L4: NVIDIA's data sheets and the
# tables of compute capabilities 7.5 and 8.9 in the CUDA programming guide; memory as CUDA reports it. Peaks: data
# sheets.
_GPUS = (
    _gpu("t4", "Tesla T4", "7.5", 15102 << 20, 3.2e11, 65e12, 40, 64, 65536, 1024, 4 << 20, 1.59),
    _gpu("l4", "NVIDIA L4", "8.9", int(22.161 * GIB), 3e11, 121e12, 58, 128, 102400, 1536, 48 << 20, 2.04),
    _gpu(
        "a100",
        "NVIDIA A100-SXM4-80GB",
        "8.0",
        85100068864,
        2.03904e12,
        312e12,
        108,
        64,
        167936,
        2048,
        40 << 20,
        1.41,
    ),
    _gpu(
        "h100",
        "NVIDIA H100 80GB HBM3",
        "9.0",
        84942979072,
        3.35232e12,
        989e12,
        132,
        128,
        233472,
        2048,
        50 << 20,
        1.98,
    ),
    _gpu(
        "h200",
        "NVIDIA H200 141GB HBM3e",
        "9.0",
        151397597184,
        4.8e12,
        989e12,
        132,
        128,
        233472,
        2048,
        50 << 20,
        1.98,
    ),
    _gpu(
        "b200",
        "NVIDIA B200",
        "10.0",
        191514411008,
        7.67232e12,
        2250e12,
        148,
        128,
        233472,
        2048,
        132644864,
        1.965,
    ),
)
DEVICES: Mapping[str, Device] = {device.name: device for device in (*_TPUS, *_GPUS)}


@dataclass(frozen=True)
class Slice:
    """Connected devices of one kind.

    Attributes:
        device: their kind.
        shape: the chips along each axis, such as "4x4"; for GPUs their number, or "hosts x GPUs per host".
        data, model: the mesh of the devices that are used.
    """

    device: Device
    shape: str
    data: int = 1
    model: int = 1

    @property
    def name(self) -> str:
        """The slice as ``--for`` takes it."""
        return self.device.name if self.shape == self.device.one else f"{self.device.name}:{self.shape}"

    @property
    def mesh(self) -> str | None:
        """The mesh as ``--mesh`` takes it; None for a single device."""
        return None if self.data * self.model == 1 else f"data={self.data},model={self.model}"

    @property
    def is_one(self) -> bool:
        """Whether it is a single chip."""
        return self.shape == self.device.one


def slice_of(text: str, mesh: str | None = None) -> Slice:
    """Parses a device such as "v5e", "h100" or a slice such as "v5e:4x4", "h100:8", with a mesh over it.

    Without a mesh every device has a whole model.

    Raises:
        LanternError: an unknown device, a slice that does not exist, a mesh that does not fit it.
    """
    name, _, shape = text.strip().lower().partition(":")
    device = DEVICES.get(name)
    if device is None:
        raise errors.unknown("device", name, DEVICES)
    shape = shape or device.one
    if not _exists(device, shape):
        more = (
            ", or longer ones by multiples of 4"
            if device.platform == TPU and "x1" in device.slices[0]
            else ""
        )
        there = ", ".join(f"{name}:{each}" for each in device.slices)
        raise errors.unknown("slice", text, (name, there), more)
    count = _count(device, shape)
    if mesh is None:
        return Slice(device, shape, data=1 if shape == device.one else count)
    sizes = mesh_sizes(mesh)
    if math.prod(sizes.values()) != count:
        model = math.gcd(sizes["model"], count)
        raise LanternError(
            f"mesh {mesh} takes {math.prod(sizes.values())} devices and {text} has {count}: "
            f"give axes that multiply to {count}, such as data={count // model},model={model}"
        )
    return Slice(device, shape, **sizes)


def target_config(device: Device) -> str:
    """Returns a GPU's ``GpuTargetConfigProto`` as text."""
    facts = dict(device.facts)
    title = facts.pop("title")
    fields = " ".join(
        f"{name} {value}" if str(value).startswith("{") else f"{name}: {value}"
        for name, value in facts.items()
    )
    version = "dnn_version_info { major: 9 minor: 10 patch: 0 }"
    return f'gpu_device_info {{ {fields} }} platform_name: "CUDA" {version} device_description_str: "{title}"'


def _exists(device: Device, shape: str) -> bool:
    if shape == device.one or shape in device.slices:
        return True
    if not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})*", shape):
        return False
    sizes = [int(size) for size in shape.split("x")]
    if device.platform == GPU:
        return len(sizes) <= 2 and sizes[-1] <= 8
    return len(sizes) == 3 == device.one.count("x") + 1 and all(size % 4 == 0 for size in sizes)


def _count(device: Device, shape: str) -> int:
    """Returns the devices of a slice as JAX counts them."""
    return math.prod(int(size) for size in shape.split("x")) * (2 if device.name == "tpu7x" else 1)
