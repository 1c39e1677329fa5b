"""Rules with ideas of their own against plain loops over Python numbers, and the exact laws of their accept tests."""

import itertools
from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import Draft, DraftTree, gumbel_noise, verify_tree
from lantern_jax.decoding.choices import RULES
from lantern_jax.decoding.gumbel import Greedy, Gumbel, SharedNoise
from lantern_jax.decoding.rejection import Rejection, Streams
from lantern_jax.rules import Rule, Strict
from tests.cases import slow
from tests.refused import refused

from . import toy_models as toys
from .slow_verification import borrowed, positive, rule_of

VOCAB, ROW_END = 12, 11
CODEBOOK = toys.random_codebook(VOCAB, 2, 4, seed=3, outside=1)
CODES, NEIGHBOURS = np.asarray(CODEBOOK.codes), np.asarray(CODEBOOK.neighbours)
SPACING = np.linalg.norm(CODES[:ROW_END] - CODES[NEIGHBOURS[:ROW_END, 0]], axis=-1).mean()
CHAIN = DraftTree.chain(1)


@flax.struct.dataclass
class OfTwoBounds(Rule):
    """A user's own rule, with fields like those of others."""

    lower: jax.Array
    upper: jax.Array


verify = jax.jit(partial(verify_tree, codebook=CODEBOOK), static_argnames="coupling")


@pytest.mark.parametrize(
    "rules",
    [
        [RULES[name](k=7) for name in ("lantern", "lantern++", "cool")],
        [RULES["near"](), RULES["typical"](), OfTwoBounds(0.1, 0.2)],
    ],
    ids=lambda rules: ", ".join(type(rule).__name__ for rule in rules),
)
def test_tree_structures_tell_rules_with_the_same_fields_apart(rules):
    """Otherwise a jitted function might run another rule's program: JAX finds programs by these structures."""
    structures = [jax.tree.structure(rule) for rule in rules]
    assert all(structures.count(structure) == 1 for structure in structures)
    again = [jax.tree.structure(jax.tree.map(lambda leaf: leaf, rule)) for rule in rules]
    assert again == structures


# Every rule, as relaxed as it gets.
FREE = {
    "lantern": {"k": 4, "delta": 0.99}, "lantern++": {"k": 4, "lam": 1e30}, "near": {"tau": 1e30, "ratio": 3e38},
    "typical": {"epsilon": 1e-30}, "tolerance": {"samples": VOCAB}, "cool": {"omega": 1e30, "k": 4},
    "gsd": {"size": 2 * VOCAB, "p_gap": 1e30, "squared_distance": 1e30},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "coupling"),
    [
        *itertools.product(FREE, [Gumbel()]),
        ("lantern++", Rejection()),
        *(slow(name, Rejection()) for name in ("lantern", "cool", "gsd")),
    ],
    ids=str,
)
def test_no_rule_writes_a_code_that_was_filtered_out(name, coupling):
    """Nor as the bonus token: here everything but codes 0 and 1 is filtered out, and all other codes are drafted."""
    rule = RULES[name](**FREE[name])
    tree, batch = DraftTree.from_paths([(0,), (1,), (2,)]), 63
    # Each sequence drafts three of them, the next sequence the three that follow.
    drafted = 2 + (3 * np.arange(batch)[:, None] + np.arange(3)) % (VOCAB - 3)
    tokens = jnp.asarray(np.pad(drafted, ((0, 0), (1, 0))), jnp.int32)
    log_p = jnp.full((batch, 4, VOCAB), -jnp.inf).at[..., :2].set(jnp.log(jnp.float32(0.5)))
    log_q = jnp.full((batch, 1, VOCAB), -np.log(VOCAB), jnp.float32)
    keys, zero = jax.random.split(jax.random.key(0), batch), jnp.zeros(batch, jnp.int32)
    draws = (
        Streams(keys, zero, zero) if isinstance(coupling, Rejection)
        else SharedNoise(gumbel_noise(keys, jnp.zeros((batch, 2), jnp.int32), VOCAB))
    )  # fmt: skip
    verdict = verify(Draft(tokens, tree, log_q), log_p, draws, coupling=coupling, rule=rule)
    assert int(verdict.count.max()) == 0
    assert int(verdict.bonus.max()) <= 1


def distributions(rows, seed=0, sharpness=1.5):
    """Makes log-probabilities [rows, VOCAB], some with a code filtered out."""
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.standard_normal((rows, VOCAB))
    logits[rng.random(rows) < 0.5, 3] = -np.inf
    return toys.log_softmax(logits)


