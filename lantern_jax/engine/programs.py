"""The functions that an engine compiles: start, advance, refill, regroup, log_probs and draw, on one device or a mesh.

Axes: B sequences of a program, F new ones of a refill, T stream tokens, C codes of a picture, H W height and width.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PyTree, UInt8, UInt32

from lantern_jax.decoding import completion, loop
from lantern_jax.decoding.concrete import check_ids
from lantern_jax.decoding.program import Inputs, Program, State, input_specs
from lantern_jax.decoding.sampling import sequence_keys
from lantern_jax.decoding.scoring import stream_log_probs
from lantern_jax.devices.partition import DATA, over_mesh
from lantern_jax.io.errors import LanternError
from lantern_jax.models.vq import VQModel

# Per device: a picture of 512 x 512 keeps any device busy, and each further one takes memory beside the model.
PIXELS_PER_PASS = 512 * 512
_ROWS = PartitionSpec(DATA)
# The seed and the number that each sequence of a batch draws from: sequence j has the key fold_in(key(seed), j).
SequenceIds = UInt32[Array, "2 B"]


@dataclass(frozen=True)
class Parameters:
    """The arrays that programs read, pytrees on the same devices.

    Attributes:
        target: of the target's record.
        drafters: of draftings, by name.
        tokenizer: of the VQ tokenizer, or None.
        codebook: a ``Codebook`` for relaxed rules, or None.
    """

    target: PyTree
    drafters: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)
    tokenizer: PyTree = None
    codebook: Any = None


@flax.struct.dataclass
class _PerDevice:
    """A scalar of the loop's state, one per device: [devices]."""

    value: Any


def stack_scalars(state: State) -> State:
    """Gives every scalar of a device's state an axis.

    ``shard_map`` joins the results of devices along their first axis, which a scalar lacks. An extra axis on every leaf
    would make XLA copy the whole state, caches and all, when a piece begins and when it ends.
    """
    return jax.tree.map(lambda leaf: leaf if leaf.ndim else _PerDevice(leaf[None]), state)


def unstack_scalars(state: State) -> State:
    """Returns a device's part of a joined state as the loop knows it."""

    def is_stacked(leaf) -> bool:
        return isinstance(leaf, _PerDevice)

    return jax.tree.map(lambda leaf: leaf.value[0] if is_stacked(leaf) else leaf, state, is_leaf=is_stacked)


def _in_full(function):
    """Makes a function compute float32 products in float32 on every device.

    TF32 or bfloat16 instead, the default on GPUs and TPUs, would make a wide pass's tokens differ from a narrow one's.
    Products of bfloat16 stay what they are.
    """

    @wraps(function)
    def traced(*arguments, **named):
        with jax.default_matmul_precision("highest"):
            return function(*arguments, **named)

    return traced


@_in_full
def start(program: Program, mesh, inputs: Inputs, sequences: SequenceIds):
    """Prefills a batch; returns (keys [B], joined state). ``inputs`` have no keys, rule or codebook yet."""

    def begin(inputs: Inputs):
        return stack_scalars(loop.start(program, inputs))

    inputs = inputs.replace(keys=sequence_keys(*sequences))
    return inputs.keys, _over_groups(begin, mesh)(inputs)


@_in_full
def advance(program: Program, mesh, inputs: Inputs, state: State, rounds):
    """Runs at most ``rounds`` rounds; returns (state, its lengths). ``inputs`` have no conditioning."""

    def go_on(inputs: Inputs, state, rounds):
        return stack_scalars(loop.advance(program, inputs, unstack_scalars(state), rounds))

    state = _over_groups(go_on, mesh, _ROWS, PartitionSpec())(inputs, state, rounds)
    # A copy: the next piece donates the state.
    return state, jnp.copy(state.length)


@_in_full
def log_probs(program: Program, mesh, inputs: Inputs, tokens: Int[Any, "B T"]) -> Float[Array, "B T"]:
    """Returns log p of streams; ``inputs`` have conditioning, but no keys, rule or codebook."""

    def read(inputs: Inputs, tokens):
        given = inputs.target_params, inputs.conditioning, tokens
        return stream_log_probs(program.target, *given, guidance=inputs.guidance, sampling=inputs.sampling)

    return _over_groups(read, mesh, _ROWS)(inputs, tokens)


