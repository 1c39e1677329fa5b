"""What an engine compiles: a batch is started, advanced and drawn, on one device or over a mesh of them.

Axes: B sequences of a program, C codes of a picture, H W height and width.
"""

from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Int

from lantern_jax.decoding import loop
from lantern_jax.decoding.loop import Inputs
from lantern_jax.models.vq import VQModel

AXIS = "data"


@flax.struct.dataclass
class _OneEach:
    """A scalar of the loop's state, of which every device has its own: [devices]."""

    value: Any


def _joined(state):
    """A device's state with an axis in front of every leaf, along which those of all devices are joined.

    Leaves have one already, be it of sequences or not. Another one in front would not do: the loop then copies its
    whole state, caches and all, when a piece begins and when it ends.
    """
    return jax.tree.map(lambda leaf: leaf if leaf.ndim else _OneEach(leaf[None]), state)


def own(state):
    """A device's part of a joined state as the loop knows it."""

    def is_one(leaf) -> bool:
        return isinstance(leaf, _OneEach)

    return jax.tree.map(lambda leaf: leaf.value[0] if is_one(leaf) else leaf, state, is_leaf=is_one)


def start(program, mesh, target, drafting, conditioning, seed, numbers, guidance, sampling, active):
    """(keys [B], joined state) after prefill; without a mesh on one device. Arguments as in ``loop.Inputs``."""
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(numbers)

    def begin(inputs: Inputs):
        return _joined(loop.start(program, inputs))

    inputs = Inputs(target, drafting, conditioning, keys, guidance, active, sampling, None, None)
    if mesh is not None:
        begin = loop.over_mesh(begin, mesh, AXIS, (loop.input_specs(AXIS),), PartitionSpec(AXIS))
    return keys, begin(inputs)


def advance(program, mesh, target, drafting, guidance, sampling, rule, codebook, keys, state, rounds):
    """(state after at most so many rounds, its lengths)."""

    def go_on(inputs: Inputs, state, rounds):
        return _joined(loop.advance(program, inputs, own(state), rounds))

    inputs = Inputs(target, drafting, None, keys, guidance, None, sampling, rule, codebook)
    if mesh is not None:
        rows = PartitionSpec(AXIS)
        go_on = loop.over_mesh(go_on, mesh, AXIS, (loop.input_specs(AXIS), rows, PartitionSpec()), rows)
    state = go_on(inputs, state, rounds)
    # A copy: the state is given away with the next piece.
    return state, jnp.copy(state.length)


def draw(model: VQModel, mesh, params, tokens: Int[Any, "B C"]):
    """(pictures uint8 [B, H, W, 3], bool [B] whether all their values are numbers)."""
    function = partial(_draw, model)
    if mesh is not None:
        rows = PartitionSpec(AXIS)
        function = loop.over_mesh(function, mesh, AXIS, (PartitionSpec(), rows), rows)
    return function(params, tokens)


def _draw(model: VQModel, params, tokens):
    values = model.apply(params, tokens, method="decode")
    pictures = jnp.round(jnp.clip((values + 1) * 127.5, 0, 255)).astype(jnp.uint8)
    return pictures, jnp.isfinite(values).all(axis=(1, 2, 3))
