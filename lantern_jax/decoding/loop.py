"""The decoding loop: prefill, then rounds of draft, verify, accept, commit inside one ``while_loop``.

Plain autoregressive decoding is the same loop with nothing drafted. ``start``, ``advance`` and ``finish`` are the parts
of ``decode``, for callers that look in between two rounds; the rounds are the same.

Axes: G guidance rows, B batch, T stream tokens, N nodes (root included), L = max depth + 1, V codes.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.decoding import completion, contracts, staircase
from lantern_jax.decoding.acceptance import Codebook, Rule, Strict, as_rule, check_codebook
from lantern_jax.decoding.choices import COUPLINGS
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.gumbel import Gumbel, noise_at
from lantern_jax.decoding.program import Inputs, Program, State, input_specs
from lantern_jax.decoding.protocols import Drafting, Outcome, Target
from lantern_jax.decoding.sampling import SamplingParams, process_logits, sample
from lantern_jax.decoding.stream import Decoded, Stream
from lantern_jax.decoding.topology import take_nodes
from lantern_jax.decoding.verification import Coupling
from lantern_jax.decoding.zipar import Rows
from lantern_jax.devices.partition import over_mesh, varying_like
from lantern_jax.io import errors


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
    mesh: Mesh | AbstractMesh | None = None,
    mesh_axis: str = "data",
) -> Decoded:
    """Generates a token stream for every sequence, checking several guesses in each pass of the target.

    With the strict rule and ``Gumbel`` any drafting gives the tokens of ``autoregressive_decode`` with the same keys:
    exactly in float32, up to near-ties in bfloat16, where a wide pass rounds differently from a narrow one.

    Args:
        target, target_params, conditioning: the model and its conditioning, leaves [B, ...]: conditional rows only.
        keys: one key per sequence, of Threefry, JAX's default; ``fold_in`` of a seed's key with the sequence's global
            index makes results independent of batching.
        drafting, drafting_params: the source of guesses, such as ``eagle(drafter, tree)``.
        guidance: classifier-free guidance scale of each sequence; None for none, which is half the work.
        sampling: temperature, top-k, top-p (``SamplingParams.create``); None samples from the plain distribution.
        rule, codebook: acceptance rule, or its name, and the neighbours that a relaxed one needs.
        coupling: ``Gumbel(path)``, ``Rejection(residual)`` or ``Block()``, or its name; static.
        active: False marks padding sequences, which are finished from the start.
        rows: decodes rows in parallel instead of drafting (``zipar``); static, not lossless.
        mesh, mesh_axis: a mesh (an abstract one to export with) and the axis that sequences are spread over. The whole
            loop runs under ``shard_map`` over that axis, each device looping as often as its own sequences need; B must
            divide by its size. Over an axis "model" the compiler splits the computation the way the parameters are
            split (``partition``).

    Raises:
        LanternError: arguments or records that do not fit each other, ids or padding that the target does not take, a
            relaxed rule without neighbours, a batch that does not divide over the mesh.
    """
    rule, coupling = as_rule(rule), COUPLINGS.checked(coupling)
    if not isinstance(drafting, Drafting):
        raise errors.invalid("drafting", drafting, "a Drafting, such as jacobi(target.vocab_size, window=8)")
    check_codebook(rule, codebook, target.vocab_size)
    batch = contracts.check_batch(keys, conditioning, guidance, active)
    completion.check(target, conditioning, rows is not None)
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
    contracts.check_arrays(inputs)
    program = Program(target, drafting, coupling, rows)
    if mesh is None:
        contracts.check_on_no_mesh(inputs)
        return _decode_jit(program, inputs)
    return _decode_sharded(program, contracts.check_mesh(mesh, mesh_axis, batch), mesh_axis, inputs)


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
    mesh: Mesh | AbstractMesh | None = None,
    mesh_axis: str = "data",
) -> Decoded:
    """Decodes plainly, one token per pass; arguments as in ``speculative_decode``."""
    return speculative_decode(
        target, target_params, conditioning, keys, drafting=PLAIN, guidance=guidance, sampling=sampling,
        active=active, rows=rows, mesh=mesh, mesh_axis=mesh_axis,
    )  # fmt: skip


def decode(program: Program, inputs: Inputs) -> Decoded:
    """Runs the whole generation; traceable."""
    return finish(inputs.active, advance(program, inputs, start(program, inputs)))


def start(program: Program, inputs: Inputs) -> State:
    """Runs prefill and samples every sequence's first token, or takes the given first ones (``Completion``)."""
    target = program.target
    conditioning, given = completion.parts(inputs.conditioning)
    # A round commits at most the pending tokens and a whole path.
    span = Stream(target).longest + program.drafting.max_depth
    slots = target.num_tokens + span if program.rows is None else program.rows.slots(target, program.drafting)
    with jax.named_scope("prefill"):
        cache, logits, prefix = contracts.run_prefill(
            target, inputs.target_params, conditioning, inputs.guidance, slots, len(inputs.keys)
        )
        if program.rows is None:
            drafting = contracts.run(
                "drafting.init", program.drafting.init, inputs.drafting_params, prefix, slots, span
            )
        else:
            drafting = staircase.begin(program.rows, target, len(inputs.keys), slots)
        finite = jnp.isfinite(jnp.max(logits, axis=-1))
        if given is not None:
            return _completed(program, inputs, given, finite, cache, drafting)
        first = sample(logits, inputs.keys, jnp.zeros(len(inputs.keys), jnp.int32), inputs.sampling)
    return _begun(program, inputs, first[:, None], finite, cache, drafting)


