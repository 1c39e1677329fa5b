"""EAGLE-3, Medusa heads and the parallel drafter in the loop: strict decoding is plain decoding, token for token."""

import dataclasses
import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.models.chameleon import Chameleon, ChameleonConfig, TokenConditioning, chameleon_target
from lantern_jax.models.eagle3 import Eagle3Config, eagle3_drafter, eagle3_shapes
from lantern_jax.models.llamagen import LlamaGen, LlamaGenConfig, llamagen_target
from lantern_jax.models.medusa import MedusaConfig, medusa_drafter, medusa_shapes
from lantern_jax.models.parallel import ParallelConfig, parallel_drafter, parallel_shapes
from tests.tiny_checkpoint import random_leaves

from . import enumerated_chain as laws
from . import toy_models as toys

ROWS, TAPS, VOCAB = 8, (0, 1, 2), 24
# Deeper than there are heads and masks; with nodes that have no child.
TREE = DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1), (0, 0, 0), (0, 1, 0), (0, 0, 0, 0)])
LLAMAGEN = LlamaGenConfig(16, 2, 2, vocab_size=VOCAB, grid=4, hidden_dim=32, num_labels=6)
# The kinds that draft level by level compile one program for each.
SHALLOW = DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1)])
# Row ends are forced: rounds begin with a chain of pending tokens.
LUMINA = ChameleonConfig(16, 2, 2, 32, vocab_size=40, num_codes=VOCAB, grid=3, layout="lumina")
CONFIGS = {"llamagen": LLAMAGEN, "lumina": LUMINA}
KINDS = {
    "eagle3": (Eagle3Config, eagle3_drafter, eagle3_shapes, {"num_heads": 2, "hidden_dim": 32, "taps": TAPS}),
    "medusa": (MedusaConfig, medusa_drafter, medusa_shapes, {"heads": 2, "markov_rank": 3}),
    "parallel": (
        ParallelConfig, parallel_drafter, parallel_shapes,
        {"num_heads": 2, "hidden_dim": 32, "masks": 2, "markov_rank": 3},
    ),
}  # fmt: skip


@cache
def models(name, kind):
    """Makes (target, its parameters, drafting, its parameters): random, the drafter's never zero."""
    config, (sizes, record, shapes, settings) = CONFIGS[name], KINDS[kind]
    taps = settings.get("taps", ())
    if name == "llamagen":
        target = llamagen_target(config, taps=taps)
        labels, tokens = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 16), jnp.int32)
        made = jax.eval_shape(LlamaGen(config).init, jax.random.key(7), labels, tokens)
    else:
        target = chameleon_target(config, taps=taps)
        made = jax.eval_shape(Chameleon(config).init, jax.random.key(7), conditioning_of(name, 1))
    params = jax.tree.map(jnp.asarray, random_leaves(made, 7, 2.0))
    fields = {
        field: getattr(config, field) for field in ("num_codes",) if hasattr(sizes, field) or kind == "medusa"
    }
    shared = {**config.shared_with_drafter, **fields}
    known = sizes.__dataclass_fields__
    sizes = sizes(**settings, **{field: value for field, value in shared.items() if field in known})
    drafter = {"drafter": drawn(shapes(sizes), 0.3), "head": params["params"]["head"]["kernel"]}
    return target, params, eagle(record(sizes), SHALLOW if kind == "eagle3" else TREE), drafter


