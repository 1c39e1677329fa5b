"""Slices of devices that are not here: the shapes they come in, and meshes over them."""

import math
import re
from dataclasses import dataclass

from lantern_jax.apps.measuring.data_sheets import DEVICES, GPU, Device
from lantern_jax.devices.partition import mesh_sizes
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
# With three axes, sizes that are multiples of 4 exist too.
SHAPES = dict.fromkeys(("v5e", "v6e"), _FLAT) | dict.fromkeys(("v4", "v5p", "tpu7x"), _CUBES)
_GPUS = ("1", "2", "4", "8")


def shapes_of(device: Device) -> tuple[str, ...]:
    """Returns the shapes of slices of a device, that of a single one first."""
    return SHAPES.get(device.name, _GPUS)


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
        return self.device.name if self.is_one else f"{self.device.name}:{self.shape}"

    @property
    def mesh(self) -> str | None:
        """The mesh as ``--mesh`` takes it; None for a single device."""
        return None if self.data * self.model == 1 else f"data={self.data},model={self.model}"

    @property
    def is_one(self) -> bool:
        """Whether it is a single chip."""
        return self.shape == shapes_of(self.device)[0]


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
    one, *several = shapes_of(device)
    shape = shape or one
    if not _exists(device, shape):
        more = ", or longer ones by multiples of 4" if one.count("x") == 2 else ""
        there = ", ".join(f"{name}:{each}" for each in several)
        raise errors.unknown("slice", text, (name, there), more)
    count = _count(device, shape)
    if mesh is None:
        return Slice(device, shape, data=1 if shape == one else count)
    sizes = mesh_sizes(mesh)
    if math.prod(sizes.values()) != count:
        model = math.gcd(sizes["model"], count)
        raise LanternError(
            f"mesh {mesh} takes {math.prod(sizes.values())} devices and {text} has {count}: "
            f"give axes that multiply to {count}, such as data={count // model},model={model}"
        )
    return Slice(device, shape, **sizes)


def _exists(device: Device, shape: str) -> bool:
    if shape in shapes_of(device):
        return True
    if not re.fullmatch(r"[1-9]\d{0,3}(x[1-9]\d{0,3})*", shape):
        return False
    sizes = [int(size) for size in shape.split("x")]
    if device.platform == GPU:
        return len(sizes) <= 2 and sizes[-1] <= 8
    return len(sizes) == 3 == shapes_of(device)[0].count("x") + 1 and all(size % 4 == 0 for size in sizes)


def _count(device: Device, shape: str) -> int:
    """Returns the devices of a slice as JAX counts them."""
    return math.prod(int(size) for size in shape.split("x")) * (2 if device.name == "tpu7x" else 1)
