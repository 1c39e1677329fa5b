"""The decoding loop: prefill, then rounds of draft, verify, accept, commit inside one ``while_loop``.

Plain autoregressive decoding is the same loop with nothing drafted. ``start``, ``advance`` and ``finish`` are the parts
of ``decode``: a round is a round, whether one program runs them all or somebody looks in between.

Axes: G guidance rows, B batch, T stream tokens, N nodes (root included), L = max depth + 1, V codes.
"""

from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.decoding import checks
from lantern_jax.decoding.acceptance import Codebook, Rule, check_codebook
from lantern_jax.decoding.couplings import as_coupling
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.gumbel import Gumbel
from lantern_jax.decoding.protocols import Drafting, Outcome, Target
from lantern_jax.decoding.rules.names import as_rule
from lantern_jax.decoding.sampling import SamplingParams, process_logits, sample
from lantern_jax.decoding.stream import Decoded, Stream
from lantern_jax.decoding.topology import take_nodes
from lantern_jax.decoding.verification import Coupling, verify_tree
from lantern_jax.decoding.zipar import Rows, decode_pass
from lantern_jax.partition import varying_like


class Program(NamedTuple):
    """The static half of a generation: it decides what is compiled. Fields as in ``speculative_decode``."""

    target: Target
    drafting: Drafting = PLAIN
    coupling: Coupling = Gumbel()
    rows: Rows | None = None


@flax.struct.dataclass
class Inputs:
    """The traced half of a generation: arrays, swept without compiling again. As in ``speculative_decode``."""

    target_params: Any
    drafting_params: Any
    conditioning: Any
    keys: Key[Array, " B"]
    guidance: Float[Array, " B"] | None
    active: Bool[Array, " B"]
    sampling: SamplingParams
    rule: Rule
    codebook: Codebook | None


@flax.struct.dataclass
class State:
    """Where a generation stands between two rounds.

    Attributes:
        decoded: what is known so far.
        length: int32 [B], stream tokens known; T for a sequence that is finished, or was not active.
        pending: int32 [B], how many of them are not in the cache yet.
        cache, drafting: the target's and the drafting's own states.
    """

    decoded: Decoded
    length: Int[Array, " B"]
    pending: Int[Array, " B"]
    cache: Any
    drafting: Any


def speculative_decode(
    target: Target,
    target_params,
    conditioning,
    keys: Key[Array, " B"],
    *,
    drafting: Drafting,
    drafting_params=None,
    guidance: Float[Array, " B"] | None = None,
    sampling: SamplingParams | None = None,
    rule: Rule | str = "strict",
    codebook: Codebook | None = None,
    coupling: Coupling | str = "gumbel",
    active: Bool[Array, " B"] | None = None,
    rows: Rows | None = None,
    mesh: Mesh | None = None,
    mesh_axis: str = "data",
) -> Decoded:
    """Generates a token stream for every sequence, checking several guesses in each pass of the target.

    With the strict rule and ``Gumbel`` the tokens are those of ``autoregressive_decode`` with the same keys, whatever
    is drafted: exactly in float32, up to near-ties in bfloat16, where a wide pass rounds otherwise than a narrow one.

    Args:
        target, target_params, conditioning: the model and what it is conditioned on, leaves [B, ...]: conditional
            rows alone.
        keys: one key a sequence; fold_in of a seed with the sequence's global index makes results independent
            of batching.
        drafting, drafting_params: where guesses come from: ``eagle(drafter, tree)``, say.
        guidance: classifier-free guidance scale of each sequence; None for none, which is half the work.
        sampling: temperature, top-k, top-p (``SamplingParams.create``); None samples from the plain distribution.
        rule, codebook: acceptance rule, or its name, and the neighbours that a relaxed one needs.
        coupling: ``Gumbel(path)`` or ``Rejection(residual)``, or its name; static.
        active: False marks padding sequences, which are finished from the start.
        rows: rows in parallel instead of drafting (``zipar``); static, not lossless.
        mesh, mesh_axis: a mesh and the axis of it that sequences are spread over; the whole loop runs under
            ``shard_map`` over that axis, each device looping as often as its own sequences need. B must divide by its
            size. Over an axis "model" the compiler splits what is computed, as the parameters lie (``partition``).

    Raises:
        ValueError: arguments or records that do not fit each other, a relaxed rule without neighbours, a batch that
            does not divide.
    """
    rule, coupling = as_rule(rule), as_coupling(coupling)
    check_codebook(rule, codebook, target.vocab_size)
    batch = checks.check_batch(keys, conditioning, guidance, active)
    inputs = Inputs(
        target_params,
        drafting_params,
        conditioning,
        keys,
        guidance,
        jnp.ones(batch, bool) if active is None else active,
        SamplingParams.create() if sampling is None else sampling,
        rule,
        codebook,
    )
    program = Program(target, drafting, coupling, rows)
    if mesh is None:
        return _decode_jit(program, inputs)
    return _decode_sharded(program, checks.check_mesh(mesh, mesh_axis, batch), mesh_axis, inputs)


