"""Windows: beyond forced tokens, under rejection at temperature 0, and what is refused (tokens: test_equality.py)."""

import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.jacobi import jacobi, pac, speculative_jacobi
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys

VOCAB = 12


@pytest.mark.parametrize("coupling", ["gumbel", "rejection"])
def test_a_window_goes_on_behind_a_forced_token(coupling):
    """Tokens of this chain count up over row ends, so that a pass commits more than the rest of a row."""
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
    plain = toys.decode(temperature=0.0)
    for drafting in (speculative_jacobi(toys.VOCAB, 6, redraw), pac(toys.VOCAB, 5, 3, 2, redraw)):
        decoded = toys.decode(drafting, 0.0, coupling="rejection")
        np.testing.assert_array_equal(decoded.tokens, plain.tokens)
        assert decoded.rounds.sum() < plain.rounds.sum()


def test_a_window_and_a_coupling_that_do_not_fit_are_refused():
    with pytest.raises(
        ValueError, match=r"redraw None was given Streams as draws: decode it with .* 'gumbel'"
    ):
        toys.decode(jacobi(toys.VOCAB, 6), name="chain", coupling="rejection")
    with pytest.raises(ValueError, match=r"redraw 'maximal' was given SharedNoise .* 'rejection'"):
        toys.decode(speculative_jacobi(toys.VOCAB, 6), name="chain")


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
