"""Pictures drawn from codes, and the messages that say which parameter makes them not finite.

Axes: n pictures, C codes of a picture, H W height and width.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8

from lantern_jax.devices import hosts
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import Timing
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError


def draw_codes(
    engine: Engine, codes: Int[np.ndarray, "n C"], most: int | None = None, numbers: Sequence[int] = ()
) -> tuple[UInt8[np.ndarray, "n H W 3"], Timing]:
    """Returns ``Engine.draw``'s pictures; raises LanternError if one is not finite, with its number if ``numbers`` has
    one for each."""
    pictures, finite, timing = engine.draw(codes, most=most)
    if not finite.all():
        wrong = np.asarray(numbers)[~finite] if len(numbers) else ()
        raise LanternError(why_not_finite(engine, "the pixels", "tokenizer", wrong))
    return pictures, timing


def why_not_finite(engine: Engine, what: str, part: str, numbers: Sequence[int] = ()) -> str:
    """Returns a message that names a part's parameter which is not finite, or says that all are; ``numbers`` are of
    the pictures that are not, where they are known."""
    what += f" of picture {errors.listed(dict.fromkeys(numbers))}" if len(numbers) else ""
    for path, leaf in jax.tree_util.tree_leaves_with_path(vars(engine.parameters)[part]):
        if hosts.fetched(jnp.isfinite(leaf).all()):
            continue
        name = f"the {part}'s parameter {'.'.join(str(key.key) for key in path)}"
        if leaf.dtype == jnp.float16 and not hosts.fetched(jnp.isnan(leaf).any()):
            return f"{what} are not finite: float16 cannot hold {name}: give bfloat16 or float32 as dtype"
        return f"{what} are not finite: {name} holds NaN or infinite values; fetch or convert the checkpoint again"
    return f"{what} are not finite though all parameters are: decode in another dtype, float32 say"
