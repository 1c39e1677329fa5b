"""Lowering programs for devices that are not here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from lantern_jax.kernels.ways import traced_on


@contextmanager
def on(platform: str) -> Iterator[None]:
    """Traces and lowers for a platform: JAX 0.12 asks which GPU Triton's kernels are for."""
    named = jax.sharding.use_abstract_mesh(mesh(platform)) if platform == "cuda" else nullcontext()
    with traced_on(platform), named:
        yield


def mesh(platform: str, **axes: int) -> AbstractMesh:
    """Makes a mesh of a platform's devices with axes of these sizes, all left to ``shard_map`` and the compiler."""
    device = (
        AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
        if platform == "cuda"
        else None
    )
    types = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types, abstract_device=device)


def lower(function: Callable, *arguments: Any, platform: str) -> jax.stages.Lowered:
    """Lowers a function of these arguments for a platform."""
    with on(platform):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,))
