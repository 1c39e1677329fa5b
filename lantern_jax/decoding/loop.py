"""The decoding loop: prefill, then rounds of draft, verify, accept, commit inside one ``while_loop``.

Plain autoregressive decoding is the same loop with the empty tree. Axes: G guidance rows, B batch, T stream
tokens, R pending slots, N tree nodes (root included), L = max depth + 1, V codes.

The *stream* of a sequence is its tokens after the prefix, forced ones (a row end, say) included. The root of a
round's tree is the end of a short chain of pending tokens: the last sampled one and the forced ones after it, R
slots at most, right-aligned. Everything before them is in the cache.
"""

from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.decoding.acceptance import Codebook, Rule, Strict, check_codebook
from lantern_jax.decoding.drafting import draft_tree
from lantern_jax.decoding.protocols import Drafter, Target
from lantern_jax.decoding.sampling import SamplingParams, gumbel_argmax, gumbel_noise, process_logits
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.decoding.verification import verify_tree


@flax.struct.dataclass
class Decoded:
    """What a generation returns.

    Attributes:
        tokens: int32 [B, T], the stream; all -1 for a sequence that was not active.
        rounds: int32 [B], target passes after prefill.
        accepted: int32 [B, L], how many rounds accepted 0, 1, ... draft tokens.
        round_of_token: int32 [B, T], the round that produced a token (0 = prefill); forced tokens carry the round
            of the token before them.
        substituted: int32 [B], accepted draft tokens that the strict rule, on the same random numbers, refuses.
        distance: float32 [B], sum over those of the codebook distance to the strict rule's token.
    """

    tokens: Int[Array, "B T"]
    rounds: Int[Array, " B"]
    accepted: Int[Array, "B L"]
    round_of_token: Int[Array, "B T"]
    substituted: Int[Array, " B"]
    distance: Float[Array, " B"]


class Program(NamedTuple):
    """The static half of a generation: it decides what is compiled. Fields as in ``speculative_decode``."""

    target: Target
    drafter: Drafter | None = None
    tree: DraftTree = DraftTree.empty()
    coupling: str = "gumbel"
    path: str = "longest"
    residual: str = "exact"


@flax.struct.dataclass
class Inputs:
    """The traced half of a generation: arrays, swept without compiling again. As in ``speculative_decode``."""

    target_params: Any
    drafter_params: Any
    conditioning: Any
    keys: Key[Array, " B"]
    guidance: Float[Array, " B"]
    active: Bool[Array, " B"]
    sampling: SamplingParams
    rule: Rule
    codebook: Codebook | None


@flax.struct.dataclass
class LoopState:
    """Carry of the loop; ``length`` counts stream tokens known, ``pending`` of them not yet in the cache."""

    decoded: Decoded
    length: Int[Array, " B"]
    pending: Int[Array, " B"]
    cache: Any
    drafter: Any
    features: Float[Array, "G B R-1+L D"]
    absorbable: Int[Array, " B"]


def speculative_decode(
    target: Target,
    target_params,
    conditioning,
    keys: Key[Array, " B"],
    *,
    drafter: Drafter | None = None,
    drafter_params=None,
    guidance: Float[Array, " B"] | None,
    sampling: SamplingParams,
    tree: DraftTree,
    rule: Rule | None = None,
    codebook: Codebook | None = None,
    coupling: str = "gumbel",
    path: str = "longest",
    residual: str = "exact",
    active: Bool[Array, " B"] | None = None,
    mesh: Mesh | None = None,
) -> Decoded:
    """Generates a token stream for every sequence, drafting a static tree each round.

    Args:
        target, target_params, conditioning: the model and its conditioning, leaves [B, ...].
        keys: one key a sequence; fold_in of a seed with the sequence's global index makes results independent
            of batching.
        drafter, drafter_params: needed unless the tree is empty.
        guidance: classifier-free guidance scale of each sequence; None for none.
        sampling: temperature, top-k, top-p; traced.
        rule, codebook: acceptance rule (strict when None) and the neighbours a relaxed rule needs.
        coupling, path, residual: as in ``verify_tree``; static.
        active: False marks padding sequences, which are finished from the start.
        mesh: a mesh with an axis "data"; the whole loop runs under ``shard_map`` over it, each device looping
            as often as its own sequences need. B must divide by its size.

    Raises:
        ValueError: a tree without a drafter, a relaxed rule without neighbours, a batch that does not divide.
    """
    rule = Strict() if rule is None else rule
    check_codebook(rule, codebook)
    if tree.max_depth and drafter is None:
        raise ValueError(
            f"a tree of {tree.num_nodes} nodes needs a drafter: give one, or use DraftTree.empty()"
        )
    batch = keys.shape[0]
    if active is None:
        active = jnp.ones(batch, bool)
    program = Program(target, drafter, tree, coupling, path, residual)
    inputs = Inputs(
        target_params, drafter_params, conditioning, keys, guidance, active, sampling, rule, codebook
    )
    if mesh is None:
        return _decode_jit(program, inputs)
    if batch % mesh.shape["data"]:
        raise ValueError(
            f"batch {batch} does not divide over {mesh.shape['data']} devices: pad it with inactive ones"
        )
    return _decode_sharded(program, mesh, inputs)