@_in_full
def refill(
    program: Program, mesh, inputs: Inputs, sequences: SequenceIds, slots: Int[Any, " F"], state: State
):
    """Puts new sequences into some slots; returns (keys [B], joined state, its lengths).

    Args:
        inputs: conditioning and guidance of the new ones, [F, ...].
        sequences: all of them, the new ones in their slots.
        slots: int32 [F], counted from 0 on each device; one past the end stands for none.

    Raises:
        NotRefillable: as ``_sequence_axes``.
    """

    def renew(inputs: Inputs, slots, state):
        each = len(inputs.keys)
        inputs = inputs.replace(keys=inputs.keys[jnp.minimum(slots, each - 1)], active=slots < each)
        axes, old = _sequence_axes(program, inputs), unstack_scalars(state)

        return stack_scalars(jax.tree.map(partial(_put, slots), axes, old, loop.start(program, inputs)))

    return _rewritten(renew, mesh, inputs.replace(keys=sequence_keys(*sequences)), slots, state)


@_in_full
def regroup(
    program: Program, mesh, inputs: Inputs, sequences: SequenceIds, slots: Int[Any, " B"], state: State
):
    """Takes sequences from another state, which stays as it is; returns (keys [B], joined state, its lengths).

    Args:
        inputs: conditioning and guidance of any sequence, [1, ...].
        slots: int32 [B], the place of each sequence in the other state; places may repeat.

    Raises:
        NotRefillable: as ``_sequence_axes``.
    """

    def take(inputs: Inputs, slots, state):
        inputs = inputs.replace(keys=inputs.keys[:1], active=jnp.ones(1, bool))
        axes = _sequence_axes(program, inputs)
        return stack_scalars(jax.tree.map(partial(_take, slots), axes, unstack_scalars(state)))

    return _rewritten(take, mesh, inputs.replace(keys=sequence_keys(*sequences)), slots, state)


def _rewritten(rewrite, mesh, inputs: Inputs, slots, state):
    """Lets each group of devices rewrite its part of a state; returns (keys [B], state, its lengths)."""
    state = _over_groups(rewrite, mesh, _ROWS, _ROWS)(inputs, slots, state)
    return inputs.keys, state, jnp.copy(state.length)


