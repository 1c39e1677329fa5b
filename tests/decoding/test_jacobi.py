"""Windows on the shared noise: plain decoding's tokens in fewer rounds, whatever is guessed."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.jacobi import INITIALS, jacobi, pac, speculative_jacobi
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys

VOCAB, LENGTH = 12, 21
# Rows of five, the last place of each forced; another forced one at the end of the stream.
FORCED = tuple(11 if i % 5 == 4 or i == LENGTH - 1 else -1 for i in range(LENGTH))
BATCH = 8


def window(initial, width=6):
    return jacobi(toys.VOCAB, width, initial, 5 if initial in ("above", "mixed") else None)


WINDOWS = {
    **{initial: window(initial) for initial in INITIALS},
    "narrow": window("left", 1),
    "wider than a row": window("above", 9),
    "bushy": pac(toys.VOCAB, 5, 3, 2, None),
    "forked": jacobi(toys.VOCAB, DraftTree.from_paths([*DraftTree.chain(4).paths, (2,), (2, 0), (0, 0, 1)])),
    "bushy to the end": pac(toys.VOCAB, 2, 2, 2, None, "repeat"),
}


def on_llamagen(drafting, batch, temperature, guided, **more):
    return speculative_decode(
        toys.llamagen(), toys.target_params(), toys.conditioning(batch), toys.sequence_keys(2, batch),
        drafting=drafting, guidance=jnp.full(batch, 2.5) if guided else None,
        sampling=SamplingParams.create(temperature), **more,
    )  # fmt: skip


def on_chain(drafting, batch, temperature, guided, forced=None, **more):
    return speculative_decode(
        toys.markov_target(toys.VOCAB, LENGTH, forced), toys.markov_params(toys.VOCAB), jnp.zeros((batch, 1)),
        toys.sequence_keys(2, batch), drafting=drafting, guidance=jnp.full(batch, 2.0) if guided else None,
        sampling=SamplingParams.create(temperature), **more,
    )  # fmt: skip


@cache
def mesh():
    return jax.make_mesh((8,), ("data",))


@cache
def plain(decode, temperature, guided, forced=None):
    more = {} if forced is None else {"forced": forced}
    return np.asarray(decode(PLAIN, BATCH, temperature, guided, **more).tokens)


# Greedy windows differ from sampled ones in the draws alone: a plain one and a bushy one do.
GREEDY = ("left", "bushy")
# All windows decode a chain with forced tokens below: here a plain one, one that looks a row back, a bushy one and a
# tree that is no window.
WITH_A_MODEL = (("left", 1.0), ("above", 1.0), ("forked", 1.0), ("bushy", 0.0))


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        pytest.param(*case, marks=() if case in WITH_A_MODEL else pytest.mark.exhaustive)
        for case in itertools.product(WINDOWS, [0.0, 1.0])
    ],
)
def test_a_window_is_plain_decoding_in_fewer_rounds(name, temperature):
    expected = plain(on_llamagen, temperature, True)
    decoded = on_llamagen(WINDOWS[name], BATCH, temperature, True)
    np.testing.assert_array_equal(decoded.tokens, expected)
    assert int(decoded.rounds.sum()) < BATCH * (expected.shape[1] - 1)


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("repeat", "above")), "bushy"]
)
def test_a_window_alone_unguided_and_on_eight_devices(name):
    alone = on_llamagen(WINDOWS[name], 1, 0.0, False)
    np.testing.assert_array_equal(alone.tokens, plain(on_llamagen, 0.0, False)[:1])
    options = {"mesh": mesh(), "active": jnp.arange(BATCH) < 5}
    spread = on_llamagen(WINDOWS[name], BATCH, 1.0, False, **options)
    np.testing.assert_array_equal(spread.tokens[:5], plain(on_llamagen, 1.0, False)[:5])


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_among_forced_tokens_is_plain_decoding(name):
    for temperature in (0.0, 1.0) if name in GREEDY else (1.0,):
        expected = plain(on_chain, temperature, True, FORCED)
        decoded = on_chain(WINDOWS[name], BATCH, temperature, True, FORCED)
        np.testing.assert_array_equal(decoded.tokens, expected)


@pytest.mark.parametrize("coupling", ["gumbel", "rejection"])
def test_a_window_goes_on_behind_a_forced_token(coupling):
    """A chain whose tokens count up, whatever a row ends in: a pass commits more than what is left of a row."""
    vocab, length, row, width = 40, 30, 5, 12
    forced = tuple(39 if i % row == row - 1 else -1 for i in range(length))
    steps = jnp.zeros((vocab + 1, vocab)).at[jnp.arange(vocab), (jnp.arange(vocab) + 1) % vocab].set(12.0)
    drafting = jacobi(vocab, width) if coupling == "gumbel" else speculative_jacobi(vocab, width, "shared")
    decoded = speculative_decode(
        toys.markov_target(vocab, length, forced), steps.at[39].set(steps[4]), jnp.zeros((4, 1)),
        toys.sequence_keys(0, 4), drafting=drafting, coupling=coupling, sampling=SamplingParams.create(0.5),
    )  # fmt: skip
    counts = np.arange(width + 1)
    assert (np.asarray(decoded.tokens)[:, 4::5] == 39).all()
    assert (np.asarray(decoded.accepted)[:, row:].sum(axis=1) > 0).all(), "no round passed the end of a row"
    # Forced tokens are not counted: what the rounds sampled, and the first token, are the free positions.
    free = sum(token < 0 for token in forced)
    np.testing.assert_array_equal(np.asarray(decoded.accepted) @ (counts + 1), free - 1)


@pytest.mark.parametrize(
    "redraw",
    ["maximal", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("independent", "shared"))],
)
def test_windows_of_rejection_at_temperature_zero_are_greedy(redraw):
    expected = plain(on_llamagen, 0.0, True)
    for drafting in (speculative_jacobi(toys.VOCAB, 6, redraw), pac(toys.VOCAB, 5, 3, 2, redraw)):
        decoded = on_llamagen(drafting, BATCH, 0.0, True, coupling="rejection")
        np.testing.assert_array_equal(decoded.tokens, expected)
        assert int(decoded.rounds.sum()) < BATCH * (expected.shape[1] - 1)


def test_a_window_and_a_coupling_that_do_not_fit_are_refused():
    with pytest.raises(
        ValueError, match=r"redraw None was given Streams as draws: decode it with .* 'gumbel'"
    ):
        on_chain(WINDOWS["left"], 2, 1.0, False, coupling="rejection")
    with pytest.raises(ValueError, match=r"redraw 'maximal' was given SharedNoise .* 'rejection'"):
        on_chain(speculative_jacobi(toys.VOCAB, 6), 2, 1.0, False)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"window": 0}, "window 0 is not valid: give 1 to 64"),
        ({"initial": "below"}, "unknown initial 'below': choose one of repeat, left, above, mixed, random"),
        ({"initial": "above"}, "row None is not valid: initial 'above' needs the length of a row"),
    ],
)
def test_what_is_not_a_window(arguments, match):
    with pytest.raises(ValueError, match=match):
        jacobi(VOCAB, **arguments)


def test_what_is_not_a_window_of_rejection():
    with pytest.raises(ValueError, match="unknown redraw 'new': choose one of independent, maximal, shared"):
        speculative_jacobi(VOCAB, 4, "new")
    with pytest.raises(ValueError, match="levels 5 is not valid: give 0 to the window, 4"):
        pac(VOCAB, 4, 2, 5)
    with pytest.raises(ValueError, match="13 guesses for a position are more than 12 codes"):
        pac(VOCAB, 4, 13)
    with pytest.raises(ValueError, match="branches 0 is not valid: give 1 to 4096"):
        pac(VOCAB, 4, 0)
    with pytest.raises(ValueError, match="the tree has no path of best guesses as long as any other"):
        jacobi(VOCAB, DraftTree.from_paths([(0,), (1,), (1, 0)]))