def _begun(program: Program, inputs: Inputs, first: Int[Array, "B K"], finite, cache, drafting) -> State:
    """Makes the state after the first tokens, of which all but the last are in the cache."""
    stream, count = Stream(program.target), first.shape[1]
    running, more = inputs.active & finite, int(stream.run[count])
    levels, noise = program.drafting.max_depth + 1, None
    if type(program.coupling) is Gumbel:
        sizes = stream.length, levels, stream.vocab_size
        noise = program.coupling.noise_of(inputs.keys, *sizes, inputs.sampling)
    state = State(
        decoded=stream.begin(first, finite | ~inputs.active, levels),
        length=jnp.where(running, jnp.int32(count + more), jnp.int32(stream.length)),
        pending=jnp.where(running, jnp.int32(1 + more), jnp.int32(1)),
        cache=cache,
        drafting=drafting,
        noise=noise,
    )
    # Under a caller's shard_map the loop's carry must vary as the keys do, constants included.
    return varying_like(state, inputs.keys)


def _completed(program: Program, inputs: Inputs, given: Int[Array, "B K"], finite, cache, drafting) -> State:
    """Reads the given tokens, leads the drafting along them, and makes the state after them."""
    if given.shape[1] > 1:
        model = program.target, inputs.target_params
        cache, features = completion.read(*model, cache, given, lambda logits, features, _: features, axis=2)
        finite = finite & jnp.isfinite(features).all(axis=(0, 2, 3))
        if program.drafting.max_depth:
            short = Program(
                *completion.along(program.target, program.drafting, given, features), program.coupling
            )
            certain = inputs.replace(rule=Strict(), codebook=None)
            begun = _begun(short, certain, given[:, :1], finite, jnp.zeros_like(given[:, 0]), drafting)
            drafting = completion.forgotten(advance(short, certain, begun).drafting)
    return _begun(program, inputs, given, finite, cache, drafting)


def advance(
    program: Program, inputs: Inputs, state: State, rounds: Int[Array, ""] | int | None = None
) -> State:
    """Runs rounds until all sequences are finished, or at most ``rounds``."""
    stream = Stream(program.target)
    if inputs.codebook is not None:
        inputs = inputs.replace(codebook=inputs.codebook.measured())

    def unfinished(carry):
        done, state = carry
        more = jnp.any(state.length < program.target.num_tokens)
        return more if rounds is None else more & (done < rounds)

    def body(carry):
        done, state = carry
        step = _round if program.rows is None else staircase.decode_pass
        after = step(program, stream, inputs, state)
        contracts.check_unchanged(state, after)
        return done + 1, after

    return lax.while_loop(unfinished, body, (jnp.int32(0), state))[1]


