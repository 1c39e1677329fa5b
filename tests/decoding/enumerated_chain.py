"""The law of a small Markov chain, sequence by sequence, and tests of whether samples follow it."""

import itertools

import jax.numpy as jnp
import numpy as np
from scipy import stats

from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.stream import Decoded

from . import toy_models as toys

VOCAB, LENGTH, SAMPLES = 3, 5, 20_000


def exact_distribution(params, forced=(-1,) * LENGTH, temperature=1.0, top_k=VOCAB, top_p=1.0) -> np.ndarray:
    """Returns the probability of each sequence of the chain, float64 [VOCAB ** LENGTH], ordered by its digits.

    Args:
        params: logits [VOCAB + 1, VOCAB], the last row for the first token, as in ``markov_target``.
        forced: the id at each place where one is forced, else -1.
        temperature, top_k, top_p: of the sampling distribution; written out by sorting, ties aside.
    """
    probs = np.stack([filtered(row, temperature, top_k, top_p) for row in np.asarray(params, np.float64)])

    def probability(sequence):
        result, last = 1.0, VOCAB
        for place, token in enumerate(sequence):
            if forced[place] < 0:
                result *= probs[last, token]
            elif token != forced[place]:
                return 0.0
            last = token
        return result

    return np.array([probability(s) for s in itertools.product(range(VOCAB), repeat=LENGTH)])


def filtered(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Temperature, then the best ``top_k``, then the fewest of these whose mass reaches ``top_p``."""
    probs = np.exp(logits / temperature)
    order = np.argsort(-probs)
    probs[order[top_k:]] = 0
    probs /= probs.sum()
    above = np.cumsum(probs[order]) - probs[order]
    probs[order[above >= top_p]] = 0
    return probs / probs.sum()


def agreement(tokens, expected: np.ndarray) -> float:
    """Returns the p-value of a chi-square test of samples [B, LENGTH]; 0 if one of them cannot be."""
    return agreement_of_counts(counts(tokens), expected)


def counts(tokens) -> np.ndarray:
    """Counts how often each sequence is among the samples [B, LENGTH], in the order of ``exact_distribution``."""
    ids = np.asarray(tokens) @ (VOCAB ** np.arange(LENGTH)[::-1])
    return np.bincount(ids, minlength=VOCAB**LENGTH)


def agreement_of_counts(observed: np.ndarray, expected: np.ndarray) -> float:
    """Does as ``agreement`` for samples counted already."""
    if len(observed) > len(expected) or observed[expected == 0].any():
        return 0.0
    expected = expected * observed.sum()
    rare = expected < 5
    if rare.any() and expected[rare].sum() > 0:
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    else:
        observed, expected = observed[~rare], expected[~rare]
    return float(stats.chisquare(observed, expected).pvalue)


def decode(
    drafting, drafting_params=None, coupling="rejection", *, params=None, forced=None, target=None, samples=SAMPLES,
    **sampling,
) -> Decoded:  # fmt: skip
    """Decodes the chain many times; a drafter's ``drafting_params`` may be the noise of a copy of the target."""
    target = toys.markov_target(VOCAB, LENGTH, forced) if target is None else target
    params, conditioning = toys.markov_params(VOCAB) if params is None else params, jnp.zeros((samples, 1))
    if isinstance(drafting_params, float):
        drafting_params = toys.noisy_params(params, conditioning, drafting_params)
    return speculative_decode(
        target, params, conditioning, toys.sequence_keys(5, samples), drafting=drafting,
        drafting_params=drafting_params, coupling=coupling, sampling=SamplingParams.create(**sampling),
    )  # fmt: skip


def assert_exact(drafting, *given, params=None, forced=None, **more) -> Decoded:
    """Decodes, and checks that tokens follow the exact law and that drafts are accepted."""
    decoded = decode(drafting, *given, params=params, forced=forced, **more)
    sampling = {name: more[name] for name in ("temperature", "top_k", "top_p") if name in more}
    params = toys.markov_params(VOCAB) if params is None else params
    expected = exact_distribution(params, (-1,) * LENGTH if forced is None else forced, **sampling)
    assert agreement(decoded.tokens, expected) > 1e-3
    assert int(decoded.accepted[:, 1:].sum()) > 0
    return decoded


def copy_of_target(forced=None):
    """Returns the drafter that is a noisy copy of the chain."""
    return toys.noisy_drafter(toys.markov_target(VOCAB, LENGTH, forced))
