"""Bytes per second that the device reads: no pass is quicker than reading all weights.

Axes: R rows, C columns.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from lantern_jax.devices.compilation import run_timed

# More than any cache holds: processors with 480 MB were seen.
_BYTES = 1 << 30
# An accelerator reads it in less than a millisecond, and starting and ending take time too.
_ACCELERATOR_TIMES = 16
_COLUMNS = 4096


class Bandwidth:
    """Reads a large array in three ways, of which the quickest counts: which one that is differs between devices."""

    def __init__(self):
        self._array = jnp.ones((_BYTES // (4 * _COLUMNS), _COLUMNS), jnp.float32)
        times = 1 if jax.default_backend() == "cpu" else _ACCELERATOR_TIMES
        vector = jnp.ones(_COLUMNS, jnp.float32)
        ways = {
            "sum": (partial(_sums, times), (self._array,), times),
            "copy": (lambda array: array * jnp.float32(2), (self._array,), 2),
            "product": (jnp.dot, (self._array, vector), 1),
        }
        self._ways: dict[str, tuple[Callable, tuple, int]] = {}
        for name, (function, arguments, moved) in ways.items():
            program = jax.jit(function).lower(*arguments).compile()
            run_timed(program, *arguments)
            self._ways[name] = (program, arguments, moved * self._array.nbytes)

    def measure(self, repeats: int = 3) -> float:
        """Returns bytes per second, the highest of ``repeats`` attempts with each way."""
        found = 0.0
        for program, arguments, moved in self._ways.values():
            for _ in range(repeats):
                found = max(found, moved / run_timed(program, *arguments)[1])
        return found


def _sums(times: int, array: Float[Array, "R C"]) -> Float[Array, ""]:
    """Sums the array ``times`` times, each time after the one before."""
    return lax.fori_loop(0, times, lambda _, last: jnp.sum(array + jnp.minimum(last, 1)), jnp.float32(0))