def autoregressive_decode(
    target: Target,
    target_params,
    conditioning,
    keys: Key[Array, " B"],
    *,
    guidance: Float[Array, " B"] | None = None,
    sampling: SamplingParams | None = None,
    active: Bool[Array, " B"] | None = None,
    rows: Rows | None = None,
    mesh: Mesh | None = None,
    mesh_axis: str = "data",
) -> Decoded:
    """Plain decoding, one token a pass; arguments as in ``speculative_decode``."""
    return speculative_decode(
        target, target_params, conditioning, keys, drafting=PLAIN, guidance=guidance, sampling=sampling,
        active=active, rows=rows, mesh=mesh, mesh_axis=mesh_axis,
    )  # fmt: skip


def decode(program: Program, inputs: Inputs) -> Decoded:
    """The whole generation as one traceable function."""
    return finish(inputs.active, advance(program, inputs, start(program, inputs)))


def start(program: Program, inputs: Inputs) -> State:
    """Prefill, and the first token of every sequence."""
    target, levels = program.target, program.drafting.max_depth + 1
    stream, total = Stream(target), target.num_tokens
    # A round commits at most the pending tokens and a whole path.
    span = stream.longest - 1 + levels
    slots = total + span if program.rows is None else program.rows.slots(target, program.drafting)
    with jax.named_scope("prefill"):
        cache, logits, prefix = checks.run_prefill(
            target, inputs.target_params, inputs.conditioning, inputs.guidance, slots, len(inputs.keys)
        )
        first = sample(logits, inputs.keys, jnp.zeros(len(inputs.keys), jnp.int32), inputs.sampling)
        drafting = checks.run(
            "drafting.init", program.drafting.init, inputs.drafting_params, prefix, slots, span
        )
    finite = jnp.isfinite(jnp.max(logits, axis=-1))
    running, known = inputs.active & finite, 1 + int(stream.run[1])
    state = State(
        decoded=stream.begin(first, finite | ~inputs.active, levels),
        length=jnp.where(running, jnp.int32(known), jnp.int32(total)),
        pending=jnp.where(running, jnp.int32(known), jnp.int32(1)),
        cache=cache,
        drafting=drafting,
    )
    # Constants of the state become sequences' own: under somebody's shard_map the loop's carry varies as the keys do.
    return varying_like(state, inputs.keys)


def advance(
    program: Program, inputs: Inputs, state: State, rounds: Int[Array, ""] | int | None = None
) -> State:
    """Rounds until every sequence is finished, or so many at most."""
    stream = Stream(program.target)
    if inputs.codebook is not None:
        inputs = inputs.replace(codebook=inputs.codebook.measured())

    def unfinished(carry):
        done, state = carry
        more = jnp.any(state.length < program.target.num_tokens)
        return more if rounds is None else more & (done < rounds)

    def body(carry):
        done, state = carry
        step = _round if program.rows is None else decode_pass
        after = step(program, stream, inputs, state)
        checks.check_unchanged(state, after)
        return done + 1, after

    return lax.while_loop(unfinished, body, (jnp.int32(0), state))[1]