def finish(active: Bool[Array, " B"], state: State) -> Decoded:
    """Returns what was decoded; sequences that were not active get streams of -1."""
    decoded = state.decoded
    return decoded.replace(tokens=jnp.where(active[:, None], decoded.tokens, jnp.int32(-1)))


def _round(program: Program, stream: Stream, inputs: Inputs, state: State) -> State:
    target, drafting, sampling, decoded = program.target, program.drafting, inputs.sampling, state.decoded
    running = state.length < target.num_tokens
    pending = stream.pending(decoded, state.length, state.pending)

    with jax.named_scope("draft"):
        if state.noise is None:
            draws = program.coupling.draws(
                inputs.keys, state.length, decoded.rounds, drafting.max_depth + 1, target.vocab_size, sampling
            )
        else:
            draws = noise_at(state.noise, state.length, drafting.max_depth + 1)
        draft, drafting_state = contracts.run_propose(
            drafting, inputs.drafting_params, state.drafting, pending, draws, sampling
        )
        draft = stream.forced_draft(draft, state.length)

    with jax.named_scope("score"):
        tokens, depth, ancestors = stream.block(pending, draft)
        logits, features, block = contracts.run_score(
            target, inputs.target_params, state.cache, tokens, depth, ancestors
        )
        logits = stream.forced_logits(logits[:, stream.longest - 1 :], state.length, draft.topology.depth)
        log_probs = process_logits(logits, sampling)

    with jax.named_scope("verify"):
        # The last code stands in for tokens outside the codes, and the bonus token must fit the stream.
        codes = draft.replace(tokens=jnp.minimum(draft.tokens, jnp.int32(target.vocab_size - 1)))
        room = jnp.maximum(target.num_tokens - state.length - 1, 0)
        verdict = program.coupling.verify(codes, log_probs, draws, inputs.rule, inputs.codebook, room)
        sound = take_nodes(jnp.isfinite(jnp.max(logits, axis=-1)), verdict.path).all(axis=1) | ~running

    with jax.named_scope("commit"):
        path = stream.block_path(pending, verdict.path)
        if not drafting.max_depth:
            # Always 0, which the compiler must not know: it would write the cache before its last use, and copy it.
            path = path + jnp.minimum(verdict.bonus, 0)[:, None]
        count = jnp.where(running, state.pending + verdict.count, 0)
        cache = contracts.run("target.commit", target.commit, state.cache, block, path, count)
        decoded, added = stream.record(decoded, state.length, running, draft.tokens, verdict)
        outcome = Outcome(
            tokens=jnp.take_along_axis(tokens, path, axis=1),
            features=jnp.take_along_axis(features, path[None, :, :, None], axis=2),
            count=count,
            log_probs=log_probs,
            node_features=features[:, :, stream.longest - 1 :],
            pending=pending,
            draft=draft,
            verdict=verdict,
        )
        drafting_state = contracts.run(
            "drafting.observe", drafting.observe, inputs.drafting_params, drafting_state, outcome
        )
    return State(
        decoded=decoded.replace(finite=decoded.finite & sound),
        length=jnp.where(sound, state.length + added, jnp.int32(target.num_tokens)),
        pending=jnp.where(running, added - verdict.count, state.pending),
        cache=cache,
        drafting=drafting_state,
        noise=state.noise,
    )


_decode_jit = jax.jit(decode, static_argnums=0)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _decode_sharded(program: Program, mesh: Mesh | AbstractMesh, mesh_axis: str, inputs: Inputs) -> Decoded:
    rows = PartitionSpec(mesh_axis)
    return over_mesh(partial(decode, program), mesh, mesh_axis, (input_specs(mesh_axis),), rows)(inputs)
