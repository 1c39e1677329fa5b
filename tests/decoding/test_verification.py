"""Verification against slow references, exact distributions, and the facts of relaxed acceptance."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec
from scipy import stats

from lantern_jax.decoding.acceptance import Codebook, Rule, Strict
from lantern_jax.decoding.gumbel import Greedy, Gumbel, SharedNoise
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.decoding.protocols import Draft
from lantern_jax.decoding.rejection import Rejection, Streams
from lantern_jax.decoding.rules.names import rule_from_name
from lantern_jax.decoding.sampling import (
    SamplingParams,
    acceptance_uniforms,
    residual_noise,
    top_children,
)
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.decoding.verification import verify_tree
from tests.decoding.slow_verification import borrowed, positive, verify_gumbel, verify_rejection
from tests.decoding.topologies import traced

VOCAB = 10
RULES = [("strict", 0, 0.0), ("lantern", 4, 0.3), ("lantern++", 3, 3.5)]
verify = jax.jit(verify_tree, static_argnames="coupling")


def make_codebook(vocab=VOCAB):
    """Makes a codebook in which the last code has no neighbours and another's list ends early."""
    codes = np.random.default_rng(7).standard_normal((vocab, 3)).astype(np.float32)
    table = np.array(nearest_codes(jnp.asarray(codes), min(5, vocab - 1)))
    table[-1] = -1
    table[1, 2:] = -1
    return Codebook(neighbours=jnp.asarray(table), codes=jnp.asarray(codes))


CODEBOOK = make_codebook()


def make_rule(rule):
    name, k, strength = rule
    return rule_from_name(name, k, delta=strength if name == "lantern" else 0.0, lam=max(strength, 1.0))


def log_softmax(logits):
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


@st.composite
def trees(draw, gaps):
    paths = []
    for _ in range(draw(st.integers(0, 9))):
        parent = draw(st.sampled_from([(), *paths]))
        taken = [path[-1] for path in paths if path[:-1] == parent]
        rank = draw(st.integers(0, 3)) if gaps else len(taken)
        if rank not in taken:
            paths.append((*parent, rank))
    return DraftTree.from_paths(paths)


def check(verdict, row, tree, expected):
    walked, bonus, substituted, distance = expected
    count = len(walked) - 1
    assert int(verdict.count[row]) == count
    full = walked + [walked[-1]] * (tree.max_depth - count)
    np.testing.assert_array_equal(verdict.path[row], full)
    assert int(verdict.bonus[row]) == bonus
    padded = np.asarray(substituted + [False] * (tree.max_depth - count))
    np.testing.assert_array_equal(verdict.substituted[row], padded)
    moved = np.where(padded, distance + [0.0] * (tree.max_depth - count), 0)
    np.testing.assert_allclose(verdict.distance[row], moved, atol=1e-5)


def random_tree_batch(tree, rng, batch):
    """Makes tokens likely under the target (some repeated under one parent), and its logits."""
    shape = (batch, tree.num_nodes)
    logits = 1.5 * rng.standard_normal((*shape, VOCAB))
    logits[:, :, 2] = np.where(rng.random(shape) < 0.3, -np.inf, logits[:, :, 2])
    likely = np.argsort(-logits[:, np.maximum(tree.parents, 0)], axis=-1)
    place = rng.integers(0, 3, (*shape, 1))
    return np.take_along_axis(likely, place, -1)[..., 0].astype(np.int32), log_softmax(logits)


def both_topologies(tree, tokens, log_q=None):
    """Makes the same draft on the static tree, and on its fields with a batch axis."""
    static = Draft(jnp.asarray(tokens), tree, log_q)
    rows = None
    if log_q is not None and tree.max_depth:
        rows = jnp.where(
            (tree.draft_rows >= 0)[None, :, None], log_q[:, np.maximum(tree.draft_rows, 0)], np.nan
        )
    elif log_q is not None:
        rows = jnp.full((len(tokens), 1, VOCAB), np.nan)
    return static, Draft(jnp.asarray(tokens), traced(tree, len(tokens)), rows)