def finish(active: Bool[Array, " B"], state: State) -> Decoded:
    """What is decoded; the streams of sequences that were not active are -1."""
    decoded = state.decoded
    return decoded.replace(tokens=jnp.where(active[:, None], decoded.tokens, jnp.int32(-1)))


def _round(program: Program, stream: Stream, inputs: Inputs, state: State) -> State:
    target, drafting, sampling, decoded = program.target, program.drafting, inputs.sampling, state.decoded
    running = state.length < target.num_tokens
    pending = stream.pending(decoded, state.length, state.pending)

    with jax.named_scope("draft"):
        draws = program.coupling.draws(
            inputs.keys, state.length, decoded.rounds, drafting.max_depth + 1, target.vocab_size, sampling
        )
        draft, drafting_state = checks.run_propose(
            drafting, inputs.drafting_params, state.drafting, pending, draws, sampling
        )
        draft = stream.forced_draft(draft, state.length)

    with jax.named_scope("score"):
        tokens, depth, ancestors = stream.block(pending, draft)
        logits, features, block = checks.run_score(
            target, inputs.target_params, state.cache, tokens, depth, ancestors
        )
        logits = stream.forced_logits(logits[:, stream.longest - 1 :], state.length, draft.topology.depth)
        log_probs = process_logits(logits, sampling)

    with jax.named_scope("verify"):
        verdict = verify_tree(
            stream.as_codes(draft, target.vocab_size), log_probs, draws, coupling=program.coupling,
            rule=inputs.rule, codebook=inputs.codebook, max_count=stream.room(state.length),
        )  # fmt: skip
        sound = take_nodes(jnp.isfinite(jnp.max(logits, axis=-1)), verdict.path).all(axis=1) | ~running

    with jax.named_scope("commit"):
        path = stream.block_path(pending, verdict.path)
        if not drafting.max_depth:
            # Always 0, but not to the compiler: it would write the cache before the last reading and copy it for that.
            path = path + jnp.minimum(verdict.bonus, 0)[:, None]
        count = jnp.where(running, state.pending + verdict.count, 0)
        cache = target.commit(state.cache, block, path, count)
        decoded, added = stream.record(decoded, state.length, running, draft.tokens, verdict)
        outcome = Outcome(
            tokens=jnp.take_along_axis(tokens, path, axis=1),
            features=jnp.take_along_axis(features, path[None, :, :, None], axis=2),
            count=count,
            log_probs=log_probs,
            draft=draft,
            verdict=verdict,
        )
        drafting_state = drafting.observe(inputs.drafting_params, drafting_state, outcome)
    return State(
        decoded=decoded.replace(finite=decoded.finite & sound),
        length=jnp.where(sound, state.length + added, jnp.int32(target.num_tokens)),
        pending=jnp.where(running, added - verdict.count, state.pending),
        cache=cache,
        drafting=drafting_state,
    )


_decode_jit = jax.jit(decode, static_argnums=0)


def over_mesh(function, mesh: Mesh, mesh_axes: str | tuple[str, ...], in_specs, out_specs):
    """``function`` under ``shard_map``, manual over these axes of the mesh alone."""
    axis_types = (AxisType.Auto,) * len(mesh.axis_names)
    # A mesh of jax.make_mesh has explicit axes; types are the loop's own matter.
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=axis_types)
    names = {mesh_axes} if isinstance(mesh_axes, str) else set(mesh_axes)
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=names, check_vma=False
    )


def input_specs(mesh_axis: str) -> Inputs:
    """How inputs lie over the mesh: sequences along one axis, the rest everywhere."""
    whole, rows = PartitionSpec(), PartitionSpec(mesh_axis)
    return Inputs(whole, whole, rows, rows, rows, rows, whole, whole, whole)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _decode_sharded(program: Program, mesh: Mesh, mesh_axis: str, inputs: Inputs) -> Decoded:
    rows = PartitionSpec(mesh_axis)
    return over_mesh(partial(decode, program), mesh, mesh_axis, (input_specs(mesh_axis),), rows)(inputs)
