"""What an engine compiles: a batch is started, advanced, refilled and drawn, on one device or over a mesh of them.

Axes: B sequences of a program, F new ones of a refill, C codes of a picture, H W height and width.
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
from jaxtyping import Float, Int, PyTree, UInt8

from lantern_jax.decoding import completion, loop
from lantern_jax.decoding.concrete import check_ids
from lantern_jax.decoding.program import Inputs, Program, input_specs
from lantern_jax.devices.partition import DATA, over_mesh
from lantern_jax.io.errors import LanternError
from lantern_jax.models.vq import VQModel


@dataclass(frozen=True)
class Parameters:
    """What programs read: pytrees of arrays, all on the same devices.

    Attributes:
        target: of the target's record.
        drafters: of draftings, by name.
        tokenizer: of the VQ tokenizer, or None.
        codebook: a ``Codebook`` for relaxed rules, or None.

    Example:
        >>> held = lantern_jax.Parameters(target={"params": {}}, drafters={"eagle": {"params": {}}})
        >>> list(held.drafters), held.tokenizer
        (['eagle'], None)
    """

    target: PyTree
    drafters: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)
    tokenizer: PyTree = None
    codebook: Any = None


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


def _in_full(function):
    """Products of float32 are those of float32 on every device: TF32 or bfloat16 in their place, as GPUs and TPUs have
    it by default, would make a wide pass's tokens others than a narrow one's. Those of bfloat16 stay what they are."""

    @wraps(function)
    def traced(*arguments):
        with jax.default_matmul_precision("highest"):
            return function(*arguments)

    return traced


@_in_full
def start(program, mesh, target, drafting, conditioning, seeds, numbers, guidance, sampling, active):
    """(keys [B], joined state) after prefill; without a mesh on one device. Arguments as in ``loop.Inputs``."""
    keys = _keys(seeds, numbers)

    def begin(inputs: Inputs):
        return _joined(loop.start(program, inputs))

    inputs = Inputs(target, drafting, conditioning, keys, guidance, active, sampling, None, None)
    if mesh is not None:
        begin = over_mesh(begin, mesh, DATA, (input_specs(DATA),), PartitionSpec(DATA))
    return keys, begin(inputs)


@_in_full
def advance(program, mesh, target, drafting, guidance, sampling, rule, codebook, keys, state, rounds):
    """(state after at most so many rounds, its lengths)."""

    def go_on(inputs: Inputs, state, rounds):
        return _joined(loop.advance(program, inputs, own(state), rounds))

    inputs = Inputs(target, drafting, None, keys, guidance, None, sampling, rule, codebook)
    if mesh is not None:
        rows = PartitionSpec(DATA)
        go_on = over_mesh(go_on, mesh, DATA, (input_specs(DATA), rows, PartitionSpec()), rows)
    state = go_on(inputs, state, rounds)
    # A copy: the state is given away with the next piece.
    return state, jnp.copy(state.length)


@_in_full
def refill(program, mesh, target, drafting, conditioning, seeds, numbers, guidance, sampling, slots, state):
    """(keys [B], state, its lengths) with new sequences in some slots.

    Args:
        conditioning, guidance: of the new ones, [F, ...].
        seeds, numbers: uint32 [B], of all, the new ones in their slots.
        slots: int32 [F], a device's own count from 0; one past the end is none.
        state: joined.

    Raises:
        NotRefillable: as ``_sequence_axes``.
    """
    keys = _keys(seeds, numbers)

    def renew(inputs: Inputs, slots, state):
        each = len(inputs.keys)
        inputs = inputs.replace(keys=inputs.keys[jnp.minimum(slots, each - 1)], active=slots < each)
        axes = _sequence_axes(program, inputs)
        return _joined(jax.tree.map(partial(_put, slots), axes, own(state), loop.start(program, inputs)))

    inputs = Inputs(target, drafting, conditioning, keys, guidance, None, sampling, None, None)
    return _rewritten(renew, mesh, inputs, slots, state)


@_in_full
def regroup(program, mesh, target, drafting, conditioning, seeds, numbers, guidance, sampling, slots, state):
    """(keys [B], state, its lengths) of sequences of another state on one group of devices, which stays as it is.

    Args:
        conditioning, guidance: of any sequence, [1, ...].
        seeds, numbers: uint32 [B].
        slots: int32 [B], which sequence of the other each is; some of them may be the same.
        state: the other, joined.

    Raises:
        NotRefillable: as ``_sequence_axes``.
    """
    keys = _keys(seeds, numbers)

    def take(inputs: Inputs, slots, state):
        inputs = inputs.replace(keys=inputs.keys[:1], active=jnp.ones(1, bool))
        axes = _sequence_axes(program, inputs)
        return _joined(jax.tree.map(partial(_take, slots), axes, own(state)))

    inputs = Inputs(target, drafting, conditioning, keys, guidance, None, sampling, None, None)
    return _rewritten(take, mesh, inputs, slots, state)


def _rewritten(rewrite, mesh, inputs: Inputs, slots, state):
    """(keys [B], state, its lengths): each group of devices makes ``rewrite(inputs, slots, state)`` of its part."""
    if mesh is not None:
        rows = PartitionSpec(DATA)
        rewrite = over_mesh(rewrite, mesh, DATA, (input_specs(DATA), rows, rows), rows)
    state = rewrite(inputs, slots, state)
    return inputs.keys, state, jnp.copy(state.length)


def spread(count: int, groups: int, most: int | None) -> tuple[int, int]:
    """(groups, sequences B of the program): one group of devices or all, and as few a group as there can be, rounded
    up to a power of two. So few programs serve any number of sequences, whatever the number of devices."""
    groups = 1 if count == 1 else groups
    each = -(-count // groups)
    limit = 2 * each if most is None else -(-most // groups)
    return groups, max(each, min(1 << (each - 1).bit_length(), limit)) * groups


def check_new(program: Program, conditioning: Any, seeds: Any, numbers: Any) -> None:
    """Raises ValueError unless new sequences have conditioning that the target takes, and draw from seeds and numbers
    that are uint32: others would wrap to some that are."""
    completion.check(program.target, conditioning, program.rows is not None)
    for name, values in (("seeds", seeds), ("numbers of sequences", numbers)):
        check_ids(name, np.asarray(values), 2**32)


def scales(guidance: float, count: int) -> Float[np.ndarray, " n"] | None:
    """The guidance scale of so many sequences, none where it is 1."""
    return None if guidance == 1 else np.full(count, guidance, np.float32)


def begin(
    guidance: float,
    shared: tuple,
    conditioning: Any,
    seeds: Int[np.ndarray, " n"],
    numbers: Int[np.ndarray, " n"],
    size: int,
) -> tuple:
    """What programs that prefill take; ``seeds`` and ``numbers`` of all sequences of a batch of this size,
    ``conditioning`` of new ones."""
    target, drafting, _, sampling, *_ = shared
    guided = scales(guidance, len(jax.tree.leaves(conditioning)[0]))
    seeds, numbers = (np.resize(values, size).astype(np.uint32) for values in (seeds, numbers))
    return target, drafting, conditioning, seeds, numbers, guided, sampling


def places(slots: Int[np.ndarray, " k"], devices: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Slots of a run as those of its devices, as many on every one, a power of two or all: (int32 [F], ``each`` where
    there is none; which of the k goes there)."""
    on, own = np.divmod(np.asarray(slots), each)
    most = int(np.bincount(on).max())
    width = min(1 << (most - 1).bit_length(), each)
    places, rows = np.full((devices, width), each, np.int32), np.zeros((devices, width), np.int64)
    for device in range(devices):
        here = np.flatnonzero(on == device)
        places[device, : len(here)], rows[device, : len(here)] = own[here], here
    return places.ravel(), rows.ravel()


