"""Users' own methods, each complete here.

A bigram table as drafting and a rule that accepts what lies near; a Jacobi window, which has no drafter at all; and a
drafting that picks its tree by the data, another for each sequence and round.
"""

import itertools
from functools import cache, partial

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.acceptance import Rule
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.protocols import Draft, Drafting
from lantern_jax.decoding.sampling import SamplingParams, gumbel_noise, process_logits, top_children
from lantern_jax.decoding.topology import Topology
from lantern_jax.decoding.tree import DraftTree

from . import enumerated_chain as laws
from . import toy_models as toys
from .topologies import traced

TREES = {
    "chain": DraftTree.chain(3),
    "wide": toys.BUSHY,
    "forked": DraftTree.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0), (1, 0, 0)]),
}


@cache
def bigram(tree: DraftTree) -> Drafting:
    """Guesses from a table [V, V] of logits, the parameters: the next token by the last one alone."""

    def propose(table, state, pending, draws, sampling):
        tokens, log_q = pending.tokens[:, -1:], []
        for depth, internal in enumerate(tree.internal_levels):
            level = np.asarray(tree.levels[depth + 1])
            log_q.append(process_logits(table[tokens[:, np.asarray(internal)]], sampling))
            ranked = draws.perturb(log_q[-1], depth, np.asarray(internal))
            _, best = top_children(ranked, int(tree.rank[level].max()) + 1)
            parents = np.searchsorted(internal, tree.parents[level])
            tokens = jnp.concatenate([tokens, best[:, parents, tree.rank[level]]], axis=1)
        return Draft(tokens, tree, jnp.concatenate(log_q, axis=1)), state

    return Drafting(
        init=lambda table, prefix, slots, span: (),
        propose=propose,
        observe=lambda table, state, outcome: state,
        max_depth=tree.max_depth,
    )


@flax.struct.dataclass
class Hamming(Rule):
    """Accepts a token whose number differs from the wanted one's in at most ``most`` binary digits."""

    most: jax.Array

    def accepts(self, p, token, wanted, depth, codebook):
        """Accepts as ``Rule.accepts``, but no token that the target rules out."""
        return (digits_apart(token, wanted) <= self.most) & (p.at(token) > 0)


def digits_apart(left, right):
    return jax.lax.population_count(left ^ right)


def jacobi(window: int) -> Drafting:
    """Makes a window of guesses: what the target wanted after each node of the last round, in any context.

    The wanted tokens past the accepted ones are the newest guesses of the coming positions; new ones start as the last.
    """
    chain = DraftTree.chain(window)

    def propose(params, guesses, pending, draws, sampling):
        return Draft(jnp.concatenate([pending.tokens[:, -1:], guesses], axis=1), chain), guesses

    def observe(params, guesses, outcome):
        verdict, places = outcome.verdict, jnp.arange(1, window + 1, dtype=jnp.int32)[None]
        coming = jnp.minimum(verdict.count[:, None] + places, window)
        return jnp.take_along_axis(verdict.wanted, coming, axis=1)

    def init(params, prefix, slots, span):
        return jnp.zeros((prefix.tokens.shape[1], window), jnp.int32)

    return Drafting(init, propose, observe, window)


@cache
def either(first: DraftTree, second: DraftTree) -> Drafting:
    """Drafts bigrams on one of two trees of the same size and depth: the second after an odd token."""

    def propose(table, state, pending, draws, sampling):
        batch, odd = pending.tokens.shape[0], pending.tokens[:, -1] % 2 == 1
        drafts = []
        for tree in (first, second):
            draft, _ = bigram(tree).propose(table, state, pending, draws, sampling)
            # A row of log q for every node, as a traced topology has it; those of leaves are never read.
            rows = draft.log_q[:, np.maximum(tree.draft_rows, 0)]
            drafts.append(Draft(draft.tokens, traced(tree, batch), rows))

        def choose(one, other):
            return jnp.where(odd.reshape(-1, *(1,) * (one.ndim - 1)), other, one)

        children = max(tree.children.shape[1] for tree in (first, second))
        drafts = [draft.replace(topology=widened(draft.topology, children)) for draft in drafts]
        return jax.tree.map(choose, *drafts), state

    return Drafting(bigram(first).init, propose, bigram(first).observe, first.max_depth)