@given(
    trees(gaps=True),
    st.sampled_from(RULES),
    st.sampled_from(["longest", "exact_first"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=5, deadline=None, derandomize=True)
def test_gumbel_on_any_tree(tree, rule, path, greedy, seed):
    rng, batch = np.random.default_rng(seed), 40
    tokens, log_probs = random_tree_batch(tree, rng, batch)
    noise = np.zeros((batch, tree.max_depth + 1, VOCAB), np.float32)
    if not greedy:
        noise = rng.gumbel(size=noise.shape).astype(np.float32)
    max_count = rng.integers(0, tree.max_depth + 2, batch).astype(np.int32)
    static, dynamic = (
        jax.tree.map(
            np.asarray,
            verify(
                draft,
                log_probs,
                Greedy() if greedy else SharedNoise(noise),
                coupling=Gumbel(path),
                rule=make_rule(rule),
                codebook=CODEBOOK,
                max_count=max_count,
            ),
        )
        for draft in both_topologies(tree, tokens)
    )
    jax.tree.map(np.testing.assert_array_equal, dynamic, static)
    np.testing.assert_array_equal(static.wanted, np.argmax(log_probs + noise[:, tree.depth], axis=-1))
    policy = "longest" if greedy else path
    table, codes = np.asarray(CODEBOOK.neighbours), np.asarray(CODEBOOK.codes)
    for row in range(batch):
        expected = verify_gumbel(
            tree, tokens[row], log_probs[row], noise[row], rule, table, codes, policy, max_count[row]
        )
        check(static, row, tree, expected)


@example(DraftTree.from_paths([[0], [1], [0, 0]]), RULES[0], False, 7)
@example(DraftTree.from_paths([[0], [1], [0, 0], [1, 0], [1, 1], [1, 0, 0]]), RULES[-1], False, 8)
@given(trees(gaps=False), st.sampled_from(RULES), st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=2, deadline=None, derandomize=True)
def test_rejection_on_any_tree(tree, rule, deterministic, seed):
    rng, batch = np.random.default_rng(seed), 40
    tokens, log_probs = random_tree_batch(tree, rng, batch)
    internal = list(tree.internal)
    draft = log_softmax(log_probs[:, internal].clip(-8) + rng.standard_normal((batch, len(internal), VOCAB)))
    streams = Streams(
        jax.random.split(jax.random.key(seed), batch),
        jnp.arange(batch, dtype=jnp.int32),
        jnp.full(batch, 3, jnp.int32),
    )
    max_count = rng.integers(0, tree.max_depth + 2, batch).astype(np.int32)
    static, dynamic = (
        jax.tree.map(
            np.asarray,
            verify(
                drafted,
                log_probs,
                streams,
                coupling=Rejection(),
                rule=make_rule(rule),
                codebook=CODEBOOK,
                max_count=max_count,
            ),
        )
        for drafted in both_topologies(tree, tokens, None if deterministic else draft)
    )
    jax.tree.map(np.testing.assert_array_equal, dynamic, static)
    where = (streams.keys, streams.positions, streams.rounds)
    uniforms = np.asarray(acceptance_uniforms(*where, tree.num_nodes))
    noise = np.asarray(residual_noise(*where, VOCAB))
    table, codes = np.asarray(CODEBOOK.neighbours), np.asarray(CODEBOOK.codes)
    for row in range(batch):
        q_rows = {node: np.exp(draft[row, place]) for place, node in enumerate(internal)}
        expected = verify_rejection(
            tree,
            tokens[row],
            np.exp(log_probs[row]),
            None if deterministic else q_rows,
            uniforms[row],
            noise[row],
            rule,
            table,
            codes,
            max_count[row],
        )
        check(static, row, tree, expected)


# A tiny model that can be enumerated: the target's distribution after a token depends on that token alone.
SAMPLES = 60_000
# Where sequences are compared one by one, or means that are far apart.
FEW = 4_000
BUSHY = DraftTree.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0]])
SMALL = DraftTree.from_paths([[0], [1], [0, 0]])
_RNG = np.random.default_rng(5)
TARGET = log_softmax(1.2 * _RNG.standard_normal((VOCAB, VOCAB)))
DRAFTER = log_softmax(TARGET + _RNG.standard_normal((VOCAB, VOCAB)))
POSITIVE = SamplingParams.create()
COUPLINGS = {"gumbel": Gumbel("exact_first"), "rejection": Rejection()}