def cases(rows=40, seed=0):
    """Makes every draft token under several distributions, with noise: p [X, V], tokens [X], noise [X, V]."""
    log_p = distributions(rows, seed)
    noise = np.random.default_rng(seed + 1).gumbel(size=log_p.shape).astype(np.float32)
    tokens = np.tile(np.arange(VOCAB, dtype=np.int32), rows)
    return np.repeat(log_p, VOCAB, 0), tokens, np.repeat(noise, VOCAB, 0)


def accepted_by_gumbel(rule, log_p, tokens, noise):
    """Returns whether each single draft is accepted, and the verdict; no noise means temperature 0."""
    draft = Draft(jnp.stack([jnp.zeros_like(tokens), tokens], axis=1), CHAIN)
    log_probs = jnp.stack([log_p, log_p], axis=1)
    draws = Greedy() if noise is None else SharedNoise(jnp.stack([noise, noise], axis=1))
    verdict = jax.tree.map(np.asarray, verify(draft, log_probs, draws, coupling=Gumbel(), rule=rule))
    return verdict.count == 1, verdict


def near(p, scores, x, y, tau=1.2, lam=3.0):
    if ROW_END in (x, y):
        return False
    return p[x] > 0 and np.linalg.norm(CODES[x] - CODES[y]) <= tau * SPACING and p[x] >= p[y] / lam


def typical(p, scores, x, y, epsilon=0.09, delta_factor=0.3):
    entropy = -sum(value * np.log(value) for value in p if value > 0)
    return p[x] > min(epsilon, delta_factor * np.exp(-entropy))


def tolerance(p, scores, x, y, samples=3):
    return p[x] > 0 and x in sorted(range(VOCAB), key=lambda code: (-scores[code], code))[:samples]