def autoregressive_decode(
    target: Target, target_params, conditioning, keys: Key[Array, " B"], **options
) -> Decoded:
    """Plain decoding, one token a pass: ``speculative_decode`` with the empty tree; same keyword arguments."""
    return speculative_decode(target, target_params, conditioning, keys, tree=DraftTree.empty(), **options)


def decode(program: Program, inputs: Inputs) -> Decoded:
    """The whole generation as one traceable function."""
    stream = _Stream(program.target.forced)

    def unfinished(state):
        return jnp.any(state.length < program.target.num_tokens)

    state = _prefill(program, stream, inputs)
    decoded = lax.while_loop(unfinished, partial(_round, program, stream, inputs), state).decoded
    return decoded.replace(tokens=jnp.where(inputs.active[:, None], decoded.tokens, jnp.int32(-1)))


_decode_jit = jax.jit(decode, static_argnums=0)


@partial(jax.jit, static_argnums=(0, 1))
def _decode_sharded(program: Program, mesh: Mesh, inputs: Inputs) -> Decoded:
    whole, rows = PartitionSpec(), PartitionSpec("data")
    specs = Inputs(whole, whole, rows, rows, rows, rows, whole, whole, whole)
    body = partial(decode, program)
    return jax.shard_map(body, mesh=mesh, in_specs=(specs,), out_specs=rows, check_vma=False)(inputs)


class _Stream:
    """Where tokens are forced, as constant tables over stream positions.

    ``run[i]``: length of the run of forced tokens that starts at i. ``stop[i]``: the first position after i
    that is forced, or T. ``slots``: R, the longest chain of pending tokens.
    """

    def __init__(self, forced: np.ndarray):
        length = len(forced)
        self.forced = forced
        self.run = np.zeros(length + 1, np.int32)
        self.stop = np.full(length + 1, length, np.int32)
        for i in range(length - 1, -1, -1):
            self.run[i] = self.run[i + 1] + 1 if forced[i] >= 0 else 0
            if i + 1 < length:
                self.stop[i] = i + 1 if forced[i + 1] >= 0 else self.stop[i + 1]
        # A run that ends the stream is never pending: the sequence is finished.
        inner = [run for i, run in enumerate(self.run[:length]) if i + run < length]
        self.slots = 1 + max(inner, default=0)


def _prefill(program: Program, stream: _Stream, inputs: Inputs) -> LoopState:
    target, levels = program.target, program.tree.max_depth + 1
    batch, total, active = inputs.keys.shape[0], target.num_tokens, inputs.active
    span = stream.slots - 1 + levels
    with jax.named_scope("prefill"):
        cache, logits, prefix = target.prefill(
            inputs.target_params, inputs.conditioning, inputs.guidance, total + span
        )
        start = jnp.zeros((batch, 1), jnp.int32)
        noise = gumbel_noise(inputs.keys, start, target.vocab_size, inputs.sampling)[:, 0]
        first = gumbel_argmax(process_logits(logits, inputs.sampling), noise)
        drafter_state = None
        if program.tree.max_depth:
            drafter_state = program.drafter.init(inputs.drafter_params, prefix, total + span, span)
    tokens = jnp.broadcast_to(jnp.asarray(stream.forced)[None], (batch, total))
    tokens = jnp.concatenate([first[:, None], tokens[:, 1:]], axis=1)
    known = 1 + int(stream.run[1])
    last = prefix.features[:, :, -1:]
    return LoopState(
        decoded=Decoded(
            tokens=tokens,
            rounds=jnp.zeros(batch, jnp.int32),
            accepted=jnp.zeros((batch, levels), jnp.int32),
            round_of_token=jnp.zeros((batch, total), jnp.int32),
            substituted=jnp.zeros(batch, jnp.int32),
            distance=jnp.zeros(batch, jnp.float32),
        ),
        length=jnp.where(active, jnp.int32(known), jnp.int32(total)),
        pending=jnp.where(active, jnp.int32(known), jnp.int32(1)),
        cache=cache,
        drafter=drafter_state,
        features=jnp.pad(last, ((0, 0), (0, 0), (0, span - 1), (0, 0))),
        absorbable=jnp.ones(batch, jnp.int32),
    )


