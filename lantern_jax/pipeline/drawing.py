"""Pictures drawn from codes, and the messages that say which parameter makes them not finite.

Axes: n pictures, C codes of a picture, H W height and width.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8

from lantern_jax.devices import hosts
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import Timing
from lantern_jax.io.errors import LanternError


def draw_codes(
    engine: Engine, codes: Int[np.ndarray, "n C"], most: int | None = None
) -> tuple[UInt8[np.ndarray, "n H W 3"], Timing]:
    """Returns ``Engine.draw``'s pictures; raises LanternError, naming the parameter, if any is not finite."""
    pictures, finite, timing = engine.draw(codes, most=most)
    if not finite.all():
        raise LanternError(why_not_finite(engine, "the pictures", ("tokenizer",)))
    return pictures, timing


def why_not_finite(engine: Engine, what: str, parts: tuple[str, ...]) -> str:
    """Returns a message that names the parameter which is not finite, or says that all are."""
    parameters = vars(engine.parameters)
    for part in parts:
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters[part]):
            if not hosts.fetched(jnp.isfinite(leaf).all()):
                name = ".".join(str(key.key) for key in path)
                return (
                    f"{what} are not finite: the {part}'s parameter {name} holds NaN or infinite values; "
                    "fetch or convert the checkpoint again"
                )
    return f"{what} are not finite though all parameters are: decode in another dtype, float32 say"