def group(p, x, size=7, p_gap=0.15, squared_distance=2.0):
    """Returns C(x) as a list: x's place among the codes sorted by p, then ranks around it, then the two conditions."""
    order = sorted(range(VOCAB), key=lambda code: (-p[code], code))
    place = order.index(x)

    def belongs(code):
        close = np.sum((CODES[code] - CODES[x]) ** 2) < squared_distance
        return code == x or (ROW_END not in (x, code) and abs(p[code] - p[x]) < p_gap and close)

    return list(filter(belongs, order[max(place - (size - 1) // 2, 0) : place + size // 2 + 1]))


def grouped(p, scores, x, y):
    return p[x] > 0 and y in group(p, x)


GROUPED = {"size": 7, "squared_distance": 2.0}
BY_WANTED = {
    "near": (near, {"tau": 1.2, "ratio": 3.0}), "typical": (typical, {}), "tolerance": (tolerance, {"samples": 3}),
    "gsd": (grouped, GROUPED),
}  # fmt: skip


@pytest.mark.parametrize("greedy", [False, True], ids=["sampling", "greedy"])
@pytest.mark.parametrize("name", BY_WANTED)
def test_rules_of_the_shared_noise_do_what_they_say(name, greedy):
    log_p, tokens, noise = cases()
    reference, knobs = BY_WANTED[name]
    rule, given_noise = RULES[name](**knobs), None if greedy else noise
    accepted, verdict = accepted_by_gumbel(rule, log_p, tokens, given_noise)
    scores = log_p if greedy else log_p + noise
    wanted = scores.argmax(-1)
    exact = tokens == wanted
    rows = zip(np.exp(log_p), scores, tokens, wanted, strict=True)
    expected = [bool(row[2] == row[3] or reference(*row)) for row in rows]
    np.testing.assert_array_equal(accepted, expected)
    np.testing.assert_array_equal(verdict.substituted[:, 0], accepted & ~exact)
    apart = np.linalg.norm(CODES[tokens] - CODES[wanted], axis=-1)
    np.testing.assert_allclose(verdict.distance[:, 0], np.where(accepted & ~exact, apart, 0), atol=1e-6)
    assert 0 < np.mean(accepted & ~exact) < 0.9


def test_spacing_is_measured_once_over_codes_with_neighbours():
    measured = CODEBOOK.measured()
    np.testing.assert_allclose(measured.spacing, SPACING, rtol=1e-6)
    assert measured.measured() is measured
    with_nan = CODEBOOK.replace(codes=CODEBOOK.codes.at[ROW_END].set(jnp.nan))
    np.testing.assert_allclose(with_nan.measured().spacing, SPACING, rtol=1e-6)
    assert float(CODEBOOK.replace(neighbours=CODEBOOK.neighbours[:, :0]).measured().spacing) == 0


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("near", {"tau": 0.0}), ("tolerance", {"samples": 1}), ("gsd", {"size": 1}), ("cool", {"k": 4, "omega": 1.0}),
        ("lantern++", {"k": 4, "lam": 1.0}), ("lantern", {"k": 4, "delta": 0.0}), ("lantern", {"k": 0, "delta": 0.9}),
    ],
)  # fmt: skip
def test_rules_with_no_freedom_are_strict(name, knobs):
    log_p, tokens, noise = cases(10)
    rule, log_q = RULES[name](**knobs), np.repeat(distributions(10, 5), VOCAB, 0)
    accepted, _ = accepted_by_gumbel(rule, log_p, tokens, noise)
    np.testing.assert_array_equal(accepted, tokens == (log_p + noise).argmax(-1))
    if name in ("near", "tolerance"):
        return
    chances = np.random.default_rng(2).random((len(tokens), 2)).astype(np.float32)
    pairs = np.stack([np.zeros_like(tokens), tokens], 1), np.stack([log_p] * 2, 1), log_q[:, None], chances
    jax.tree.map(np.testing.assert_array_equal, walk(rule, CHAIN, *pairs), walk(Strict(), CHAIN, *pairs))


def test_cool_on_shared_noise_is_lantern_plus_plus_that_tightens():
    depth, rows = 3, 60
    tree = DraftTree.chain(depth)
    log_p = distributions(rows * (depth + 1), 7).reshape(rows, depth + 1, VOCAB)
    noise = np.random.default_rng(8).gumbel(size=log_p.shape).astype(np.float32)
    best = np.argsort(-(log_p + noise), axis=-1)[:, :-1, :2]
    pick = np.random.default_rng(9).integers(0, 2, (rows, depth, 1))
    tokens = np.pad(np.take_along_axis(best, pick, -1)[..., 0], ((0, 0), (1, 0))).astype(np.int32)
    delta = 8.0
    cool = verify(
        Draft(jnp.asarray(tokens), tree), log_p, SharedNoise(jnp.asarray(noise)), coupling=Gumbel(),
        rule=RULES["cool"](delta, 4),
    )  # fmt: skip
    single = []
    for level in range(depth):
        rule = RULES["lantern++"](4, 1 + (delta - 1) * np.exp(-0.7 * (level + 1)))
        single.append(accepted_by_gumbel(rule, log_p[:, level], tokens[:, level + 1], noise[:, level])[0])
    expected = np.cumprod(np.stack(single, 1), axis=1).sum(1)
    np.testing.assert_array_equal(cool.count, expected)
    assert cool.substituted.sum() > 0 and len(np.unique(cool.count)) == depth + 1


# The rejection coupling's accept tests, exactly: their thresholds, and what a refusal leaves.


@partial(jax.jit, static_argnames="tree")
def _walk(tree, tokens, log_p, log_q, uniforms, rule):
    draft = Draft(tokens, tree, log_q)
    noise = jnp.zeros((tokens.shape[0], VOCAB))
    most = jnp.full(tokens.shape[0], tree.max_depth, jnp.int32)
    last, p, tried = Rejection().walk(draft, log_p, uniforms, noise, rule, CODEBOOK, most)
    return last, p, tried.swapped


def walk(rule, tree, tokens, log_p, log_q, uniforms):
    arguments = (tokens, log_p, log_q, uniforms)
    return jax.tree.map(np.asarray, _walk(tree, *(jnp.asarray(x) for x in arguments), rule))


def one_draft(rule, log_p, log_q, chances):
    """Checks each code's chance as a single draft; returns the law of the emitted code, float64 [V]."""
    rows = np.repeat(log_p[None, None], VOCAB, 0).repeat(2, 1)
    tokens = np.stack([np.zeros(VOCAB, np.int32), np.arange(VOCAB, dtype=np.int32)], 1)
    for shift, accepted in ((-1e-4, True), (1e-4, False)):
        uniforms = np.stack([np.zeros(VOCAB), chances + shift], 1).astype(np.float32)
        q_rows = np.repeat(log_q[None, None], VOCAB, 0)
        last, left, swapped = walk(rule, CHAIN, tokens, rows, q_rows, uniforms)
        tested = (np.isfinite(log_q)) & (uniforms[:, 1] > 0) & (uniforms[:, 1] < 1)
        np.testing.assert_array_equal(last[tested] == 1, accepted)
        strict = uniforms[:, 1] * np.exp(log_q) < np.exp(log_p)
        np.testing.assert_array_equal(swapped[tested, 0], (last[tested] == 1) & ~strict[tested])
    q = np.exp(log_q.astype(np.float64))
    # ``left`` is what refusals leave: the last pass refused wherever that can happen.
    return q * chances + ((q * (1 - chances))[:, None] * left).sum(0)


def cool_chances(p, q, delta, depth, max_depth):
    cooled = np.exp(-0.7 * np.arange(1, max_depth + 1))
    omega = delta * cooled[depth - 1] / cooled.mean()
    return np.minimum(1, omega * p / np.maximum(q, 1e-30)), omega


@pytest.mark.parametrize("rule", [("strict", 0, 0.0), ("lantern", 4, 0.3), ("lantern++", 3, 3.5)])
def test_a_loan_pays_for_its_gain_with_distortion(rule):
    """A refusal leaves the target's excess over the drafter, once the lenders' mass has moved to the draft."""
    log_p, log_q = distributions(2, 27)
    p, q = (np.exp(x.astype(np.float64)) for x in (log_p, log_q))
    loans = [borrowed(*rule, p, x, NEIGHBOURS) for x in range(VOCAB)]
    masses = p + [mass for _, mass in loans]
    chances = np.minimum(1, masses / np.maximum(q, 1e-30))
    law, expected = one_draft(rule_of(*rule), log_p, log_q, chances), q * chances
    for x, (inside, mass) in enumerate(loans):
        moved = p.copy()
        moved[inside] = 0
        moved[x] += mass
        left = positive(moved - q)
        expected += q[x] * (1 - chances[x]) * (moved if left is None else left)
    np.testing.assert_allclose(law, expected, atol=1e-6)
    distortion = np.maximum(np.minimum(q, masses) - p, 0).sum()
    np.testing.assert_allclose(np.abs(law - p).sum() / 2, distortion, atol=1e-6)
    assert (distortion > 1e-3) == (rule[0] != "strict")


@pytest.mark.parametrize(("depth", "delta"), [(1, 1.0), (1, 1.4), (3, 1.1)])
def test_cool_is_generous_early_and_strict_late(depth, delta):
    """Each depth has its own weight, which distorts no more than it must; where it is under 1 the law is still p."""
    log_p, log_q = distributions(2, 23)
    p, q = (np.exp(x.astype(np.float64)) for x in (log_p, log_q))
    tree, rule = DraftTree.chain(depth), RULES["cool"](delta, 0)
    x = np.argmax(q / p * (p > 0.02))
    rows, q_rows = np.tile(log_p, (VOCAB, depth + 1, 1)), np.tile(log_q, (VOCAB, depth, 1))
    weights = []
    for level in range(1, depth + 1):
        chances, omega = cool_chances(p, q, delta, level, depth)
        weights.append(omega)
        tokens = np.full((VOCAB, depth + 1), x, np.int32)
        tokens[:, level] = np.arange(VOCAB)
        for shift in (-1e-4, 1e-4):
            uniforms = np.zeros((VOCAB, depth + 1), np.float32)
            uniforms[:, level] = chances + shift
            last, left, _ = walk(rule, tree, tokens, rows, q_rows, uniforms)
            inner = np.isfinite(log_q) & (uniforms[:, level] > 0) & (uniforms[:, level] < 1)
            np.testing.assert_array_equal(last[inner] >= level, shift < 0)
        law = q * chances + ((q * (1 - chances))[:, None] * left).sum(0)
        distortion = np.maximum(q * chances - p, 0).sum()
        np.testing.assert_allclose(np.abs(law - p).sum() / 2, distortion, atol=1e-5)
        assert (distortion < 1e-9) == (omega <= 1 + 1e-9)
    assert np.mean(weights) == pytest.approx(delta) and (depth == 1 or weights[0] > 1 > weights[-1])


@pytest.mark.parametrize("seed", range(2))
def test_groups_are_tested_whole_and_refusals_are_strict(seed):
    log_p, log_q = distributions(2, 30 + seed, sharpness=1.0)
    p, q = (np.exp(x.astype(np.float64)) for x in (log_p, log_q))
    groups = [group(np.exp(log_p), x) for x in range(VOCAB)]
    assert max(map(len, groups)) > 2 and groups[ROW_END] == [ROW_END]
    chances = np.array([min(1, p[codes].sum() / q[codes].sum()) if q[codes].sum() else 0 for codes in groups])
    law = one_draft(RULES["gsd"](**GROUPED), log_p, log_q, chances)
    residual = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
    np.testing.assert_allclose(law, q * chances + (q * (1 - chances)).sum() * residual, atol=1e-6)
    assert np.abs(law - p).sum() > 1e-3


@pytest.mark.parametrize("name", ["near", "typical", "tolerance"])
def test_rules_of_the_shared_noise_refuse_accept_tests(name):
    draft, zero = Draft(jnp.zeros((2, 2), jnp.int32), CHAIN), jnp.zeros(2, jnp.int32)
    draws = Streams(jax.random.split(jax.random.key(0), 2), zero, zero)
    with refused(f"rule {RULES[name].__name__} .* use coupling gumbel"):
        verify(draft, jnp.zeros((2, 2, VOCAB)), draws, coupling=Rejection(), rule=RULES[name]())
