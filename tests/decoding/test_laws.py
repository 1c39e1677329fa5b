"""Every exact way of decoding against the enumerated law of a chain, and nearly right ones, which are caught.

    pytest tests/decoding/test_laws.py -m exhaustive -s

prints a p-value per way of decoding, with enough samples to see faults that the 20,000 of quick tests do not show. The
nearly right ways are those of published code, which keeps the old q with a kept guess, draws siblings from the
residual, and takes the longest of several rows that are tested independently.
"""

import dataclasses
from functools import cache
from itertools import starmap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import DraftTree, SamplingParams, speculative_decode
from lantern_jax.decoding import rejection
from lantern_jax.decoding.drafting import window as windows
from lantern_jax.decoding.drafting.jacobi import drafting_of
from lantern_jax.decoding.sampling import top_children
from lantern_jax.draftings import Window
from tests.cases import exhaustive, slow
from tests.refused import refused

from . import toy_models as toys
from .enumerated_chain import LENGTH, SAMPLES, VOCAB, Law, agreement, sampled
from .ways import BLOCK, REJECTION, WAYS, Way, window

MANY, AT_ONCE = 327_680, 32_768
ONE, TWO, END = (-1, -1, 2, -1, -1), (-1, 1, 0, -1, -1), (-1, -1, -1, -1, 1)
SHARP = {"seed": 1, "sharpness": 2.0}
LAWS = {
    "one chain": Law(0, 1.5),
    "another": Law(1, 1.5),
    "forced": Law(1, 1.5, TWO),
    "filtered": Law(0, 1.5, sampling={"temperature": 0.9, "top_k": 2, "top_p": 0.9}),
    # The laws of quick tests.
    "free": Law(),
    "sharp": Law(**SHARP),
    "one": Law(forced=ONE),
    "two": Law(forced=TWO),
    "end": Law(forced=END),
    "sharp two": Law(**SHARP, forced=TWO),
    "sharp end": Law(**SHARP, forced=END),
    # A row end that a window of 3 may stop before, with room for its next guesses to be kept.
    "sharp row end": Law(**SHARP, forced=(-1, -1, -1, -1, VOCAB, -1, -1, -1)),
    "top_k": Law(sampling={"top_k": 2}),
    "all": Law(sampling={"temperature": 0.8, "top_k": 2, "top_p": 0.8}),
    "min_p": Law(sampling={"temperature": 1.5, "top_p": 0.95, "min_p": 0.2}),
    "sharp all": Law(**SHARP, sampling={"temperature": 0.8, "top_k": 2, "top_p": 0.9}),
}
# On the shared noise the tokens are plain decoding's for any draft (test_equality.py): a few cases suffice.
QUICK = [
    ("eagle chain", "free"), ("eagle", "free"), ("eagle, bad", "free"), ("ar", "free"), ("eagle", "all"),
    ("block, traced", "free"),
    ("sjd", "sharp"), ("scd", "sharp"), ("shared", "sharp"), ("pac", "sharp"), ("scd", "sharp row end"),
]  # fmt: skip
# Other drafters, and filters that differ in what they leave.
SLOW = [
    ("eagle, echo", "two"), ("medusa", "free"), ("parallelspec", "free"), ("ddd", "free"),
    ("eagle", "min_p"), ("block, traced", "min_p"), ("shared", "min_p"),
]  # fmt: skip
# Similar ways, and the same ways under another law.
OTHERS = [
    ("eagle chain", "one"), ("bushy", "one"), ("bushy", "top_k"), ("shared", "sharp end"), ("pac", "sharp all"),
    ("bushy", "free"), ("eagle, traced", "two"), ("eagle chain", "end"),
    ("own, rejection", "free"), ("shared, random", "sharp"), ("pac, all codes", "sharp"), ("pac", "sharp two"),
    ("pac", "sharp end"),
]  # fmt: skip