def _draft(program: Program, stream: _Stream, inputs: Inputs, noise, state: LoopState):
    """Absorbs what the last round committed, walks the drafter along forced tokens, fills the tree."""
    drafter, params = program.drafter, inputs.drafter_params
    # The drafter's newest feature belongs to the position before the last sampled token.
    newest = state.length - state.pending
    span = state.features.shape[2]
    where = newest[:, None] - state.absorbable[:, None] + 1 + jnp.arange(span, dtype=jnp.int32)[None]
    absorbed = _take(state.decoded.tokens, where)
    drafter_state, logits = drafter.absorb(params, state.drafter, state.features, absorbed, state.absorbable)
    committed = drafter_state
    root_node = jnp.zeros_like(newest)
    for i in range(1, stream.slots):
        forced = _take(state.decoded.tokens, newest[:, None] + i)
        drafter_state, forced_logits = drafter.expand(params, drafter_state, forced, root_node[:, None])
        there = i < state.pending
        root_node = jnp.where(there, jnp.int32(i), root_node)
        logits = jnp.where(there[:, None], forced_logits[:, 0], logits)
    root = _take(state.decoded.tokens, state.length[:, None] - 1)[:, 0]
    coupled = program.coupling == "gumbel"
    draft = draft_tree(
        program.tree, drafter, params, drafter_state, logits, root,
        sampling=inputs.sampling,
        noise=noise if coupled else None,
        streams=None if coupled else (inputs.keys, state.length, state.decoded.rounds),
        root_node=root_node,
        num_expanded=stream.slots,
    )  # fmt: skip
    return draft, committed


def _round(program: Program, stream: _Stream, inputs: Inputs, state: LoopState) -> LoopState:
    target, tree, decoded, sampling = program.target, program.tree, state.decoded, inputs.sampling
    levels, total = tree.max_depth + 1, target.num_tokens
    running = state.length < total
    positions = state.length[:, None] + jnp.arange(levels, dtype=jnp.int32)[None]
    noise = gumbel_noise(inputs.keys, positions, target.vocab_size, sampling)

    with jax.named_scope("draft"):
        if tree.max_depth:
            draft, drafter_state = _draft(program, stream, inputs, noise, state)
            tokens, draft_log_probs = draft.tokens, draft.log_probs
        else:
            tokens, draft_log_probs = _take(decoded.tokens, state.length[:, None] - 1), None
            drafter_state = state.drafter

    with jax.named_scope("score"):
        block_tokens, depth, ancestors = _with_pending(tree, stream, state, tokens)
        logits, features, block = target.score(
            inputs.target_params, state.cache, block_tokens, depth, ancestors
        )
        log_probs = process_logits(logits[:, stream.slots - 1 :], sampling)

    with jax.named_scope("verify"):
        # The bonus token follows the path, so the path ends one short of a forced position or of the end.
        room = jnp.asarray(stream.stop)[jnp.minimum(state.length, total) - 1] - state.length - 1
        verdict = verify_tree(
            tree, tokens, log_probs, rule=inputs.rule, codebook=inputs.codebook, coupling=program.coupling,
            path=program.path, residual=program.residual, temperature=sampling.temperature, noise=noise,
            keys=inputs.keys, positions=state.length, rounds=decoded.rounds, draft_log_probs=draft_log_probs,
            max_count=jnp.maximum(room, 0),
        )  # fmt: skip

    with jax.named_scope("commit"):
        path = _block_path(stream, state.pending, verdict.path)
        taken = jnp.where(running, state.pending + verdict.count, 0)
        cache = target.commit(state.cache, block, path, taken)
        features = jnp.take_along_axis(features, path[None, :, :, None], axis=2)

    new_tokens = jnp.take_along_axis(tokens, verdict.path, axis=1)
    decoded, added = _record(stream, decoded, state.length, running, new_tokens, verdict)
    return LoopState(
        decoded=decoded,
        length=state.length + added,
        pending=jnp.where(running, added - verdict.count, state.pending),
        cache=cache,
        drafter=drafter_state,
        features=features,
        absorbable=taken,
    )


