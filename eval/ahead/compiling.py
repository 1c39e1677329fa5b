"""Compiles programs for absent devices, one after the other as an engine needs them."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jaxtyping import PyTree

from eval.ahead.arguments import KINDS, Batch, Call
from lantern_jax.apps.measuring.data_sheets import GIB
from lantern_jax.apps.measuring.shapes import size_of
from lantern_jax.devices.compilation import options
from lantern_jax.io import errors
from lantern_jax.kernels.ways import traced_for, traced_on

# XLA's least effort to make programs fast: for a TPU it compiles in a tenth of the seconds, and programs take less
# memory or little more.
_HASTY = {"exec_time_optimization_effort": -1.0}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}
_SIZE = re.compile(r"\b(\d+(?:\.\d+)?)([KMGT]?)(?:iB|B)?\b")
# Bytes needed, then available, as XLA's compiler for TPUs writes them.
_REFUSED = (
    re.compile(r"HLO temporaries \(([\d.]+[KMGT]?)\) exceeds available HBM \(([\d.]+[KMGT]?)\)"),
    re.compile(r"Used ([\d.]+[KMGT]?) of ([\d.]+[KMGT]?) hbm"),
)


@dataclass(frozen=True)
class Compiled:
    """The outcome of compiling a program.

    Attributes:
        kind: one of ``arguments.KINDS``.
        program: JAX's record of it, or None if the compiler refused it.
        seconds: the seconds spent tracing and compiling.
        error: why it was refused, in one line; "" if it was not.
        needed: bytes of temporaries that it was refused for; 0 if it was refused for another reason, or not at all.
        arguments, state: bytes of its arguments on each device, and of those that are donated to it, without the
            padding of tiles.
    """

    kind: str
    program: Any
    seconds: float
    error: str = ""
    needed: int = 0
    arguments: int = 0
    state: int = 0


def compile_call(
    kind: str, call: Call, platform: str | None, device: Any = None, hasty: bool = False
) -> Compiled:
    """Compiles a program for a platform, "tpu" or "cuda", and a stand-in for its device; None for those at hand.

    Args:
        hasty: with the least effort, to see roughly what a device would need; for TPUs.
    """
    begun = time.perf_counter()
    donated = None if call.state is None else "state"
    shardings = {} if call.results is None else {"out_shardings": call.results}
    jitted = jax.jit(call.function, donate_argnames=donated, **shardings)
    with traced_for(device), traced_on(platform or jax.default_backend()):
        traced = jitted.trace(*call.arguments)
    sizes = {"arguments": bytes_on_each(call.arguments), "state": bytes_on_each(call.state)}
    made = partial(Compiled, kind, **sizes)
    try:
        found = options("gpu", repeats=kind == "advance") if platform == "cuda" else None
        lowered = traced.lower(lowering_platforms=platform and (platform,))
        program = lowered.compile(compiler_options=_HASTY if hasty else found)
    except jax.errors.JaxRuntimeError as error:
        needed, available = refused(str(error))
        line = errors.short(str(error), 200)
        if needed:
            line = f"does not fit: {needed / GIB:.4g} GiB of temporaries, {available / GIB:.4g} GiB there"
        return made(program=None, seconds=time.perf_counter() - begun, error=line, needed=needed)
    return made(program=program, seconds=time.perf_counter() - begun)


def compile_batch(
    batch: Batch, kinds: Iterable[str], platform: str | None, hasty: bool = False
) -> Iterator[Compiled]:
    """Compiles programs of a batch as an engine does, or hastily, and yields the outcomes."""
    made_by = partial(compile_call, platform=platform, device=batch.devices.flat[0], hasty=hasty)
    kinds = [kind for kind in KINDS if kind in kinds]
    if kinds and kinds != ["draw"]:
        yield from _compile_decoding(batch, [kind for kind in kinds if kind != "draw"], made_by)
    if "draw" in kinds and (call := batch.draw()) is not None:
        yield made_by("draw", call)


def _compile_decoding(
    batch: Batch, kinds: Sequence[str], made_by: Callable[[str, Call], Compiled]
) -> Iterator[Compiled]:
    """Compiles the programs that decode.

    The state of a model that is split is sharded as ``start`` leaves it, which is compiled in any case.
    """
    first = None
    if batch.devices.shape[1] > 1 or kinds[0] == "start":
        first = made_by("start", batch.start())
    if first is None or first.program is not None:
        keys, state = batch.state_shapes(None if first is None else first.program)
    for kind in kinds:
        if first is not None and kind == first.kind:
            yield first
        elif first is not None and first.program is None:
            yield Compiled(kind, None, 0.0, f"{first.kind}: {first.error}", first.needed)
        elif (call := batch.start() if kind == "start" else getattr(batch, kind)(keys, state)) is not None:
            yield made_by(kind, call)


def bytes_on_each(tree: PyTree) -> int:
    """Returns the bytes of described arrays on each of their devices, without the padding of tiles."""

    def own(leaf):
        sharding = getattr(leaf, "sharding", None)
        return leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)

    leaves = [
        jax.ShapeDtypeStruct(own(leaf), leaf.dtype)
        for leaf in jax.tree.leaves(tree)
        if hasattr(leaf, "shape")
    ]
    return size_of(leaves)


def refused(message: str) -> tuple[int, int]:
    """Returns the bytes that a program needs and those available, from the compiler's message; 0, 0 for any other."""
    for pattern in _REFUSED:
        if found := pattern.search(message):
            return _bytes(found[1]), _bytes(found[2])
    return 0, 0


def _bytes(size: str) -> int:
    number, unit = _SIZE.fullmatch(size).groups()
    return int(float(number) * _UNITS[unit])