def widened(topology: Topology, children: int) -> Topology:
    missing = children - topology.children.shape[-1]
    return topology.replace(
        children=jnp.pad(topology.children, ((0, 0), (0, 0), (0, missing)), constant_values=-1)
    )


VOCAB, LENGTH = 16, 21
WINDOW = jacobi(6)


@cache
def mesh():
    return jax.make_mesh((8,), ("data",))


@cache
def chain_params():
    """Makes a Markov chain and a bigram table that is nearly right about it."""
    params = toys.markov_params(VOCAB)
    noise = jax.random.normal(jax.random.key(4), (VOCAB, VOCAB))
    return params, params[:VOCAB] + jnp.float32(0.7) * noise


def on_chain(drafting, batch, temperature, guided, **more):
    """Decodes the Markov chain, which the bigram table knows well."""
    params, table = chain_params()
    return speculative_decode(
        toys.markov_target(VOCAB, LENGTH), params, jnp.zeros((batch, 1)), toys.sequence_keys(2, batch),
        drafting=drafting, drafting_params=table, guidance=jnp.full(batch, 2.0) if guided else None,
        sampling=SamplingParams.create(temperature), **more,
    )  # fmt: skip


def on_llamagen(drafting, batch, temperature, guided, **more):
    """Decodes the toy LlamaGen, of which the bigram table knows nothing."""
    table = jax.random.normal(jax.random.key(4), (toys.VOCAB, toys.VOCAB))
    return speculative_decode(
        toys.llamagen(), toys.target_params(), toys.conditioning(batch), toys.sequence_keys(2, batch),
        drafting=drafting, drafting_params=table, guidance=jnp.full(batch, 2.5) if guided else None,
        sampling=SamplingParams.create(temperature), **more,
    )  # fmt: skip


DECODERS = {"chain": on_chain, "llamagen": on_llamagen}


@cache
def plain(model, guided, temperature):
    """Returns tokens of plain decoding, eight sequences on one device."""
    return np.asarray(DECODERS[model](PLAIN, 8, temperature, guided).tokens)


MAIN = (("chain", "chain", False), ("wide", "chain", True), ("wide", "llamagen", True))


@pytest.mark.parametrize(
    ("tree", "model", "guided"),
    [
        pytest.param(*case, guided, marks=() if (*case, guided) in MAIN else pytest.mark.exhaustive)
        for case in [*((tree, "chain") for tree in TREES), ("wide", "llamagen")]
        for guided in (False, True)
    ],
)
def test_the_bigram_method_is_plain_decoding(tree, model, guided):
    """The rule that accepts what is near at distance 0, on one device and on eight; the strict rule."""
    decode = partial(DECODERS[model], bigram(TREES[tree]))
    for temperature in (0.0, 1.0) if model == "chain" else (1.0,):
        expected = plain(model, guided, temperature)
        decoded = decode(5, temperature, guided, rule=Hamming(jnp.int32(0)))
        np.testing.assert_array_equal(decoded.tokens, expected[:5])
        assert int(decoded.substituted.sum()) == 0
        if model == "chain":
            assert int(decoded.rounds.max()) < LENGTH - 1, "the table is no help: equality would show little"
    if (tree, model) == ("wide", "chain"):
        return
    alone = decode(1, 1.0, guided)
    np.testing.assert_array_equal(alone.tokens, expected[:1])
    options = {"mesh": mesh(), "active": jnp.arange(8) < 5}
    spread = decode(8, 1.0, guided, rule=Hamming(jnp.int32(0)), **options)
    np.testing.assert_array_equal(spread.tokens[:5], expected[:5])


@pytest.mark.parametrize(
    "tree", [pytest.param(tree, marks=() if tree == "wide" else pytest.mark.exhaustive) for tree in TREES]
)
def test_the_bigram_method_at_temperature_zero_under_rejection(tree):
    decoded = on_chain(bigram(TREES[tree]), 5, 0.0, True, coupling="rejection")
    np.testing.assert_array_equal(decoded.tokens, plain("chain", True, 0.0)[:5])


