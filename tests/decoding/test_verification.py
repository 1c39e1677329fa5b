"""Verification against slow references, on devices, and what it refuses (accept tests of rules: test_rules.py)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from lantern_jax import Draft, DraftTree, verify_tree
from lantern_jax.decoding.gumbel import PATHS, Greedy, Gumbel, SharedNoise
from lantern_jax.decoding.rejection import Rejection, Streams
from lantern_jax.decoding.sampling import SamplingParams, acceptance_uniforms, residual_noise
from tests.cases import slow
from tests.refused import refused

from . import toy_models as toys
from .slow_verification import rule_of, verify_gumbel, verify_rejection
from .topologies import draft_trees, traced_draft

VOCAB = 10
RULES = [("strict", 0, 0.0), ("lantern", 4, 0.3), ("lantern++", 3, 3.5)]
BUSHY, SMALL = toys.BUSHY, DraftTree.from_paths([[0], [1], [0, 0]])
# The last code has no neighbours and another's list ends early.
CODEBOOK = toys.random_codebook(VOCAB, 3, 5, seed=7)
CODEBOOK = CODEBOOK.replace(neighbours=CODEBOOK.neighbours.at[VOCAB - 1].set(-1).at[1, 2:].set(-1))
NUMPY_BOOK = np.asarray(CODEBOOK.neighbours), np.asarray(CODEBOOK.codes)
COUPLINGS = (Gumbel(), Gumbel("followed"), Rejection())
verify = jax.jit(verify_tree, static_argnames="coupling")


def random_tree_batch(tree, rng, batch):
    """Makes tokens that are likely under the target (some repeated under one parent), and its log-probabilities."""
    shape = (batch, tree.num_nodes)
    logits = 1.5 * rng.standard_normal((*shape, VOCAB))
    logits[:, :, 2] = np.where(rng.random(shape) < 0.3, -np.inf, logits[:, :, 2])
    likely = np.argsort(-logits[:, np.maximum(tree.parents, 0)], axis=-1)
    place = rng.integers(0, 3, (*shape, 1))
    return np.take_along_axis(likely, place, -1)[..., 0].astype(np.int32), toys.log_softmax(logits)


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


def verified(draft, *given, **options):
    """Returns the verdict on a draft as NumPy arrays, checking that the traced topology gives the same one."""
    static, dynamic = (
        jax.tree.map(np.asarray, verify(one, *given, codebook=CODEBOOK, **options))
        for one in (draft, traced_draft(draft))
    )
    jax.tree.map(np.testing.assert_array_equal, dynamic, static)
    return static


def gumbel_batch(tree, seed, greedy=False, batch=40):
    """Returns tokens, log p, noise and the most tokens to accept."""
    rng = np.random.default_rng(seed)
    tokens, log_probs = random_tree_batch(tree, rng, batch)
    noise = rng.gumbel(size=(batch, tree.max_depth + 1, VOCAB)).astype(np.float32) * (not greedy)
    return tokens, log_probs, noise, rng.integers(0, tree.max_depth + 2, batch).astype(np.int32)


def gumbel_rows(tree, rule, path, tokens, log_probs, noise, max_count):
    """Returns the expected verdict on each row."""
    return [verify_gumbel(tree, *row[:3], rule, *NUMPY_BOOK, path, row[3])
            for row in zip(tokens, log_probs, noise, max_count, strict=True)]  # fmt: skip


@example(BUSHY, RULES[2], "longest", False, 1)
@example(DraftTree.from_paths([[0], [1], [0, 0], [1, 0], [1, 0, 0]]), RULES[-1], "followed", False, 8)
@given(
    draft_trees(max_nodes=9), st.sampled_from(RULES), st.sampled_from(PATHS), st.booleans(),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=3, deadline=None, derandomize=True)
def test_gumbel_on_any_tree(tree, rule, path, greedy, seed):
    tokens, log_probs, noise, max_count = drawn = gumbel_batch(tree, seed, greedy)
    verdict = verified(
        Draft(jnp.asarray(tokens), tree), log_probs, Greedy() if greedy else SharedNoise(noise),
        coupling=Gumbel(path), rule=rule_of(*rule), max_count=max_count,
    )  # fmt: skip
    np.testing.assert_array_equal(verdict.wanted, np.argmax(log_probs + noise[:, tree.depth], axis=-1))
    for row, expected in enumerate(gumbel_rows(tree, rule, "longest" if greedy else path, *drawn)):
        check(verdict, row, tree, expected)


def test_a_forced_token_is_no_guess_that_follows():
    """A substitute before it is accepted where the token after it is right: none is at the end of the first tree."""
    for depth, some in ((2, False), (4, True)):
        tree, rule = DraftTree.window(depth, 2, 2), RULES[2]
        tokens, log_probs, noise, max_count = drawn = gumbel_batch(tree, 5)
        forced = np.flatnonzero(tree.depth == 1)
        log_probs[:, forced] = np.where(np.arange(VOCAB) == 4, 0, -np.inf)
        tokens[:, tree.depth == 2] = 4
        verdict = verified(
            Draft(jnp.asarray(tokens), tree), log_probs, SharedNoise(noise),
            coupling=Gumbel("followed"), rule=rule_of(*rule), max_count=max_count,
        )  # fmt: skip
        for row, expected in enumerate(gumbel_rows(tree, rule, "followed", *drawn)):
            check(verdict, row, tree, expected)
        assert verdict.substituted[:, 0].any() == some


FORKED = DraftTree.from_paths([[0], [1], [0, 0], [1, 0], [1, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    ("tree", "rule", "deterministic", "seed"),
    [
        slow(FORKED, RULES[2], False, 8, id="forked"),
        slow(BUSHY, RULES[1], True, 3, id="deterministic"),
        pytest.param(BUSHY, RULES[0], False, 5, id="strict"),
    ],
)
def test_rejection_on_trees(tree, rule, deterministic, seed):
    rng, batch = np.random.default_rng(seed), 40
    tokens, log_probs = random_tree_batch(tree, rng, batch)
    internal, places = list(tree.internal), jnp.arange(batch, dtype=jnp.int32)
    log_q = log_probs[:, internal].clip(-8) + rng.standard_normal((batch, len(internal), VOCAB))
    log_q = toys.log_softmax(log_q)
    where = jax.random.split(jax.random.key(seed), batch), places, jnp.full(batch, 3, jnp.int32)
    max_count = rng.integers(0, tree.max_depth + 2, batch).astype(np.int32)
    verdict = verified(
        Draft(jnp.asarray(tokens), tree, None if deterministic else jnp.asarray(log_q)), log_probs, Streams(*where),
        coupling=Rejection(), rule=rule_of(*rule), max_count=max_count,
    )  # fmt: skip
    uniforms = np.asarray(jax.jit(acceptance_uniforms, static_argnums=3)(*where, tree.num_nodes))
    noise = np.asarray(jax.jit(residual_noise, static_argnums=3)(*where, VOCAB))
    np.testing.assert_array_equal(verdict.wanted, np.argmax(log_probs + noise[:, None], axis=-1))
    for row in range(batch):
        q_rows = {node: np.exp(log_q[row, place]) for place, node in enumerate(internal)}
        expected = verify_rejection(
            tree, tokens[row], np.exp(log_probs[row]), None if deterministic else q_rows, uniforms[row], noise[row],
            rule, *NUMPY_BOOK, max_count[row],
        )  # fmt: skip
        check(verdict, row, tree, expected)


def draws_of(coupling, batch, tree=BUSHY, vocab=VOCAB, temperature=1.0):
    start, keys = jnp.zeros(batch, jnp.int32), jax.random.split(jax.random.key(0), batch)
    return coupling.draws(keys, start, start, tree.max_depth + 1, vocab, SamplingParams.create(temperature))


@pytest.mark.parametrize("rule", RULES)
def test_both_couplings_are_the_greedy_rule_at_temperature_zero(rule):
    tokens, log_probs = random_tree_batch(BUSHY, np.random.default_rng(0), 40)
    first, *others = (
        verify(
            Draft(jnp.asarray(tokens), BUSHY, None), log_probs, draws_of(coupling, 40, temperature=0.0),
            coupling=coupling, rule=rule_of(*rule), codebook=CODEBOOK,
        )
        for coupling in COUPLINGS
    )  # fmt: skip
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, other, first)


@pytest.mark.slow
def test_verification_runs_under_shard_map():
    """With JAX's checks of what varies over the mesh enabled; each device verifies its own sequences.

    The shared noise has less that varies; test_loop.py tests it under a caller's shard_map.
    """
    batch = 16
    tokens, log_probs = random_tree_batch(SMALL, np.random.default_rng(0), batch)
    keys, start = jax.random.split(jax.random.key(0), batch), jnp.zeros(batch, jnp.int32)

    def verified(tokens, log_probs, keys, start):
        draws = Rejection().draws(keys, start, start, 3, VOCAB, SamplingParams.create())
        rule = rule_of(*RULES[2])
        return verify_tree(
            Draft(tokens, SMALL), log_probs, draws, coupling=Rejection(), rule=rule, codebook=CODEBOOK
        )

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec("data")
    sharded = jax.jit(jax.shard_map(verified, mesh=mesh, in_specs=rows, out_specs=rows))
    arguments = (jnp.asarray(tokens), jnp.asarray(log_probs), keys, start)
    jax.tree.map(np.testing.assert_array_equal, sharded(*arguments), jax.jit(verified)(*arguments))


GAPS = DraftTree.from_paths([[0], [2]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "lantern:k=2"}, "needs a codebook"),
        ({"tokens": np.zeros((2, 3), np.int32)}, "batch x 8 tree nodes"),
        ({"log_probs": np.zeros((1, 8, 4), np.float32)}, "log_probs have shape"),
        ({"log_probs": np.full((2, 8, 4), np.nan, np.float32)}, r"log_probs that are no numbers, at \[0, 0\]: give"),
        ({"log_probs": np.full((2, 8, 4), -np.inf, np.float32)}, r"log_probs that are no numbers, at \[0, 0\]: give"),
        ({"codebook": CODEBOOK.neighbours}, r"codebook is ArrayImpl: give Codebook\(neighbours, codes\)"),
        ({"max_count": np.ones(3, np.int32)}, r"max_count has shape \(3,\): give one number, or \(2,\)"),
        ({"tree": [[0], [1]]}, r"topology is list: give a tree, such as DraftTree\.from_paths"),
        ({"draws": SharedNoise(np.zeros((2, 2, 4), np.float32))}, r"noise has shape \(2, 2, 4\)"),
        ({"codebook": CODEBOOK}, "the codebook has 10 rows of neighbours and 10 codes, the target 4"),
        ({"draws": draws_of(Rejection(), 2)}, "the gumbel coupling was given Streams as draws"),
        (
            {"coupling": Rejection(), "draws": SharedNoise(np.zeros((2, 3, 4), np.float32))},
            "the rejection coupling was given SharedNoise as draws",
        ),
        *(
            (
                {"tree": GAPS, "tokens": np.zeros((1, 3), np.int32), "log_probs": np.zeros((1, 3, 4), np.float32),
                 "log_q": np.zeros((1, rows, 4), np.float32), "coupling": Rejection(),
                 "draws": draws_of(Rejection(), 1, GAPS, 4)},
                message,
            )
            for rows, message in ((1, "gaps in child ranks"), (3, "a row for every node with children"))
        ),
    ],
)  # fmt: skip
def test_bad_arguments(changes, message):
    arguments = {
        "tokens": np.zeros((2, 8), np.int32), "tree": BUSHY, "log_q": None, "draws": Greedy(), "coupling": Gumbel(),
        "log_probs": np.zeros((2, 8, 4), np.float32), **changes,
    }  # fmt: skip
    draft = Draft(*(arguments.pop(name) for name in ("tokens", "tree", "log_q")))
    with refused(message):
        jax.eval_shape(lambda: verify_tree(draft, **arguments))
