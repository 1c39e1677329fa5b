"""Rows in parallel: the schedule, what each node sees, and plain decoding where nothing is missing."""

from functools import cache
from itertools import starmap

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import Prefix, SamplingParams, Target, gumbel_noise
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.draftings import Rows, eagle
from tests.cases import exhaustive
from tests.refused import refused

from . import toy_models as toys

VOCAB, GRID, BATCH = 9, 5, 8
WIDTH = {"llamagen": 5, "lumina": 4}


@flax.struct.dataclass
class Seen:
    """The cache of ``summing_target``: what was committed, place by place."""

    tokens: jax.Array
    positions: jax.Array
    length: jax.Array


@cache
def summing_target(forced: tuple[int, ...] | None = None) -> Target:
    """Makes a target whose logits are a sum over all (token, position) that a node sees: a wrong or stale one shows."""
    total = len(forced) if forced else GRID * GRID

    def prefill(params, conditioning, guidance, slots):
        batch, zeros = conditioning.shape[0], jnp.zeros((conditioning.shape[0], slots), jnp.int32)
        one = jnp.zeros((1, batch, 1), jnp.int32)
        prefix = Prefix(jnp.zeros((1, batch, 1, 1)), one, one == 0, one, guidance)
        logits = jnp.broadcast_to(params[0, 0][None], (batch, VOCAB))
        return Seen(zeros, zeros, jnp.zeros(batch, jnp.int32)), logits, prefix

    def score(params, cache, tokens, depth, ancestors, visible=None):
        positions = jnp.broadcast_to(jnp.asarray(depth), tokens.shape) + cache.length[:, None]
        there = jnp.arange(cache.tokens.shape[1], dtype=jnp.int32)[None] < cache.length[:, None]
        visible = there[:, None] if visible is None else visible & there[:, None]
        ancestors = jnp.asarray(ancestors)
        ancestors = ancestors[None] if ancestors.ndim == 2 else ancestors
        past = jnp.where(visible[..., None], params[cache.tokens, cache.positions][:, None], 0.0).sum(2)
        new = jnp.where(ancestors[..., None], params[tokens, positions % total][:, None], 0.0).sum(2)
        block = (tokens, positions)
        return jnp.broadcast_to(past + new, (*tokens.shape, VOCAB)), jnp.zeros((1, *tokens.shape, 1)), block

    def commit(cache, block, path, count):
        batch = jnp.arange(path.shape[0], dtype=jnp.int32)[:, None]
        where = cache.length[:, None] + jnp.arange(path.shape[1], dtype=jnp.int32)[None]
        tokens, positions = (jnp.take_along_axis(part, path, axis=1) for part in block)
        return Seen(
            cache.tokens.at[batch, where].set(tokens), cache.positions.at[batch, where].set(positions),
            cache.length + count,
        )  # fmt: skip

    return Target(prefill, score, commit, VOCAB, total, forced)


LUMINA = ((-1,) * GRID + (VOCAB,)) * GRID + (VOCAB + 1,)
FORCED = {"codes": None, "row ends": LUMINA}


@cache
def summing_params():
    return 1.5 * np.random.default_rng(0).standard_normal((VOCAB + 2, len(LUMINA), VOCAB)).astype(np.float32)


def slow(forced, window, noise):
    """Decodes one sequence by the rule itself: pointers, a table of what each position was fed, and no schedule."""
    params, total = summing_params(), len(forced or range(GRID * GRID))
    stride = GRID + (forced is not None)
    fixed = np.full(total, -1) if forced is None else np.array(forced)
    tokens = fixed.copy()
    tokens[0] = int(np.argmax(toys.log_softmax(params[0, 0]) + noise[0]))
    done, fed, passes, made = np.zeros(GRID, int), {}, 0, {0: 0}
    done[0] = 1
    just_finished = None
    while done[-1] < GRID:
        passes += 1
        active = [
            i for i in range(GRID)
            if done[i] < GRID and (i == 0 or done[i - 1] >= min(done[i] + window, GRID))
        ]  # fmt: skip
        ends = [i for i in range(GRID - 1) if done[i] == GRID and just_finished == i]
        for row in ends:
            for position in range(row * stride + GRID - 1, (row + 1) * stride):
                fed[position] = tokens[position]
        for row in active:
            position = row * stride + done[row] - 1
            if done[row] or fixed[position] >= 0 or done[row - 1] == GRID:
                fed[position] = tokens[position]
            else:
                whole = [i for i in range(row) if done[i] == GRID]
                newest = (row - 1) * stride + done[row - 1] - 1
                fed[position] = tokens[whole[-1] * stride + GRID - 1] if whole else tokens[newest]
        new = {}
        for row in active:
            position = row * stride + done[row]
            logits = sum(params[token, at] for at, token in fed.items() if at < position)
            new[position] = int(np.argmax(toys.log_softmax(logits) + noise[position]))
        just_finished = None
        for row in active:
            done[row] += 1
            if done[row] == GRID:
                just_finished = row
        for position, token in new.items():
            tokens[position], made[position] = token, passes
    for position in np.flatnonzero(fixed >= 0):
        made[position] = made[position - 1]
    return tokens, passes, [made[i] for i in range(total)]