@partial(jax.jit, static_argnames=("tree", "coupling", "samples"))
def decode_round(tree, coupling, rule, seed, samples=SAMPLES):
    """Drafts and verifies a round of ``samples`` sequences after token 0: tokens [B, N] and the verdict."""
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(samples, dtype=jnp.int32))
    start = jnp.zeros(samples, jnp.int32)
    draws = coupling.draws(keys, start, start, tree.max_depth + 1, VOCAB, POSITIVE)
    tokens = jnp.zeros((samples, tree.num_nodes), jnp.int32)
    log_q = []
    for node in tree.internal:
        log_q.append(jnp.asarray(DRAFTER)[tokens[:, node]])
        ranked = draws.perturb(log_q[-1][:, None], int(tree.depth[node]), np.asarray([node]))
        below = tree.children[node][tree.children[node] >= 0]
        _, drawn = top_children(ranked, len(below))
        tokens = tokens.at[:, below].set(drawn[:, 0])
    verdict = verify_tree(
        Draft(tokens, tree, jnp.stack(log_q, axis=1)),
        jnp.asarray(TARGET)[tokens],
        draws,
        rule=rule,
        codebook=CODEBOOK,
        coupling=coupling,
    )
    return tokens, verdict


def emitted(tokens, verdict):
    """First and second emitted tokens; -1 where the round emitted one token only."""
    tokens, verdict = np.asarray(tokens), jax.tree.map(np.asarray, verdict)
    rows = np.arange(len(tokens))
    along = np.concatenate([tokens[rows[:, None], verdict.path[:, 1:]], np.full((len(rows), 1), -1)], axis=1)
    along[rows, verdict.count] = verdict.bonus
    return along[:, 0], np.where(verdict.count >= 1, along[:, 1], -1)


def assert_follows(tokens, probs):
    counts = np.bincount(tokens, minlength=VOCAB).astype(float)
    assert stats.chisquare(counts, counts.sum() * probs / probs.sum()).pvalue > 1e-3


# Whole generations by accept tests: test_rejection_loop.py.
@pytest.mark.parametrize("coupling", ["gumbel", pytest.param("rejection", marks=pytest.mark.exhaustive)])
def test_strict_rounds_follow_the_target(coupling):
    tokens, verdict = decode_round(BUSHY, COUPLINGS[coupling], Strict(), 1)
    first, second = emitted(tokens, verdict)
    probs = np.exp(TARGET.astype(np.float64))
    assert_follows(first, probs[0])
    for token in range(VOCAB):
        rows = second[(first == token) & (second >= 0)]
        if len(rows) > 500:
            assert_follows(rows, probs[token])
    assert set(np.unique(verdict.count)) == {0, 1, 2}
    assert not verdict.substituted.any()


def exact_single_draft(p, q, rule):
    """Acceptance probability and emitted distribution of one draft token, by enumeration."""
    name, k, strength = rule
    table = np.asarray(CODEBOOK.neighbours)
    out, accepted, masses = np.zeros_like(p), 0.0, np.zeros_like(p)
    for x in range(VOCAB):
        inside, mass = borrowed(name, k, strength, p, x, table)
        masses[x] = p[x] + mass
        moved = p.copy()
        moved[inside] = 0
        moved[x] += mass
        chance = min(1.0, masses[x] / q[x])
        left = positive(moved - q)
        accepted += q[x] * chance
        out[x] += q[x] * chance
        out += q[x] * (1 - chance) * (moved if left is None else left)
    return accepted, out, masses


@pytest.mark.parametrize("rule", [pytest.param(RULES[0], marks=pytest.mark.exhaustive), *RULES[1:]])
def test_one_draft_token_by_rejection_pays_in_distortion_what_it_gains(rule):
    p, q = np.exp(TARGET[0].astype(np.float64)), np.exp(DRAFTER[0].astype(np.float64))
    accepted, out, masses = exact_single_draft(p, q, rule)
    np.testing.assert_allclose(accepted, np.minimum(q, masses).sum(), rtol=1e-6)
    distortion = np.maximum(np.minimum(q, masses) - p, 0).sum()
    np.testing.assert_allclose(np.abs(out - p).sum() / 2, distortion, atol=1e-6)
    assert (distortion == 0) == (rule[0] == "strict")

    tokens, verdict = decode_round(DraftTree.chain(1), Rejection(), make_rule(rule), 2)
    first, _ = emitted(tokens, verdict)
    assert_follows(first, out)
    assert stats.binomtest(int(np.sum(verdict.count)), SAMPLES, accepted).pvalue > 1e-3
    observed = np.bincount(first, minlength=VOCAB) / SAMPLES
    np.testing.assert_allclose(np.abs(observed - p).sum() / 2, distortion, atol=0.01)
    gained = accepted - np.minimum(p, q).sum()
    if rule[0] != "strict":
        assert stats.binomtest(int(np.sum(verdict.substituted)), SAMPLES, gained).pvalue > 1e-3
        assert np.all(np.asarray(verdict.distance)[~np.asarray(verdict.substituted)] == 0)
        assert np.mean(np.asarray(verdict.distance)[np.asarray(verdict.substituted)]) > 0


