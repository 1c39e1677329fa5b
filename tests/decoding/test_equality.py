"""Strict decoding is plain decoding, token for token: always on the shared noise, with accept tests at temperature 0.

Cases that differ in traced values alone (seed, drafter's quality, active sequences) share one compiled program.
"""

from itertools import starmap

import numpy as np
import pytest

from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.tree import named_tree, tree_names
from tests.cases import exhaustive, slow

from . import toy_models as toys
from .ways import BLOCK, GUMBEL, REJECTION, WAYS, Way

# Noise of a drafter that is a copy of the target: little, some, and so much that nothing of the target is left.
SHIPPED = {name: Way(tree=named_tree(name), noises=(0.2, 0.7, 1e3)) for name in tree_names()}
ROWS, SEEDS = 8, (0, 1, 2)
# Rows of every stream have five positions.
CODES = {"llamagen": toys.VOCAB, "chain": toys.VOCAB, "lumina": toys.LUMINA.num_codes}
# The most rounds allowed with the least noise, as a share of plain decoding's.
MOST = {"published": 0.8, "gap": 0.6, "ddd, wide": 0.8}
# (way, stream, temperature, guided, devices) of quick runs. Greedy drafting differs only in its draws.
MAIN = {
    # Trees on traced topologies, those drafted by heads or masks, and those grown by q are in test_laws.py.
    ("bushy", "llamagen", 1.0, True, 8), ("echo gap", "llamagen", 1.0, False, 1),
    ("jacobi left", "llamagen", 1.0, True, 1),
    ("eagle3 gumbel", "llamagen", 1.0, True, 8),
    # Row ends are forced: rounds begin with a chain of pending tokens.
    *((name, "chain", 1.0, True, 1) for name in (
        "jacobi forked", "jacobi bushy to the end",
        "led by place 0 alone", "led by gaps", "own", "own, either tree",
    )),
    ("jacobi bushy", "chain", 0.0, True, 1),
    *((name, "chain", 0.0, True, 1) for name in ("eagle", "eagle2", "block", "scd", "pac")),
}  # fmt: skip
SLOW = {
    # The other shipped trees differ only in their numbers.
    *((name, "llamagen", 1.0, True, 1) for name in ("chain", "gap", "led chain")),
    ("ar", "llamagen", 1.0, True, 8),
    *((name, "chain", 1.0, True, 1) for name in ("jacobi random", "jacobi narrow")),
    # Row ends are not even codes.
    ("led eagle3", "lumina", 1.0, True, 1),
}  # fmt: skip
EVERY = {
    *((name, "llamagen", heat, guided, 1) for name in GUMBEL | SHIPPED for heat in (0.0, 1.0) for guided in (0, 1)),
    *((name, stream, heat, True, 1) for name in GUMBEL for stream in ("chain", "lumina") for heat in (0.0, 1.0)
      if stream == "lumina" or WAYS[name].kind is None),
    *((name, "llamagen", 1.0, True, 8) for name in GUMBEL | SHIPPED),
    *((name, "llamagen", 0.0, True, 1) for name in REJECTION | BLOCK),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stream", "temperature", "guided", "devices"),
    [*sorted(MAIN), *starmap(slow, sorted(SLOW)), *starmap(exhaustive, sorted(EVERY - MAIN - SLOW))],
)
def test_strict_decoding_is_plain_decoding(name, stream, temperature, guided, devices):
    """Batches of five; on eight devices they are padded with sequences that are finished from the start."""
    way, shares, counts = (WAYS | SHIPPED)[name], [], 0
    drafter = toys.random_drafter(way.kind, stream)[0] if way.kind else toys.copy_drafter(stream)
    drafting = way.drafting(drafter, CODES[stream])
    options = {"devices": 8, "active": 5} if devices == 8 else {"batch": 5}
    for noise in way.noises if way.reads_noise else (None,):
        # Greedy decoding draws nothing from its keys.
        for seed in SEEDS if temperature else SEEDS[:1]:
            plain = toys.decode(PLAIN, temperature, bool(guided), name=stream, seed=seed)
            if temperature or stream == "llamagen":
                assert len(np.unique(plain.tokens, axis=0)) >= 5, "sequences are alike: equality shows little"
            decoded = toys.decode(
                drafting, temperature, bool(guided), noise, stream, seed=seed, coupling=way.coupling, kind=way.kind,
                **options,
            )  # fmt: skip
            counts = counts + check(decoded, plain, toys.stream(stream, 5)[0].forced)
            shares.append(decoded.rounds[:5].sum() / plain.rounds[:5].sum())
    if name != "ar" and stream != "chain":
        assert min(shares) < MOST.get(name, 1)
    if name in SHIPPED and temperature:
        assert (counts > 0).all(), f"rounds that accepted 0, 1, ... tokens: {counts}"


def check(decoded, plain, forced):
    """Checks tokens, that none is substituted, and that rounds and accepted tokens add up; counts the latter."""
    free = plain.tokens.shape[1] if forced is None else np.sum(np.asarray(forced) < 0)
    np.testing.assert_array_equal(decoded.tokens[:5], plain.tokens[:5])
    assert int(decoded.substituted.sum()) == 0 and bool(decoded.finite.all())
    accepted, last = decoded.accepted[:5], decoded.round_of_token[:5]
    # Forced tokens cost no round and are not counted, though a round may end on one; nor is the first token.
    bonus = free - 1 - accepted @ np.arange(accepted.shape[1])
    assert (bonus <= decoded.rounds[:5]).all()
    assert (bonus >= decoded.rounds[:5] - (plain.tokens.shape[1] - free)).all()
    np.testing.assert_array_equal(accepted.sum(axis=1), decoded.rounds[:5])
    assert (np.diff(last, axis=1) >= 0).all() and (last[:, 0] == 0).all()
    np.testing.assert_array_equal(last[:, -1], decoded.rounds[:5])
    # Rows that only pad the batch are never begun.
    assert (decoded.tokens[5:] == -1).all() and (decoded.rounds[5:] == 0).all()
    return accepted.sum(axis=0)


def test_strict_decoding_with_filters_is_plain_decoding():
    given = {"name": "chain", "batch": 5}
    filters = {"top_k": 12, "top_p": 0.9}
    plain = toys.decode(**given, **filters)
    assert (plain.tokens != toys.decode(**given).tokens).any(), "the filters filter nothing"
    drafting = GUMBEL["bushy"].drafting(toys.copy_drafter("chain"), toys.VOCAB)
    for noise in GUMBEL["bushy"].noises:
        decoded = toys.decode(drafting, noise=noise, **given, **filters)
        check(decoded, plain, toys.stream("chain", 5)[0].forced)