LAYOUTS = [
    ("codes", 3), ("row ends", 2),
    *starmap(exhaustive, (("codes", 1), ("row ends", 5))),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "window"), LAYOUTS)
def test_each_pass_follows_the_rule(layout, window):
    forced = FORCED[layout]
    target, keys = summing_target(forced), toys.sequence_keys(3, BATCH)
    given = target, jnp.asarray(summing_params()), jnp.zeros((BATCH, 1)), keys
    decoded = autoregressive_decode(*given, rows=Rows(GRID, window))
    positions = jnp.broadcast_to(jnp.arange(target.num_tokens, dtype=jnp.int32), (BATCH, target.num_tokens))
    noise = np.asarray(gumbel_noise(keys, positions, VOCAB))
    for row in range(BATCH):
        tokens, passes, made = slow(forced, window, noise[row])
        np.testing.assert_array_equal(decoded.tokens[row], tokens)
        np.testing.assert_array_equal(decoded.round_of_token[row], made)
        assert int(decoded.rounds[row]) == passes == GRID + (GRID - 1) * window - 1
        assert int(decoded.accepted[row, 0]) == passes


@pytest.mark.parametrize(("layout", "window"), [exhaustive("codes", 3), *LAYOUTS[1:]])
def test_guesses_save_passes_and_change_no_token(layout, window):
    """With a target that depends less on its context, a code taken before its context was right would show."""
    target, params = summing_target(FORCED[layout]), 0.3 * jnp.asarray(summing_params())
    given = target, params.at[..., 0].add(2.0), jnp.zeros((BATCH, 1)), toys.sequence_keys(3, BATCH)
    plain = autoregressive_decode(*given, rows=Rows(GRID, window))
    guessed = autoregressive_decode(*given, rows=Rows(GRID, window, 4))
    np.testing.assert_array_equal(guessed.tokens, plain.tokens)
    assert (guessed.rounds <= plain.rounds).all() and guessed.rounds.sum() < plain.rounds.sum()
    np.testing.assert_array_equal(guessed.round_of_token.max(axis=1), guessed.rounds)


@cache
def decode(model, window, temperature=1.0, guided=True, guesses=0):
    target, params, conditioning = toys.stream(model, BATCH)
    active = jnp.arange(BATCH) != 2
    decoded = autoregressive_decode(
        target, params, conditioning, toys.sequence_keys(1, BATCH), active=active,
        guidance=jnp.full(BATCH, 2.0) if guided else None, sampling=SamplingParams.create(temperature, top_p=0.95),
        rows=None if window is None else Rows(WIDTH[model], window, guesses),
    )  # fmt: skip
    return jax.tree.map(np.asarray, decoded)


@pytest.mark.parametrize(("model", "temperature"), [("llamagen", 0.0), exhaustive("lumina", 1.0)])
def test_a_window_of_a_whole_row_is_plain_decoding(model, temperature):
    plain, whole = (decode(model, window, temperature, model == "lumina") for window in (None, 50))
    jax.tree.map(np.testing.assert_array_equal, whole, plain)
    assert len(np.unique(plain.tokens, axis=0)) >= 3


@pytest.mark.slow
def test_a_picture_of_one_code():
    given = summing_target((-1,)), summing_params(), jnp.zeros((2, 1)), toys.sequence_keys(0, 2)
    made = autoregressive_decode(*given, rows=Rows(1, guesses=2))
    np.testing.assert_array_equal(made.tokens, autoregressive_decode(*given).tokens)


def test_a_smaller_window_saves_passes_and_loses_exactness():
    plain, fast, width = (
        decode("llamagen", None, 0.0, False),
        decode("llamagen", 2, 0.0, False),
        WIDTH["llamagen"],
    )
    active = plain.rounds > 0
    assert (fast.rounds[active] == width + (width - 1) * 2 - 1).all() and fast.rounds[2] == 0
    assert (fast.tokens[2] == -1).all() and fast.finite.all()
    # The first row misses nothing; later ones differ somewhere.
    np.testing.assert_array_equal(fast.tokens[:, :width], plain.tokens[:, :width])
    assert (fast.tokens != plain.tokens).any()


def test_bad_arguments():
    with refused("guesses -1 is not valid"):
        Rows(4, 2, -1)
    arguments = (*toys.stream("llamagen", BATCH), toys.sequence_keys(0, BATCH))
    with refused("25 free tokens is not made of unbroken rows of 6"):
        autoregressive_decode(*arguments, rows=Rows(6))
    drafter, params = toys.random_drafter()
    with refused("leave nothing to draft"):
        speculative_decode(*arguments, rows=Rows(5), drafting=eagle(drafter, "chain"), drafting_params=params)
    chain = toys.markov_target(4, 4), toys.markov_params(4), jnp.zeros((2, 1)), toys.sequence_keys(0, 2)
    with refused(r"target\.score fails on what it was given"):
        autoregressive_decode(*chain, rows=Rows(2, 1))