@pytest.mark.parametrize("coupling", ["gumbel", "rejection"])
def test_rules_with_nothing_to_borrow_are_exactly_strict(coupling):
    strict_tokens, strict = decode_round(SMALL, COUPLINGS[coupling], Strict(), 3, FEW)
    for rule in (
        rule_from_name("lantern++", 4, lam=1.0),
        rule_from_name("lantern", 4, delta=0.0),
        rule_from_name("lantern", 0, delta=0.9),
    ):
        tokens, verdict = decode_round(SMALL, COUPLINGS[coupling], rule, 3, FEW)
        np.testing.assert_array_equal(tokens, strict_tokens)
        jax.tree.map(np.testing.assert_array_equal, verdict, strict)


@pytest.mark.parametrize("coupling", ["gumbel", "rejection"])
def test_relaxing_accepts_more_and_reports_it(coupling):
    _, strict = decode_round(SMALL, COUPLINGS[coupling], Strict(), 4, FEW)
    before = 0.0
    for lam in (2.0, 8.0):
        _, verdict = decode_round(SMALL, COUPLINGS[coupling], rule_from_name("lantern++", 4, lam=lam), 4, FEW)
        substituted = float(np.asarray(verdict.substituted).mean())
        assert np.mean(verdict.count) > np.mean(strict.count) and substituted > before
        before = substituted


@pytest.mark.parametrize("rule", RULES)
def test_both_couplings_are_the_greedy_rule_at_temperature_zero(rule):
    rng = np.random.default_rng(0)
    tokens, log_probs = random_tree_batch(BUSHY, rng, 40)
    sampling, start = SamplingParams.create(0.0), jnp.zeros(40, jnp.int32)
    verdicts = []
    for coupling in (Gumbel(), Gumbel("exact_first"), Rejection()):
        draws = coupling.draws(jax.random.split(jax.random.key(0), 40), start, start, 3, VOCAB, sampling)
        draft = Draft(jnp.asarray(tokens), BUSHY, None)
        verdicts.append(
            verify(draft, log_probs, draws, coupling=coupling, rule=make_rule(rule), codebook=CODEBOOK)
        )
    for verdict in verdicts[1:]:
        jax.tree.map(np.testing.assert_array_equal, verdict, verdicts[0])


def draws_of(coupling, batch, tree=BUSHY, vocab=VOCAB):
    start = jnp.zeros(batch, jnp.int32)
    keys = jax.random.split(jax.random.key(0), batch)
    return coupling.draws(keys, start, start, tree.max_depth + 1, vocab, POSITIVE)


@pytest.mark.parametrize("coupling", [Gumbel(), Rejection()])
def test_a_sweep_compiles_once(coupling):
    rng = np.random.default_rng(0)
    tokens, log_probs = random_tree_batch(BUSHY, rng, 2)
    chex.clear_trace_counter()
    counted = jax.jit(chex.assert_max_traces(verify_tree, n=1), static_argnames="coupling")
    for lam in (1.0, 2.0, 5.0):
        counted(
            Draft(jnp.asarray(tokens), BUSHY),
            log_probs,
            draws_of(coupling, 2),
            rule=rule_from_name("lantern++", 3, lam=lam),
            codebook=CODEBOOK,
            coupling=coupling,
        )


def test_verification_runs_under_shard_map():
    """With JAX's checks of what varies over the mesh on; each device verifies its own sequences."""
    rng, batch = np.random.default_rng(0), 16
    tokens, log_probs = random_tree_batch(SMALL, rng, batch)
    keys = jax.random.split(jax.random.key(0), batch)
    start = jnp.zeros(batch, jnp.int32)

    def both(tokens, log_probs, keys, start):
        options = {"rule": make_rule(RULES[2]), "codebook": CODEBOOK}
        return [
            verify_tree(
                Draft(tokens, SMALL), log_probs, coupling.draws(keys, start, start, 3, VOCAB, POSITIVE),
                coupling=coupling, **options,
            )
            for coupling in COUPLINGS.values()
        ]  # fmt: skip

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec("data")
    sharded = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=rows, out_specs=rows))
    arguments = (jnp.asarray(tokens), jnp.asarray(log_probs), keys, start)
    jax.tree.map(np.testing.assert_array_equal, sharded(*arguments), jax.jit(both)(*arguments))


