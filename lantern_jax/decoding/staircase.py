"""A round of rows in parallel: some places of each row in progress, guessed where their codes are not known.

A place is right once all places that the staircase puts before it are right (``zipar.Schedule``): then its logits, and
the code it makes, are those of decoding without guesses. Guesses are made as in a window (``drafting.jacobi``): they
are what the last pass made at a place with that place's noise or, where no pass has been, what the newest distribution
of the row, or of the row above, gives with that noise. Each row advances at its own pace, as far as the row above
allows.

Axes: B batch, A rows in progress, K places of a row, N = A K places of a pass, H rows, T stream tokens, S cache slots,
V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding import contracts
from lantern_jax.decoding.protocols import Target
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.sampling import gumbel_argmax, gumbel_noise, process_logits
from lantern_jax.decoding.stream import Stream, take
from lantern_jax.decoding.zipar import Rows, Schedule
from lantern_jax.devices.partition import split


class Staircase(Record):
    """How far the rows of each sequence have got.

    Attributes:
        done: int32 [B, H], how many places of a row are in the cache.
        known: bool [B, T], which free positions have their token.
        placed: int32 [B, S], the place in each slot of the cache; M where none is.
        guesses: int32 [B, T], the newest guess of a position; -1 where there is none. None without guesses.
        log_p: float32 [B, A, V], the newest distribution of row r at index r modulo A; None without guesses.
    """

    done: Int[Array, "B H"]
    known: Bool[Array, "B T"]
    placed: Int[Array, "B S"]
    guesses: Int[Array, "B T"] | None
    log_p: Float[Array, "B A V"] | None


def begin(rows: Rows, target: Target, batch: int, slots: int) -> Staircase:
    """Makes the state after prefill, which makes the first code."""
    schedule = rows.schedule(target)
    known = jnp.zeros((batch, target.num_tokens), bool).at[:, 0].set(True)
    log_p = split(jnp.zeros((batch, schedule.active, target.vocab_size), jnp.float32), -1)
    return Staircase(
        done=jnp.zeros((batch, len(schedule.lengths)), jnp.int32),
        known=known,
        placed=jnp.full((batch, slots), schedule.none, jnp.int32),
        guesses=jnp.full(known.shape, -1, jnp.int32) if rows.guesses else None,
        log_p=log_p if rows.guesses else None,
    )


def decode_pass(program, stream: Stream, inputs, state):
    """Runs one pass over every sequence: a round of ``loop.advance``, whose arguments it takes."""
    target, rows, sampling, stairs = program.target, program.rows, inputs.sampling, state.drafting
    schedule, total, width = rows.schedule(target), stream.length, rows.places(target)
    running = state.length < total
    # A forced token counts as decoded when the free one before it is.
    free_before = np.maximum.accumulate(np.where(stream.forced < 0, np.arange(total), 0)).astype(np.int32)

    row, place = _places(schedule, width, stairs.done)
    source, made = jnp.asarray(schedule.source)[place], jnp.asarray(schedule.made)[place]
    makes = made < total
    with jax.named_scope("draft"):
        noise = None
        if not sampling.greedy:
            noise = gumbel_noise(inputs.keys, jnp.minimum(made, total - 1), target.vocab_size)
        known = take(stairs.known | (stream.forced >= 0)[None], source)
        tokens = take(state.decoded.tokens, source)
        if rows.guesses:
            guesses = _guesses(schedule, stairs, row, made, noise)
            tokens = jnp.where(known, tokens, take(guesses, source))
        unsure = jnp.cumsum(~known.reshape(*row.shape, width), axis=2, dtype=jnp.int32).reshape(place.shape)
        there = (place < schedule.none) & (unsure <= rows.guesses) & running[:, None]

    with jax.named_scope("score"):
        itself = np.eye(place.shape[1], dtype=bool)[None]
        beside = _before(schedule, place, place) & there[:, None, :] & ~itself
        past = _before(schedule, place, stairs.placed)
        filled = jnp.sum(stairs.done, axis=1)[:, None]
        logits, _, block = contracts.run_score(
            target, inputs.target_params, state.cache, jnp.where(there, tokens, 0),
            jnp.where(there, jnp.asarray(schedule.position)[place] - filled, 0),
            (beside & _stays(schedule, place, place)) | itself, past & _stays(schedule, place, stairs.placed),
        )  # fmt: skip
        log_probs = process_logits(logits, sampling)
        drawn = gumbel_argmax(log_probs, noise)

    with jax.named_scope("verify"):
        complete = jnp.sum(past, axis=2) + jnp.sum(beside, axis=2) == jnp.asarray(schedule.above)[place]
        same = (made[:, None, :] == source[:, :, None]) & (drawn[:, None, :] == tokens[:, :, None])
        right = known | jnp.any(same & there[:, None, :], axis=2)
        stands = there & complete & right & jnp.all(~beside | right[:, None, :], axis=2)
        fresh = stands & makes
        sound = jnp.all(jnp.isfinite(jnp.max(logits, axis=-1)) | ~fresh, axis=1)

    with jax.named_scope("commit"):
        count = jnp.sum(stands, axis=1, dtype=jnp.int32)
        slot = jnp.arange(place.shape[1], dtype=jnp.int32)[None]
        path = _put(jnp.zeros_like(place), jnp.cumsum(stands, axis=1, dtype=jnp.int32) - 1, stands, slot)
        cache = contracts.run("target.commit", target.commit, state.cache, block, path, count)
        placed = jnp.where(slot < count[:, None], take(place, path), jnp.int32(schedule.none))
        batch = jnp.arange(len(running), dtype=jnp.int32)[:, None]
        steps = jnp.sum(stands.reshape(*row.shape, width), axis=2, dtype=jnp.int32)
        stairs = stairs.replace(
            done=stairs.done.at[batch, row].add(steps, mode="drop"),
            known=_put(stairs.known, made, fresh, True),
            placed=stairs.placed.at[batch, filled + slot].set(placed, unique_indices=True),
        )
        if rows.guesses:
            stairs = _observed(stairs, row, made, there & makes, drawn, log_probs)
        rounds = state.decoded.rounds + running.astype(jnp.int32)
        now, before = (known[:, free_before] for known in (stairs.known, state.drafting.known))
        decoded = state.decoded.replace(
            tokens=_put(state.decoded.tokens, made, fresh, drawn),
            rounds=rounds,
            accepted=state.decoded.accepted.at[:, 0].add(running.astype(jnp.int32)),
            round_of_token=jnp.where(now & ~before, rounds[:, None], state.decoded.round_of_token),
            finite=state.decoded.finite & sound,
        )
    length = jnp.where(sound, jnp.sum(now, axis=1, dtype=jnp.int32), jnp.int32(total))
    return state.replace(
        decoded=decoded, length=jnp.where(running, length, state.length), cache=cache, drafting=stairs
    )


def _places(
    schedule: Schedule, width: int, done: Int[Array, "B H"]
) -> tuple[Int[Array, "B A"], Int[Array, "B N"]]:
    """Returns the rows [B, A] in progress, numbered H or more past the last, and their next places [B, N]."""
    unfinished = done < jnp.asarray(schedule.lengths)[None]
    first = jnp.argmax(unfinished, axis=1).astype(jnp.int32)
    row = first[:, None] + jnp.arange(schedule.active, dtype=jnp.int32)[None]
    chain = np.pad(schedule.chain, ((0, schedule.active), (0, width)), constant_values=schedule.none)
    column = take(done, row)[..., None] + jnp.arange(width, dtype=jnp.int32)[None, None]
    place = jnp.asarray(chain)[row[..., None], jnp.minimum(column, chain.shape[1] - 1)]
    return row, place.reshape(len(done), -1)


def _before(schedule: Schedule, place: Int[Array, "B N"], other: Int[Array, "B M"]) -> Bool[Array, "B N M"]:
    """Tells which others come no later than a place in the stream and in the passes, the place itself included."""
    position, number = (
        jnp.asarray(table)[other][:, None, :] <= jnp.asarray(table)[place][:, :, None]
        for table in (schedule.position, schedule.number)
    )
    return position & number & (other < schedule.none)[:, None, :]


def _stays(schedule: Schedule, place: Int[Array, "B N"], other: Int[Array, "B M"]) -> Bool[Array, "B N M"]:
    """Tells which others have not been replaced yet in the pass of a place."""
    return jnp.asarray(schedule.until)[other][:, None, :] > jnp.asarray(schedule.number)[place][:, :, None]


def _guesses(
    schedule: Schedule, stairs: Staircase, row: Int[Array, "B A"], made: Int[Array, "B N"], noise
) -> Int[Array, "B T"]:
    """Returns the guesses, with new ones where these places make codes that no pass has made yet."""
    above = jnp.maximum(row - 1, 0)
    first = jnp.asarray(schedule.made)[jnp.asarray(schedule.chain[:, 0])]
    seen = take(stairs.guesses, take(first[None], row)) >= 0
    newest = jnp.where(seen, row, above) % schedule.active
    log_p = jnp.take_along_axis(stairs.log_p, newest[..., None], axis=1)
    drawn = gumbel_argmax(jnp.repeat(log_p, made.shape[1] // row.shape[1], axis=1), noise)
    unseen = take(stairs.guesses, made) < 0
    return jnp.maximum(_put(stairs.guesses, made, unseen, drawn), 0)


def _observed(
    stairs: Staircase,
    row: Int[Array, "B A"],
    made: Int[Array, "B N"],
    makes: Bool[Array, "B N"],
    drawn,
    log_probs,
) -> Staircase:
    """Keeps what a pass made: the guesses, and each row's last distribution."""
    width = made.shape[1] // row.shape[1]
    numbered = jnp.where(makes.reshape(*row.shape, width), np.arange(width, dtype=np.int32), -1)
    last = jnp.max(numbered, axis=2)
    at = jnp.arange(row.shape[1], dtype=jnp.int32)[None] * width + jnp.maximum(last, 0)
    newest = jnp.take_along_axis(log_probs, at[..., None], axis=1)
    slot, batch = row % row.shape[1], jnp.arange(len(row), dtype=jnp.int32)[:, None]
    newest = jnp.where((last >= 0)[..., None], newest, stairs.log_p[batch, slot])
    return stairs.replace(
        guesses=_put(stairs.guesses, made, makes, drawn),
        log_p=stairs.log_p.at[batch, slot].set(newest, unique_indices=True),
    )


def _put(values: Array, where: Int[Array, "B N"], which: Bool[Array, "B N"], new) -> Array:
    """Writes ``new`` at the positions that ``which`` selects."""
    batch = jnp.arange(len(where), dtype=jnp.int32)[:, None]
    return values.at[batch, jnp.where(which, where, values.shape[1])].set(new, mode="drop")
