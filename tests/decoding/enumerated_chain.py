"""The law of a small Markov chain, sequence by sequence, and tests of whether samples follow it."""

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import chdtrc

from lantern_jax import SamplingParams, speculative_decode
from lantern_jax.decoding.completion import Completion
from lantern_jax.decoding.drafting.plain import PLAIN

from . import toy_models as toys
from .ways import Way

VOCAB, LENGTH, SAMPLES = 3, 5, 20_000
FREE = (-1,) * LENGTH


class Law(NamedTuple):
    """The law that decoding must follow.

    Attributes:
        seed, sharpness: of the chain's parameters; the sharper, the more its tokens depend on earlier ones.
        forced: the forced id at each place, -1 where free; an id that is not a code counts as the last code.
        sampling: arguments of ``SamplingParams``.
    """

    seed: int = 0
    sharpness: float = 1.0
    forced: tuple[int, ...] = FREE
    sampling: Mapping = MappingProxyType({})

    @property
    def params(self):
        """Logits [VOCAB + 1, VOCAB], the last row for the first token."""
        return toys.markov_params(VOCAB, self.seed) * jnp.float32(self.sharpness)

    @property
    def target(self):
        return toys.markov_target(VOCAB, len(self.forced), None if self.forced == FREE else self.forced)

    def exact(self) -> np.ndarray:
        """Returns the probability of each sequence, float64 [VOCAB ** its length], ordered by its digits."""
        probs = np.exp(filtered(np.asarray(self.params), **self.sampling))

        def probability(sequence):
            result, last = 1.0, VOCAB
            for wanted, token in zip(self.forced, sequence, strict=True):
                if wanted < 0:
                    result *= probs[last, token]
                elif token != min(wanted, VOCAB - 1):
                    return 0.0
                last = token if wanted < 0 else wanted
            return result

        sequences = itertools.product(range(VOCAB), repeat=len(self.forced))
        return np.array([probability(sequence) for sequence in sequences])


def filtered(logits: np.ndarray, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Returns the log-probabilities of sampling from logits [..., V], by sorting every row; float64."""
    rows = []
    for row in np.asarray(logits, np.float64).reshape(-1, logits.shape[-1]) / temperature:
        if 0 < top_k < row.size:
            row = np.where(row >= np.sort(row)[-top_k], row, -np.inf)
        if top_p < 1:
            p = np.exp(row - row.max())
            p /= p.sum()
            row = np.where([p[row > value].sum() < top_p for value in row], row, -np.inf)
        if min_p > 0:
            row = np.where(row >= row.max() + np.log(min_p), row, -np.inf)
        rows.append(row - row.max() - np.log(np.exp(row - row.max()).sum()))
    return np.reshape(rows, logits.shape)


class Sampled(NamedTuple):
    """How often each sequence occurred, in the order of ``Law.exact``, and the totals of its rounds."""

    counts: np.ndarray
    accepted: int
    rounds: int
    substituted: int


def sampled(way: Way, law: Law, samples=SAMPLES, at_once=SAMPLES, drafting=None, given=()) -> Sampled:
    """Decodes the chain ``samples`` times after the tokens ``given``, if any; ``drafting``, which has no parameters,
    may replace the way's own."""
    target, params, labels, length = law.target, law.params, jnp.zeros((at_once, 1)), len(law.forced)
    first = jnp.broadcast_to(jnp.asarray(given, jnp.int32), (at_once, len(given)))
    conditioning = Completion(labels, first) if given else labels
    drafter, drafting_params = toys.noisy_drafter(target), None
    if way.kind is not None:
        target, drafter, drafting_params = toys.on_chain(way.kind, target)
    elif way.reads_noise:
        drafting_params = toys.noisy_params(params, labels, way.noises[0])
    drafting = way.drafting(drafter, VOCAB) if drafting is None else drafting
    found, key = Sampled(0, 0, 0, 0), jax.random.key(11)
    for start in range(0, samples, at_once):
        numbers = jnp.arange(start, start + at_once, dtype=jnp.int32)
        decoded = speculative_decode(
            target, params, conditioning, jax.vmap(lambda i: jax.random.fold_in(key, i))(numbers), drafting=drafting,
            drafting_params=drafting_params, coupling=way.coupling, sampling=SamplingParams.create(**law.sampling),
        )  # fmt: skip
        ids = np.minimum(decoded.tokens, VOCAB - 1) @ (VOCAB ** np.arange(length)[::-1])
        new = decoded.accepted[:, 1:].sum(), decoded.rounds.sum(), decoded.substituted.sum()
        new = (np.bincount(ids, minlength=VOCAB**length), *map(int, new))
        found = Sampled(*(old + one for old, one in zip(found, new, strict=True)))
    assert found.counts.sum() == samples and (found.accepted > samples // 50 or drafting is PLAIN)
    return found


def agreement(observed: np.ndarray, expected: np.ndarray) -> float:
    """Returns the p-value of a chi-square test of counts; 0 if a sequence occurred that cannot."""
    if len(observed) > len(expected) or observed[expected == 0].any():
        return 0.0
    expected = expected * observed.sum()
    rare = expected < 5
    if rare.any() and expected[rare].sum() > 0:
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    else:
        observed, expected = observed[~rare], expected[~rare]
    return float(chdtrc(len(observed) - 1, np.sum((observed - expected) ** 2 / expected)))