def pictures_per_pass(pixels: int, devices: int, most: int | None = None) -> int:
    """Returns the most pictures, of that many pixels each, that a pass of the tokenizer over these devices takes."""
    room = devices * max(1, PIXELS_PER_PASS // pixels)
    return room if most is None else min(room, most)


def _over_groups(function, mesh, *specs):
    """Lets each group of devices run a function of its part of the inputs; ``specs``: of what it takes besides."""
    return function if mesh is None else over_mesh(function, mesh, DATA, (input_specs(DATA), *specs), _ROWS)


def spread(count: int, groups: int, most: int | None) -> tuple[int, int]:
    """Returns (groups of devices, sequences B of the program) for ``count`` sequences.

    That is one group or all, and the smallest power of two that suffices per group, so that few programs serve any
    number.
    """
    groups = 1 if count == 1 else groups
    each = -(-count // groups)
    limit = 2 * each if most is None else -(-most // groups)
    return groups, max(each, min(1 << (each - 1).bit_length(), limit)) * groups


def check_new(program: Program, conditioning: Any, seeds: Any, numbers: Any) -> None:
    """Raises LanternError unless the target takes the conditioning, seeds and numbers are uint32, and JAX compiles."""
    if jax.config.jax_disable_jit:
        raise LanternError(
            "jax_disable_jit is on, but a pipeline runs compiled programs: switch it off, or use speculative_decode"
        )
    completion.check(program.target, conditioning, program.rows is not None)
    for name, values in (("seeds", seeds), ("numbers of sequences", numbers)):
        check_ids(name, np.asarray(values), 2**32)


def sequence_ids(
    size: int, seeds: Int[np.ndarray, " n"], numbers: Int[np.ndarray, " n"]
) -> UInt32[np.ndarray, "2 B"]:
    """Returns what n sequences draw from, repeated until they fill a batch of ``size``."""
    return np.stack([np.resize(values, size) for values in (seeds, numbers)]).astype(np.uint32)


def scales(guidance: float, count: int) -> Float[np.ndarray, " n"] | None:
    """Returns the guidance scale of each of ``count`` sequences, None if it is 1."""
    return None if guidance == 1 else np.full(count, guidance, np.float32)


def beginning(inputs: Inputs, conditioning: Any, guidance: Float[np.ndarray, " n"] | None) -> Inputs:
    """Returns what prefilling n sequences reads: no keys yet, no rule, no codebook."""
    return inputs.replace(conditioning=conditioning, guidance=guidance, keys=None, rule=None, codebook=None)


def places(slots: Int[np.ndarray, " k"], devices: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a run's slots as slots of its devices, the same number on each, a power of two or all.

    Returns:
        int32 [F], where ``each`` stands for none; and which of the k slots goes there.
    """
    on, own = np.divmod(np.asarray(slots), each)
    most = int(np.bincount(on).max())
    width = min(1 << (most - 1).bit_length(), each)
    places, rows = np.full((devices, width), each, np.int32), np.zeros((devices, width), np.int64)
    for device in range(devices):
        here = np.flatnonzero(on == device)
        places[device, : len(here)], rows[device, : len(here)] = own[here], here
    return places.ravel(), rows.ravel()


class NotRefillable(LanternError):
    """A drafting or a target keeps state between rounds that cannot be separated by sequence."""


def _sequence_axes(program: Program, inputs: Inputs):
    """Finds the sequence axis of every leaf of a state by trying two batch sizes.

    A scalar has none, -1: it is the round's, such as how many places of a drafter are taken, and starts anew with it.

    Raises:
        NotRefillable: an array has no axis that counts sequences, or several.
    """

    def shapes(batch: int):
        def rows(leaf):
            return jax.ShapeDtypeStruct((batch, *leaf.shape[1:]), leaf.dtype)

        parts = ("conditioning", "keys", "guidance", "active")
        some = inputs.replace(**{name: jax.tree.map(rows, getattr(inputs, name)) for name in parts})
        return jax.eval_shape(partial(loop.start, program), some)

    def axis(path, two, three) -> int:
        found = [i for i, sizes in enumerate(zip(two.shape, three.shape, strict=True)) if len(set(sizes)) > 1]
        if not two.ndim:
            return -1
        if len(found) != 1 or (two.shape[found[0]], three.shape[found[0]]) != (2, 3):
            raise NotRefillable(
                f"the state's {jax.tree_util.keystr(path)} has shape {two.shape} for 2 sequences and {three.shape} "
                "for 3: give it one axis of sequences"
            )
        return found[0]

    return jax.tree_util.tree_map_with_path(axis, shapes(2), shapes(3))


def _put(slots, axis: int, old, new):
    """Writes new sequences into slots of a leaf; only their rows are written."""
    return old if axis < 0 else old.at[(slice(None),) * axis + (slots,)].set(new, mode="drop")


def _take(slots, axis: int, leaf):
    """Takes the sequences in these slots of a leaf."""
    return leaf if axis < 0 else leaf[(slice(None),) * axis + (slots,)]


def draw(model: VQModel, mesh, params, tokens: Int[Any, "B C"]):
    """Draws codes; returns (uint8 [B, H, W, 3], bool [B] whether all values of a picture are finite)."""

    def function(params, tokens):
        values = model.apply(params, tokens, method="decode")
        pictures = jnp.round(jnp.clip((values + 1) * 127.5, 0, 255)).astype(jnp.uint8)
        return pictures, jnp.isfinite(values).all(axis=(1, 2, 3))

    return _over_pictures(function, mesh)(params, tokens)


@_in_full
def encode(model: VQModel, mesh, params, pictures: UInt8[Any, "B H W 3"]):
    """Returns the codes of pictures, int32 [B, C]."""
    return _over_pictures(partial(model.apply, method="codes"), mesh)(params, pictures)


def _over_pictures(function, mesh):
    """Spreads pictures over all devices: the tokenizer is whole on each."""
    if mesh is None:
        return function
    rows = PartitionSpec(mesh.axis_names)
    return over_mesh(function, mesh, mesh.axis_names, (PartitionSpec(), rows), rows)
