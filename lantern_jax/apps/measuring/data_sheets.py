"""Devices that one may not have: their memory, and the slices they come in.

All numbers are per device as JAX counts them: a chip, with both cores of a v4 or v5p as one; a tpu7x chip is two.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lantern_jax.devices.mesh import mesh_sizes
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

GIB = 2**30
TPU, GPU = "tpu", "cuda"
_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")


@dataclass(frozen=True)
class Device:
    """A kind of device.

    Attributes:
        name: as ``--for`` takes it.
        platform: "tpu" or "cuda".
        memory: bytes that programs may use.
        one: the slice of a single chip.
        slices: those of several chips; with three axes, sizes that are multiples of 4 exist too.
    """

    name: str
    platform: str
    memory: int
    one: str = "1"
    slices: tuple[str, ...] = ("2", "4", "8")


# TPUs: what libtpu 0.0.42.1 says is available when it refuses a program. A100 80 GB and later: openxla/xla,
# xla/backends/gpu/target_config/specs; T4, L4: as CUDA reports it.
DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device("v4", TPU, int(30.75 * GIB), "1x1x1", _CUBES),
        Device("v5e", TPU, int(15.75 * GIB), "1x1", _FLAT),
        Device("v5p", TPU, int(95.74 * GIB), "1x1x1", _CUBES),
        Device("v6e", TPU, int(31.25 * GIB), "1x1", _FLAT),
        Device("tpu7x", TPU, int(94.75 * GIB), "1x1x1", _CUBES),
        Device("t4", GPU, 15102 << 20),
        Device("l4", GPU, int(22.161 * GIB)),
        Device("a100", GPU, 85100068864),
        Device("h100", GPU, 84942979072),
        Device("h200", GPU, 151397597184),
        Device("b200", GPU, 191514411008),
    )
}


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
