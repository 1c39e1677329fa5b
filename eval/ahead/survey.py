"""Accounts for sizes and methods on devices: what ``python -m eval.ahead`` shows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from eval.ahead.arguments import KINDS, Batch
from eval.ahead.compiling import compile_batch
from eval.ahead.rows import AheadRow, row_of
from eval.ahead.slices import Slice
from eval.ahead.topology import check_compiler, devices_of
from lantern_jax.apps.measuring.data_sheets import GPU
from lantern_jax.apps.measuring.shapes import Shapes, checkpoint_shapes, size_shapes
from lantern_jax.checkpoints.store import opened
from lantern_jax.devices.platform import parameter_dtype
from lantern_jax.engine.jobs import Job
from lantern_jax.io import errors

DEMO = "demo"


def shapes_of_size(size: str, dtype: Any = None) -> Shapes:
    """Returns the shapes of a published size or of the demo; LanternError for any other name."""
    if size == DEMO:
        return checkpoint_shapes(opened(DEMO), dtype)
    return size_shapes(size, dtype)


def job_for(shapes: Shapes, options: Mapping[str, Any], slice_: Slice) -> Job:
    """Returns the job that decodes a model with these options on a device, with that device's defaults."""
    platform = "gpu" if slice_.device.platform == GPU else "tpu"
    return shapes.recipe.job(shapes.recipe.settings(options, platform))


def survey(
    slices: Sequence[Slice],
    size: str,
    methods: Sequence[str],
    batches: Sequence[int] = (1,),
    kinds: Sequence[str] = ("start", "advance"),
    dtype: Any = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[AheadRow]:
    """Compiles every program of every method for every device, and yields its row.

    Args:
        methods: their texts.
        kinds: some of ``KINDS``.
        dtype: dtype of parameters and products; None for each device's default (``parameter_dtype``).
        tell: called with what is compiled next.

    Raises:
        MissingExtra: a compiler that is not installed.
        LanternError: a size, method or program that does not exist, or a method that does not fit.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise errors.unknown("program", kind, KINDS)
    for slice_ in slices:
        check_compiler(slice_)
    places = [devices_of(slice_) for slice_ in slices]
    dtypes = [parameter_dtype(dtype, devices.flat[0]) for devices in places]
    shapes = {each: shapes_of_size(size, each) for each in dict.fromkeys(dtypes)}
    jobs = {
        (slice_.name, name): job_for(shapes[own], {"method": name}, slice_)
        for slice_, own in zip(slices, dtypes, strict=True)
        for name in methods
    }
    for slice_, devices, own in zip(slices, places, dtypes, strict=True):
        for batch in batches:
            # Drawing is the same for all methods.
            left = list(kinds)
            for name in methods:
                tell(f"{slice_.name}: {name}, batch {batch}")
                whole = Batch(shapes[own], jobs[slice_.name, name], batch, devices)
                for made in compile_batch(whole, left, slice_.device.platform):
                    yield row_of(slice_, size, name, batch, made)
                left = [kind for kind in left if kind != "draw"]
