"""Windows under rejection follow the exact law of an enumerable chain, and nearly right ones are found out.

What is nearly right is what published code does: it keeps the old q with a kept guess, draws siblings from the
residual, and takes the longest of several rows that are tested independently.
"""

import dataclasses
import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding import rejection
from lantern_jax.decoding.drafting import jacobi as windows
from lantern_jax.decoding.drafting.jacobi import Window, pac, speculative_jacobi
from lantern_jax.decoding.sampling import top_children
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys
from .enumerated_chain import SAMPLES, VOCAB, agreement, assert_exact, decode, exact_distribution

WINDOWS = {
    "independent": speculative_jacobi(VOCAB, 3, "independent"),
    "maximal": speculative_jacobi(VOCAB, 3, "maximal"),
    "shared": speculative_jacobi(VOCAB, 3, "shared"),
    "maximal, repeat": speculative_jacobi(VOCAB, 3, "maximal", "repeat"),
    "maximal, above": speculative_jacobi(VOCAB, 2, "maximal", "above", 2),
    "mixed": speculative_jacobi(VOCAB, 2, "shared", "mixed", 2),
    "shared, random": speculative_jacobi(VOCAB, 4, "shared", "random"),
    "pac": pac(VOCAB, 3, 2, 2),
    "pac, all codes": pac(VOCAB, 4, 3, 1, "maximal", "repeat"),
    "pac, independent": pac(VOCAB, 3, 2, 2, "independent"),
    "pac, shared": pac(VOCAB, 2, 2, 2, "shared"),
}
MAIN = ("independent", "maximal", "shared", "shared, random", "pac", "pac, all codes")
FORCED = {
    "one": (-1, -1, 2, -1, -1),
    "two": (-1, 1, 0, -1, -1),
    "end": (-1, -1, -1, -1, 1),
}


@cache
def chain_params():
    """Makes a chain whose tokens depend so much on earlier ones that nearly right is far off."""
    return toys.markov_params(VOCAB, seed=1) * jnp.float32(2)


@cache
def free(drafting):
    """Decodes the chain without forced tokens, and checks its law."""
    return assert_exact(drafting, params=chain_params())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in MAIN else pytest.mark.exhaustive) for name in WINDOWS]
)
def test_a_window_follows_the_exact_distribution(name):
    free(WINDOWS[name])


AMONG_FORCED = (("shared", "end"), ("pac", "two"))


@pytest.mark.parametrize(
    ("name", "forced"),
    [
        pytest.param(*case, marks=() if case in AMONG_FORCED else pytest.mark.exhaustive)
        for case in itertools.product(("maximal", "shared", "pac"), ("one", "two", "end"))
    ],
)
def test_a_window_among_forced_tokens(name, forced):
    assert_exact(WINDOWS[name], params=chain_params(), forced=FORCED[forced])


@pytest.mark.parametrize("name", ["pac", pytest.param("mixed", marks=pytest.mark.exhaustive)])
def test_a_window_of_a_filtered_distribution(name):
    """The filters leave few sequences, so that fewer samples do."""
    sampling = {"temperature": 0.8, "top_k": 2, "top_p": 0.9}
    expected = exact_distribution(chain_params(), **sampling)
    assert (expected == 0).sum() > 200, "the filters filter nothing"
    assert_exact(WINDOWS[name], params=chain_params(), samples=SAMPLES // 2, **sampling)


def test_a_coupled_guess_stays_more_often_than_an_independent_one():
    """Maximal and shared draws take fewer rounds for the same tokens, and siblings save more."""
    rounds = {
        name: int(free(WINDOWS[name]).rounds.sum()) for name in ("independent", "maximal", "shared", "pac")
    }
    assert rounds["maximal"] < rounds["independent"] and rounds["shared"] < rounds["independent"]
    assert rounds["pac"] < rounds["maximal"]


def changed(settings: Window, change):
    """Makes a window whose drafts are ``change(draft, old, log_p, draws)``."""
    drafting = windows.drafting_of(settings)

    def propose(params, state, pending, draws, sampling):
        draft, after = drafting.propose(params, state, pending, draws, sampling)
        log_p, _ = windows.coming(settings, state, pending.position)
        old = windows.old_guesses(settings, state, pending.position)
        return change(draft, old, log_p, draws), after

    return dataclasses.replace(drafting, propose=propose)


def with_stale_q(draft, old, log_p, draws):
    """Keeps the q that a kept guess was first drawn from, as in SCD's released code for Lumina and Janus."""
    kept = old.there & (draft.tokens[:, 1:] == old.tokens)
    return draft.replace(log_q=jnp.where(kept[..., None], old.log_q, draft.log_q))


def with_siblings_from_the_residual(draft, old, log_p, draws):
    """Draws the first position's second guess from normalize(max(p - q, 0)), as in SJD-PAC's released code."""
    residual = jnp.maximum(jnp.exp(log_p) - jnp.exp(old.log_q), 0)[:, :1]
    left = residual.sum(axis=-1, keepdims=True) > 1e-6
    values = draws.perturb(jnp.where(left, jnp.log(residual), log_p[:, :1]), 0, np.array([50]))
    values = jnp.where(jax.nn.one_hot(draft.tokens[:, 1:2], VOCAB, dtype=bool), -jnp.inf, values)
    return draft.replace(tokens=draft.tokens.at[:, 2].set(top_children(values, 1)[1][:, 0, 0]))


WRONG = {
    "stale q": (Window(VOCAB, DraftTree.chain(3), "maximal"), with_stale_q),
    "siblings from the residual": (
        Window(VOCAB, DraftTree.window(3, 2, 1), "maximal"),
        with_siblings_from_the_residual,
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "stale q" else pytest.mark.exhaustive) for name in WRONG],
)
def test_a_window_that_is_nearly_right_is_found_out(name):
    decoded = decode(changed(*WRONG[name]), params=chain_params(), samples=2 * SAMPLES)
    assert agreement(decoded.tokens, exact_distribution(chain_params())) < 1e-9


def test_the_longest_of_rows_tested_independently_is_found_out(monkeypatch):
    monkeypatch.setattr(rejection, "first_of_siblings", lambda topology, accepted: accepted)
    # A record of its own: that of the table may be compiled already.
    drafting = windows.drafting_of(Window(VOCAB, DraftTree.window(3, 2, 2), "maximal"))
    decoded = decode(drafting, params=chain_params(), samples=2 * SAMPLES)
    assert agreement(decoded.tokens, exact_distribution(chain_params())) < 1e-9