class AnyCode(Rule):
    """Accepts every token within ``steps`` of the wanted one."""

    def __init__(self, steps):
        self.steps = steps

    def accepts(self, p, token, wanted, depth, codebook):
        return jnp.abs(token - wanted) <= self.steps


def test_a_rule_of_ones_own_by_the_wanted_token():
    tokens, log_probs = random_tree_batch(BUSHY, np.random.default_rng(0), 40)
    draft = Draft(jnp.asarray(tokens), BUSHY)

    def by(rule):
        return jax.jit(lambda: verify_tree(draft, log_probs, Greedy(), coupling=Gumbel(), rule=rule))()

    assert (np.asarray(by(AnyCode(VOCAB)).count) == BUSHY.max_depth).all()
    exact, strict = by(AnyCode(0)), by(Strict())
    jax.tree.map(np.testing.assert_array_equal, exact, strict)
    with pytest.raises(ValueError, match="rule AnyCode has no accept test without shared noise"):
        verify_tree(draft, log_probs, draws_of(Rejection(), 40), coupling=Rejection(), rule=AnyCode(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "loose"}, "unknown rule 'loose': choose one of strict"),
        ({"rule": rule_from_name("lantern", 2, delta=0.1)}, "needs a codebook"),
        ({"tokens": np.zeros((2, 3), np.int32)}, "batch x 7 tree nodes"),
        ({"log_probs": np.zeros((1, 7, 4), np.float32)}, "log_probs have shape"),
        ({"draws": SharedNoise(np.zeros((2, 2, 4), np.float32))}, r"noise has shape \(2, 2, 4\)"),
        ({"codebook": CODEBOOK}, "the codebook has 10 rows of neighbours and 10 codes, the target 4"),
        ({"draws": draws_of(Rejection(), 2)}, "the gumbel coupling was given Streams as draws"),
        (
            {"coupling": Rejection(), "draws": SharedNoise(np.zeros((2, 3, 4), np.float32))},
            "the rejection coupling was given SharedNoise as draws",
        ),
    ],
)
def test_bad_arguments(changes, message):
    arguments = {
        "log_probs": np.zeros((2, 7, 4), np.float32),
        "draws": Greedy(),
        "coupling": Gumbel(),
        **changes,
    }
    draft = Draft(arguments.pop("tokens", np.zeros((2, 7), np.int32)), BUSHY)
    with pytest.raises(ValueError, match=message) as error:
        verify_tree(draft, **arguments)
    assert "\n" not in str(error.value)


def test_draws_are_asked_for():
    """Without its random numbers a coupling does not silently decode greedily."""
    with pytest.raises(TypeError, match="draws"):
        verify_tree(
            Draft(np.zeros((2, 7), np.int32), BUSHY), np.zeros((2, 7, 4), np.float32), coupling=Gumbel()
        )


def test_options_are_those_of_a_coupling():
    with pytest.raises(ValueError, match="unknown path policy 'shortest'"):
        Gumbel(path="shortest")
    with pytest.raises(ValueError, match="unknown residual 'none'"):
        Rejection(residual="none")
    with pytest.raises(TypeError):
        Rejection(path="longest")


def test_rejection_refuses_rank_gaps_and_misshapen_drafts():
    tree = DraftTree.from_paths([[0], [2]])
    tokens, log_probs = np.zeros((1, 3), np.int32), np.zeros((1, 3, 4), np.float32)
    arguments = (log_probs, draws_of(Rejection(), 1, tree, 4))
    with pytest.raises(ValueError, match="gaps in child ranks"):
        verify_tree(Draft(tokens, tree, np.zeros((1, 1, 4), np.float32)), *arguments, coupling=Rejection())
    with pytest.raises(ValueError, match="a row for every node with children"):
        verify_tree(Draft(tokens, tree, np.zeros((1, 3, 4), np.float32)), *arguments, coupling=Rejection())
