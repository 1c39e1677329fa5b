"""The golden case of LANTERN's acceptance and residuals when sampling, as its released code computes them."""

from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.acceptance import Codebook, Lantern, LanternPlusPlus, Rule
from lantern_jax.decoding.protocols import Draft
from lantern_jax.decoding.rejection import Rejection
from lantern_jax.decoding.tree import DraftTree

TOLERANCE = 1e-6
MOST = 10  # Neighbours of any case.
# Anole and Lumina-mGPT were recorded with ids that are no codes: no draft holds them, p may fall on them.
OTHER_IDS = {"llamagen": 0, "anole": 7, "lumina": 7}
VARIANTS = {
    "llamagen_static": "published",
    "llamagen_dynamic": "published",
    "anole_static": "published",
    "anole_dynamic": "published",
    "lumina_static": "published_lumina",
}


@flax.struct.dataclass
class RuleOfACase(Rule):
    """LANTERN or, where ``delta`` is above 1, LANTERN++, with as many neighbours as are asked for: all of it traced."""

    delta: Float[Array, ""]
    neighbours: Int[Array, ""]

    @property
    def k(self) -> int:
        return MOST

    def lend(self, p, token, depth, codebook):
        places = jnp.arange(codebook.neighbours.shape[1], dtype=jnp.int32)
        codebook = codebook.replace(neighbours=jnp.where(places < self.neighbours, codebook.neighbours, -1))
        bounded, free = (
            rule(MOST, self.delta).lend(p, token, depth, codebook) for rule in (LanternPlusPlus, Lantern)
        )
        return jax.tree.map(partial(jnp.where, self.delta > 1), bounded, free)


def run_published_residual(case) -> None:
    """Checks every variant of a case: the node reached, the tests passed, and what the bonus token is drawn from."""
    tree = DraftTree.from_paths([path for path in case.config["paths"] if path])
    np.testing.assert_array_equal(tree.parents, case.config["parents"])
    assert list(tree.internal) == case.config["internal"]
    arrays = case.arrays
    # One program per variant: a missing neighbour is -1, and one more than lends is there to be zeroed.
    places = np.arange(arrays["table"].shape[2])
    few = arrays | {
        "table": np.where(places <= arrays["k"][:, None, None], arrays["table"], -1).astype(np.int32)
    }
    for variant in VARIANTS:
        check_variant(tree, variant, few, RuleOfACase)
    # And the rules themselves, which cut their neighbours off, for one k: each k is a program of its own.
    for rule, bounded in ((Lantern, False), (LanternPlusPlus, True)):
        rows = (arrays["k"] == 3) & ((arrays["delta"] > 1) == bounded)
        assert rows.any()
        check_variant(
            tree, "llamagen_static", {name: array[rows] for name, array in arrays.items()},
            lambda delta, _, rule=rule: rule(3, delta),
        )  # fmt: skip


def check_variant(tree, variant, arrays, rule_of) -> None:
    coupling = Rejection(VARIANTS[variant])
    point_masses, others = variant.endswith("dynamic"), OTHER_IDS[variant.partition("_")[0]]
    arrays = dict(arrays)
    for name in ("p", "q"):
        arrays[name] = np.pad(arrays[name], ((0, 0), (0, 0), (0, others)))
    arrays["table"] = np.pad(arrays["table"], ((0, 0), (0, others), (0, 0)), constant_values=-1)
    arrays["codes"] = np.pad(arrays["codes"], ((0, 0), (0, others), (0, 0)))

    # Every case has a codebook and a strength of its own: one sequence each.
    def one(p, q, tokens, uniforms, delta, k, table, codes):
        draft = Draft(
            tokens[None], tree, None if point_masses else jnp.log(q[jnp.asarray(tree.internal)])[None]
        )
        last, residual, tried = coupling.walk(
            draft, jnp.log(p)[None], uniforms[None], jnp.zeros((1, p.shape[-1])), rule_of(delta, k),
            Codebook(table, codes), jnp.full(1, tree.max_depth, jnp.int32),
        )  # fmt: skip
        return last[0], residual[0], tried.accepted[0]

    names = ("p", "q", "tokens", "uniforms", "delta", "k", "table", "codes")
    results = jax.jit(jax.vmap(one))(*(jnp.asarray(arrays[name]) for name in names))
    last, residual, accepted = (np.asarray(result) for result in results)
    np.testing.assert_array_equal(last, arrays[f"{variant}_node"])
    codes = arrays[f"{variant}_residual"].shape[1]
    np.testing.assert_allclose(residual[:, :codes], arrays[f"{variant}_residual"], atol=TOLERANCE)
    np.testing.assert_allclose(residual.sum(axis=1), arrays[f"{variant}_residual_total"], atol=TOLERANCE)
    for number, tested in enumerate(arrays[f"{variant}_tested"]):
        np.testing.assert_array_equal(tested, tests_on_the_way(tree, np.asarray(accepted[number])))


def tests_on_the_way(tree, accepted):
    """Tells which nodes a walk tests: from the root, the children in order up to the accepted one."""
    tested, node = np.zeros(tree.num_nodes, bool), 0
    while node >= 0:
        below, node = [int(child) for child in tree.children[node] if child >= 0], -1
        for child in below:
            tested[child] = True
            if accepted[child - 1]:
                node = child
                break
    return tested