def _block_path(stream: _Stream, pending: Int[Array, " B"], path: Int[Array, "B L"]) -> Int[Array, "B R-1+L"]:
    """A tree path as block slots: the pending chain, which ends in the root, then the accepted nodes."""
    levels = path.shape[1]
    step = jnp.arange(stream.slots - 1 + levels, dtype=jnp.int32)[None]
    on_tree = jnp.clip(step - (pending - 1)[:, None], 0, levels - 1)
    nodes = stream.slots - 1 + jnp.take_along_axis(path, on_tree, axis=1)
    return jnp.where(step < (pending - 1)[:, None], (stream.slots - pending)[:, None] + step, nodes)


def _with_pending(tree, stream, state, tokens):
    """The block that the target scores: R - 1 right-aligned pending slots, then the tree from its root on."""
    extra = stream.slots - 1
    if not extra:
        return tokens, tree.depth, tree.ancestors
    behind = np.arange(-extra, 0, dtype=np.int32)[None]
    pending = _take(state.decoded.tokens, state.length[:, None] - 1 + behind)
    root_depth = (state.pending - 1)[:, None]
    depth = jnp.maximum(jnp.concatenate([root_depth + behind, root_depth + tree.depth[None]], axis=1), 0)
    slots = np.arange(extra + tree.num_nodes)
    sees = np.tril(np.ones((slots.size, slots.size), bool))
    sees[extra:, extra:] = tree.ancestors
    there = jnp.asarray(slots, jnp.int32)[None] >= extra - root_depth
    ancestors = (jnp.asarray(sees)[None] & there[:, None, :]) | np.eye(slots.size, dtype=bool)[None]
    return jnp.concatenate([pending, tokens], axis=1), depth, ancestors


def _record(stream, decoded, length, running, path_tokens, verdict):
    """Writes a round's tokens and statistics; returns how many stream tokens it made known."""
    total = decoded.tokens.shape[1]
    count = verdict.count
    made = jnp.concatenate([path_tokens[:, 1:], path_tokens[:, :1]], axis=1)
    step = jnp.arange(made.shape[1], dtype=jnp.int32)[None]
    made = jnp.where(step == count[:, None], verdict.bonus[:, None], made)
    added = count + 1 + jnp.asarray(stream.run)[jnp.minimum(length + count + 1, total)]
    added = jnp.where(running, added, 0)

    offset = jnp.arange(total, dtype=jnp.int32)[None] - length[:, None]
    fresh = (offset >= 0) & (offset < added[:, None])
    sampled = fresh & (offset <= count[:, None])
    values = jnp.take_along_axis(made, jnp.clip(offset, 0, made.shape[1] - 1), axis=1)
    counts = (step == count[:, None]) & running[:, None]
    rounds = decoded.rounds + running.astype(jnp.int32)
    kept = (step[:, : made.shape[1] - 1] < count[:, None]) & running[:, None]
    swapped = kept & verdict.substituted
    return decoded.replace(
        tokens=jnp.where(sampled, values, decoded.tokens),
        rounds=rounds,
        accepted=decoded.accepted + counts.astype(jnp.int32),
        round_of_token=jnp.where(fresh, rounds[:, None], decoded.round_of_token),
        substituted=decoded.substituted + jnp.sum(swapped, axis=1, dtype=jnp.int32),
        distance=decoded.distance + jnp.sum(jnp.where(swapped, verdict.distance, jnp.float32(0)), axis=1),
    ), added


def _take(tokens: Int[Array, "B T"], where: Int[Array, "B M"]) -> Int[Array, "B M"]:
    return jnp.take_along_axis(tokens, jnp.clip(where, 0, tokens.shape[1] - 1), axis=1)