def drawn(shapes, scale):
    """Normal parameters, norms and biases too."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, scale, leaf.shape).astype(np.float32)), shapes)


def conditioning_of(name, batch):
    if name == "llamagen":
        return (jnp.arange(batch, dtype=jnp.int32) % 5)[:, None]
    rows = np.arange(batch, dtype=np.int32)[:, None] % 5
    tokens = np.concatenate([rows, rows + 26, np.full((batch, 3), [33, 34, 35])], axis=1).astype(np.int32)
    mask = (np.arange(5)[None] > 0) | (rows > 1)
    return TokenConditioning(jnp.asarray(tokens), jnp.asarray(mask))


def options_of(name, batch, guided, temperature):
    return {
        "guidance": jnp.full(batch, 2.5) if guided else None,
        "sampling": SamplingParams.create(temperature),
    }


# LlamaGen at temperature 1 is what eight devices decode below; greedy drafting differs in its draws alone.
MAIN = (("medusa", "llamagen", True, 0.0), *((kind, "lumina", True, 1.0) for kind in KINDS))


@pytest.mark.parametrize(
    ("kind", "name", "guided", "temperature"),
    [
        pytest.param(*case, marks=() if case in MAIN else pytest.mark.exhaustive)
        for case in itertools.product(KINDS, CONFIGS, [False, True], [1.0, 0.0])
    ],
)
def test_strict_decoding_is_plain_decoding(kind, name, guided, temperature):
    target, params, drafting, drafter = models(name, kind)
    options = options_of(name, ROWS, guided, temperature)
    given = (target, params, conditioning_of(name, ROWS), jax.random.split(jax.random.key(4), ROWS))
    expected = autoregressive_decode(*given, **options)
    decoded = speculative_decode(*given, drafting=drafting, drafting_params=drafter, **options)
    np.testing.assert_array_equal(decoded.tokens, expected.tokens)
    assert int(decoded.substituted.sum()) == 0
    assert int(decoded.accepted[:, 1:].sum()) > 0, "nothing drafted was ever accepted"


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind == "eagle3" else pytest.mark.exhaustive) for kind in KINDS],
)
def test_eight_devices(kind):
    target, params, drafting, drafter = models("llamagen", kind)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    given = (target, params, conditioning_of("llamagen", ROWS), jax.random.split(jax.random.key(4), ROWS))
    options = options_of("llamagen", ROWS, True, 1.0)
    expected = autoregressive_decode(*given, **options)
    decoded = speculative_decode(*given, drafting=drafting, drafting_params=drafter, mesh=mesh, **options)
    np.testing.assert_array_equal(decoded.tokens, expected.tokens)


def widened(target, width: int):
    """Repeats the features of a Markov chain, one number, ``width`` times."""

    def prefill(params, conditioning, guidance, slots):
        cache, logits, prefix = target.prefill(params, conditioning, guidance, slots)
        return cache, logits, prefix.replace(features=jnp.tile(prefix.features, width))

    def score(params, cache, tokens, depth, ancestors, **more):
        logits, features, block = target.score(params, cache, tokens, depth, ancestors, **more)
        return logits, jnp.tile(features, width), block

    return dataclasses.replace(target, prefill=prefill, score=score)


@cache
def on_chain(kind, target):
    """Makes (the chain with features, a random drafter of a kind for it, its parameters)."""
    dim, (sizes, record, shapes, settings) = 8, KINDS[kind]
    shared = {
        "dim": dim,
        "vocab_size": laws.VOCAB,
        "num_codes": laws.VOCAB,
        "prefix_length": 1,
        "rotary": "line",
    }
    settings = settings | ({"taps": (0,)} if "taps" in settings else {})
    config = sizes(**settings, **{k: v for k, v in shared.items() if k in sizes.__dataclass_fields__})
    head = jax.random.normal(jax.random.key(1), (dim, laws.VOCAB))
    return widened(target, dim), record(config), {"drafter": drawn(shapes(config), 0.5), "head": head}


# EAGLE-3's drafts are drawn as EAGLE's are; the law of those is in test_rejection_loop.py.
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.exhaustive if kind == "eagle3" else ()) for kind in KINDS],
)
def test_accept_tests_follow_the_exact_distribution(kind):
    """Whatever the drafter says, here a random one on a chain whose law is known."""
    target, drafter, drafting_params = on_chain(kind, toys.markov_target(laws.VOCAB, laws.LENGTH))
    decoded = laws.assert_exact(eagle(drafter, SHALLOW), drafting_params, target=target)
    assert int(decoded.accepted[:, 1:].sum()) > laws.SAMPLES