class NotRefillable(LanternError):
    """A drafting, or a target, keeps something between rounds that cannot be told apart by sequence."""


def _sequence_axes(program: Program, inputs: Inputs):
    """For every leaf of a state the axis of sequences, found by trying two batch sizes.

    A scalar has none, -1: it is the round's (how many of a drafter's places are taken, say) and begins anew with it.

    Raises:
        NotRefillable: an array has no such axis, or no single one.
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
    """The leaf of a state with new sequences in these slots; only their rows are written."""
    return old if axis < 0 else old.at[(slice(None),) * axis + (slots,)].set(new, mode="drop")


def _take(slots, axis: int, leaf):
    """The leaf of a state of the sequences of these slots."""
    return leaf if axis < 0 else jnp.take(leaf, slots, axis, mode="clip")


def _keys(seeds, numbers):
    return jax.vmap(lambda seed, number: jax.random.fold_in(jax.random.key(seed), number))(seeds, numbers)


def check_codes(model: VQModel, tokens: Any) -> None:
    """Raises ValueError unless these are codes of the tokenizer."""
    check_ids("codes", tokens, model.config.codebook_size)


def check_pictures(pictures: Any) -> None:
    """Raises ValueError unless pictures are uint8: floats would be taken for nearly black ones."""
    if pictures.dtype != np.uint8:
        raise LanternError(f"pictures are {pictures.dtype}: give uint8 [n, H, W, 3], 0 to 255")


def draw(model: VQModel, mesh, params, tokens: Int[Any, "B C"]):
    """(pictures uint8 [B, H, W, 3], bool [B] whether all their values are numbers)."""

    def function(params, tokens):
        values = model.apply(params, tokens, method="decode")
        pictures = jnp.round(jnp.clip((values + 1) * 127.5, 0, 255)).astype(jnp.uint8)
        return pictures, jnp.isfinite(values).all(axis=(1, 2, 3))

    return _over_pictures(function, mesh)(params, tokens)


@_in_full
def encode(model: VQModel, mesh, params, pictures: UInt8[Any, "B H W 3"]):
    """int32 [B, C], the codes of pictures."""
    return _over_pictures(partial(model.apply, method="codes"), mesh)(params, pictures)


def _over_pictures(function, mesh):
    """The tokenizer is whole on every device, so each has pictures of its own."""
    if mesh is None:
        return function
    rows = PartitionSpec(mesh.axis_names)
    return over_mesh(function, mesh, mesh.axis_names, (PartitionSpec(), rows), rows)