@pytest.mark.parametrize(
    ("temperature", "devices"),
    [
        (0.0, 1),
        (1.0, 8),
        pytest.param(1.0, 1, marks=pytest.mark.exhaustive),
        pytest.param(0.0, 8, marks=pytest.mark.exhaustive),
    ],
)
def test_a_distance_substitutes_what_is_near_and_saves_rounds(temperature, devices):
    """Every token is within the distance of what the target wanted there, in the context that was decoded."""
    batch = 64
    options = {"mesh": mesh()} if devices > 1 else {}
    strict, near = (
        on_chain(bigram(TREES["wide"]), batch, temperature, False, rule=Hamming(jnp.int32(most)), **options)
        for most in (0, 1)
    )
    wanted = wanted_tokens(near.tokens, temperature)
    apart = np.asarray(digits_apart(np.asarray(near.tokens), wanted))
    assert apart.max() == 1
    np.testing.assert_array_equal((apart > 0).sum(axis=1), near.substituted)
    if temperature:
        assert int(near.rounds.sum()) < int(strict.rounds.sum())


def wanted_tokens(tokens, temperature):
    """Returns plain decoding's token at every place after the tokens before it."""
    params = chain_params()[0]
    before = np.concatenate([np.full((len(tokens), 1), VOCAB), np.asarray(tokens)[:, :-1]], axis=1)
    scores = jax.nn.log_softmax(params, axis=-1)[before]
    if temperature:
        places = jnp.tile(jnp.arange(LENGTH, dtype=jnp.int32)[None], (len(tokens), 1))
        scores = scores + gumbel_noise(toys.sequence_keys(2, len(tokens)), places, VOCAB)
    return np.argmax(scores, axis=-1).astype(np.int32)


def test_a_rule_without_a_loan_is_refused_by_rejection():
    with pytest.raises(ValueError, match="rule Hamming has no accept test without shared noise"):
        on_chain(bigram(TREES["chain"]), 2, 1.0, False, rule=Hamming(jnp.int32(1)), coupling="rejection")


# On the shared noise the tokens are plain decoding's, as above. One tree alone is half of either.
LAWS = (("either", "rejection"),)


@pytest.mark.parametrize(
    ("drafting", "coupling"),
    [
        pytest.param(*case, marks=() if case in LAWS else pytest.mark.exhaustive)
        for case in itertools.product([*TREES, "either"], ["rejection", "gumbel"])
    ],
)
def test_the_bigram_method_follows_the_exact_distribution(drafting, coupling):
    vocab = laws.VOCAB
    table = toys.markov_params(vocab)[:vocab] + jax.random.normal(jax.random.key(4), (vocab, vocab))
    drafting = either(TREES["wide"], TREES["forked"]) if drafting == "either" else bigram(TREES[drafting])
    laws.assert_exact(drafting, table, coupling)


@pytest.mark.parametrize(
    ("model", "devices"),
    [
        ("chain", 8),
        pytest.param("chain", 1, marks=pytest.mark.exhaustive),
        pytest.param("llamagen", 1, marks=pytest.mark.exhaustive),
        pytest.param("llamagen", 8, marks=pytest.mark.exhaustive),
    ],
)
def test_a_jacobi_window_is_plain_decoding_in_fewer_rounds(model, devices):
    options = {"mesh": mesh()} if devices > 1 else {}
    for temperature, guided in ((0.0, False), (1.0, True)):
        decoded = DECODERS[model](WINDOW, 8, temperature, guided, **options)
        np.testing.assert_array_equal(decoded.tokens, plain(model, guided, temperature))
        length = decoded.tokens.shape[1]
        assert int(decoded.rounds.sum()) < 8 * (length - 1)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.exhaustive), 8])
def test_a_tree_chosen_by_the_data(devices):
    """Each sequence has its own tree, another from round to round."""
    options = {"mesh": mesh()} if devices > 1 else {}
    bushy = DraftTree.from_paths([*((rank,) for rank in range(5)), (0, 0), (0, 0, 0)])
    slim = DraftTree.from_paths([(0,), (0, 0), (0, 1), (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)])
    mixed = either(bushy, slim)
    for temperature, guided in ((0.0, False), (1.0, True)):
        decoded = on_chain(mixed, 8, temperature, guided, **options)
        np.testing.assert_array_equal(decoded.tokens, plain("chain", guided, temperature))
    for tree in (bushy, slim):
        alone = on_chain(bigram(tree), 8, 1.0, True)
        assert (decoded.rounds != alone.rounds).any(), "one of the trees is never taken"
