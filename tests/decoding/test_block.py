"""Block verification: a chain's exact law by enumeration, and more tokens accepted than token by token."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import Draft, DraftTree, verify_tree
from lantern_jax.couplings import Block
from lantern_jax.decoding.choices import COUPLINGS
from lantern_jax.decoding.gumbel import SharedNoise
from lantern_jax.decoding.rejection import Rejection, Streams
from tests.refused import refused

from . import toy_models as toys
from .topologies import traced_draft

VOCAB, DEPTH = 3, 2
CHAIN = DraftTree.chain(DEPTH)
STREAMS = Streams(toys.sequence_keys(0, 1), jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))


@cache
def markov(seed, same=False):
    """Returns log p and log q of the token after each token, [VOCAB, VOCAB]; alike after token 0, or everywhere."""
    rng = np.random.default_rng(seed)
    p, q = (toys.log_softmax(1.5 * rng.standard_normal((VOCAB, VOCAB))) for _ in range(2))
    q[0] = p[0]
    p[2, 1] = -np.inf
    p = toys.log_softmax(p)
    return p, p if same else q


def walk_all(seed, max_count, same=False, dynamic=False, first=2):
    """Makes every draft of the chain after token ``first``, its probability and, by plain loops, its a_i and h_i."""
    log_p, log_q = markov(seed, same)
    p, q = np.exp(log_p.astype(np.float64)), np.exp(log_q.astype(np.float64))
    drafts = np.array([(first, *x) for x in itertools.product(range(VOCAB), repeat=DEPTH)], np.int32)
    chances, odds = [], []
    for draft in drafts:
        weight, chance, offered = 1.0, 1.0, []
        for i in range(max_count + 1):
            if i:
                before, x = draft[i - 1], draft[i]
                weight = min(1.0, weight * p[before, x] / q[before, x]) if q[before, x] else 0.0
            surplus = np.maximum(weight * p[draft[i]] - q[draft[i]], 0).sum()
            room = surplus + 1 - weight
            offered.append(weight if i == max_count else surplus / room if room > 1e-7 else 1.0)
        for before, x in itertools.pairwise(draft):
            chance *= q[before, x]
        chances.append(chance)
        odds.append(offered)
    draft = Draft(jnp.asarray(drafts), CHAIN, jnp.asarray(log_q[drafts[:, :-1]]))
    return traced_draft(draft) if dynamic else draft, log_p[drafts], np.array(chances), np.array(odds)


verify = jax.jit(verify_tree, static_argnames="coupling")


@partial(jax.jit, static_argnames="coupling")
def walk(coupling, draft, log_probs, uniforms, max_count):
    return coupling.walk(draft, log_probs, uniforms, max_count)


def law(seed, max_count=DEPTH, **options):
    """Returns the exact law of the next DEPTH + 1 tokens after one round and plain decoding, [VOCAB, ...], and the mean
    number of accepted tokens.

    The thresholds h_i divide the uniform numbers into cells; one point inside each cell is tried.
    """
    draft, log_probs, chances, odds = walk_all(seed, max_count, **options)
    p = np.exp(markov(seed, options.get("same", False))[0].astype(np.float64))
    result, mean = np.zeros((VOCAB,) * (DEPTH + 1)), 0.0
    most = jnp.full(len(chances), max_count, jnp.int32)
    for cell in itertools.product((0, 1), repeat=max_count):
        uniforms = np.full((len(chances), DEPTH + 1), 0.5, np.float32)
        size = np.ones(len(chances))
        for i, upper in enumerate(cell, 1):
            threshold = np.clip(odds[:, i], 0, 1)
            uniforms[:, i] = np.where(upper, (1 + threshold) / 2, threshold / 2)
            size *= 1 - threshold if upper else threshold
        last, bonus = map(np.asarray, walk(Block(), draft, log_probs, jnp.asarray(uniforms), most))
        mean += (chances * size * last).sum()
        for row, tokens in enumerate(np.asarray(draft.tokens)[:, 1:]):
            for x in range(VOCAB):
                known = (*tokens[: last[row]], x)
                put_down(result, known, chances[row] * size[row] * bonus[row, x], p)
    return result, mean


def put_down(result, known, chance, p, first=2):
    """Adds ``chance`` to the sequences that begin with ``known``, which plain decoding continues."""
    for rest in itertools.product(range(VOCAB), repeat=result.ndim - len(known)):
        sequence, weight = (first, *known, *rest), chance
        for i in range(len(known), result.ndim):
            weight *= p[sequence[i], sequence[i + 1]]
        result[sequence[1:]] += weight


def plain_law(seed):
    result = np.zeros((VOCAB,) * (DEPTH + 1))
    put_down(result, (), 1.0, np.exp(markov(seed)[0].astype(np.float64)))
    return result


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "options", [{}, {"max_count": 1}, {"max_count": 0}, {"dynamic": True}, {"same": True}], ids=str
)
def test_the_law_of_a_chain_is_plain_decodings(seed, options):
    result, mean = law(seed, **options)
    np.testing.assert_allclose(result, plain_law(seed), atol=2e-6)
    if options.get("same"):
        assert mean == pytest.approx(DEPTH, abs=1e-3)


def token_by_token(seed, first=2):
    """Returns the mean number of tokens that ``Rejection`` accepts, by enumeration."""
    p, q = (np.exp(x.astype(np.float64)) for x in markov(seed))
    one = np.minimum(p, q)
    return one[first].sum() + (one[first] * one.sum(-1)).sum()


def test_block_accepts_no_fewer_tokens_than_token_by_token_and_sometimes_more():
    gained = np.array([law(seed)[1] - token_by_token(seed) for seed in range(12)])
    assert gained.min() > -1e-6 and np.sum(gained > 1e-2) >= 3


def test_drafts_without_log_q_are_tested_as_point_masses():
    """Without log q every draft is a point mass: it is accepted with probability p and never drawn after a refusal."""
    log_p = np.repeat(markov(1)[0][2][None, None], 4, 0).repeat(2, 1)
    draft = Draft(jnp.asarray([[0, 0]] * 4, jnp.int32), DraftTree.chain(1), None)
    p = float(np.exp(log_p[0, 0, 0]))
    uniforms = jnp.asarray([[0.5, p - 1e-3], [0.5, p + 1e-3], [0.5, 0.0], [0.5, 0.999]], jnp.float32)
    last, bonus = walk(Block(), draft, jnp.asarray(log_p), uniforms, jnp.ones(4, jnp.int32))
    np.testing.assert_array_equal(last, [1, 0, 1, 0])
    assert float(bonus[1, 0]) == 0


@pytest.mark.parametrize("where", ["log_q", "log_p"])
def test_nan_passes_no_test(where):
    """Everything that depends on a NaN row of q or p is refused, for any random numbers."""
    log_p, log_q = (np.full((1, rows, VOCAB), np.log(1 / VOCAB), np.float32) for rows in (3, 2))
    (log_p if where == "log_p" else log_q)[:, 1] = np.nan
    draft = Draft(jnp.asarray([[0, 0, 0]], jnp.int32), CHAIN, jnp.asarray(log_q))
    for coupling in (Block(), Rejection()):
        for number in range(8):
            streams = STREAMS.replace(rounds=jnp.full(1, number))
            verdict = verify(draft, jnp.asarray(log_p), streams, coupling=coupling)
            # Token by token, the first test does not depend on that row; the worth of the chain from there on does.
            assert int(verdict.count[0]) == isinstance(coupling, Rejection)


def test_bad_arguments():
    fork = DraftTree.from_paths([(0,), (1,)])

    def verify(tree=CHAIN, log_q=None, draws=STREAMS, rule="strict"):
        draft = Draft(jnp.zeros((1, tree.num_nodes), jnp.int32), tree, log_q)
        log_probs = jnp.zeros((1, tree.num_nodes, VOCAB))
        return verify_tree(draft, log_probs, draws, coupling=COUPLINGS.checked("block"), rule=rule)

    for arguments, message in (
        ({"tree": fork}, "verifies chains, and the tree of 3 nodes branches"),
        ({"rule": "typical"}, "no relaxed test, and the rule is Typical: use rule strict"),
        ({"draws": SharedNoise(jnp.zeros((1, 3, VOCAB)))}, "block coupling was given SharedNoise as draws"),
        ({"log_q": jnp.zeros((1, 3, VOCAB))}, r"log_q has shape \(1, 3, 3\): give \(1, 2, 3\)"),
    ):
        with refused(message):
            verify(**arguments)
    assert int(jax.jit(lambda: verify(tree=DraftTree.empty()))().count[0]) == 0
    assert isinstance(COUPLINGS.checked("rejection"), Rejection)