@cache
def quick(name: str, law: str):
    """Decodes in one way; filters leave few sequences, so fewer samples suffice."""
    return sampled(WAYS[name], LAWS[law], *([SAMPLES // 2] * 2 if LAWS[law].sampling else []))


@pytest.mark.parametrize(("name", "law"), [*QUICK, *starmap(slow, SLOW), *starmap(exhaustive, OTHERS)])
def test_tokens_follow_the_law(name, law):
    found, exact = quick(name, law), LAWS[law].exact()
    assert found.substituted == 0
    assert not LAWS[law].sampling or (exact == 0).sum() > 100, "the filters filter nothing"
    assert agreement(found.counts, exact) > 1e-6


@pytest.mark.parametrize("name", [slow("scd"), exhaustive("block")])
def test_given_tokens_are_continued_by_the_law(name):
    law, given = LAWS["sharp"], (2, 0)
    exact = law.exact().reshape((VOCAB,) * LENGTH)
    after = np.zeros_like(exact)
    after[given] = exact[given] / exact[given].sum()
    assert agreement(sampled(WAYS[name], law, given=given).counts, after.ravel()) > 1e-6


def test_another_law_would_be_detected():
    """That of the chain with a filter, and that at another temperature."""
    counts = quick("eagle", "free").counts
    assert agreement(counts, LAWS["top_k"].exact()) < 1e-12
    assert agreement(counts, Law(sampling={"temperature": 1.3}).exact()) < 1e-12


def test_some_ways_take_fewer_rounds():
    """Coupled guesses stay more often than independent ones, and siblings save more rounds.

    Block verification takes fewer than single tests.
    """
    rounds = {name: quick(name, "sharp").rounds for name in ("sjd", "scd", "shared", "pac")}
    assert rounds["scd"] < rounds["sjd"] and rounds["shared"] < rounds["sjd"]
    assert rounds["pac"] < rounds["scd"]
    assert quick("block, traced", "free").rounds < quick("eagle chain", "free").rounds


SEEN = ("ar", "bushy", "led", "echo gap", "jacobi left", *REJECTION, *BLOCK)


@pytest.mark.exhaustive
@pytest.mark.parametrize("law", [*[*LAWS][:4], "min_p"])
@pytest.mark.parametrize("name", SEEN)
def test_tokens_follow_the_law_over_many_samples(name, law):
    p = agreement(sampled(WAYS[name], LAWS[law], MANY, AT_ONCE).counts, LAWS[law].exact())
    print(f"\n{name}, {law}: p = {p:.3g}")
    assert p > 1e-7


def changed(settings: Window, change):
    """Makes a window whose drafts are ``change(draft, old, log_p, draws)``."""
    drafting = drafting_of(settings)

    def propose(params, state, pending, draws, sampling):
        draft, after = drafting.propose(params, state, pending, draws, sampling)
        log_p = windows.coming(settings, state, pending.position)
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
    "stale q": (DraftTree.chain(3), with_stale_q),
    "siblings from the residual": (DraftTree.window(3, 2, 1), with_siblings_from_the_residual),
    "the longest of rows": (DraftTree.window(3, 2, 2), None),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name == "stale q" else exhaustive(name) for name in WRONG],
)
def test_a_window_that_is_nearly_right_is_caught(name, monkeypatch):
    tree, change = WRONG[name]
    # A record of its own: the one in the table may be compiled already.
    settings, law = Window(VOCAB, tree, "maximal"), LAWS["sharp"]
    if change is None:
        monkeypatch.setattr(rejection, "first_of_siblings", lambda topology, accepted: accepted)
    drafting = changed(settings, change) if change else drafting_of(settings)
    found = sampled(Way("rejection"), law, 2 * SAMPLES, 2 * SAMPLES, drafting)
    assert agreement(found.counts, law.exact()) < 1e-9


@pytest.mark.parametrize("redraw", ["maximal", "shared"])
def test_block_refuses_windows_that_keep_guesses_it_has_looked_at(redraw):
    def decode(temperature):
        return speculative_decode(
            toys.markov_target(VOCAB, LENGTH), toys.markov_params(VOCAB), jnp.zeros((2, 1)), toys.sequence_keys(0, 2),
            drafting=window(3, redraw)(VOCAB), coupling="block", sampling=SamplingParams.create(temperature),
        )  # fmt: skip

    with refused(f"redraw '{redraw}' keeps: give redraw 'independent'"):
        decode(1.0)
    assert np.asarray(decode(0.0).finite).all()
