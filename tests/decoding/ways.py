"""Every exact way of decoding: each equals plain decoding in test_equality.py and follows the law in test_laws.py."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax import Draft, Drafting, DraftTree
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.drafting.window import INITIALS
from lantern_jax.decoding.sampling import process_logits, top_children
from lantern_jax.draftings import Drafter, DynamicTree, Echo, GapTree, Window, eagle, jacobi, led_window

from . import toy_models as toys
from .topologies import either, traced_drafting


@cache
def bigram(tree: DraftTree, codes: int) -> Drafting:
    """Makes a user's own drafting, complete here: guesses from a table that is nearly right about a Markov chain."""
    table = toys.markov_params(codes)[:codes] + 0.7 * jax.random.normal(jax.random.key(4), (codes, codes))

    def propose(params, state, pending, draws, sampling):
        tokens, log_q = pending.tokens[:, -1:], []
        for depth, internal in enumerate(tree.internal_levels):
            level = np.asarray(tree.levels[depth + 1])
            log_q.append(process_logits(table[tokens[:, np.asarray(internal)]], sampling))
            ranked = draws.perturb(log_q[-1], depth, np.asarray(internal))
            _, best = top_children(ranked, int(tree.rank[level].max()) + 1)
            parents = np.searchsorted(internal, tree.parents[level])
            tokens = jnp.concatenate([tokens, best[:, parents, tree.rank[level]]], axis=1)
        return Draft(tokens, tree, jnp.concatenate(log_q, axis=1)), state

    return Drafting(lambda *given: (), propose, lambda params, state, outcome: state, tree.max_depth)


@dataclass(frozen=True)
class Way:
    """A way of decoding.

    Attributes:
        tree: what a drafter drafts; on a traced topology if ``traced``.
        kind: the kind of untrained drafter; None for a noisy copy of the target, with each of ``noises`` in turn.
        window: (number of codes, length of a row) -> a drafting without a drafter, or the window of a led one.
        refine: passes over a led window.
    """

    coupling: Any = "gumbel"
    tree: Any = None
    echo: Echo | None = None
    kind: str | None = None
    window: Callable[[int, int], Any] | None = None
    traced: bool = False
    refine: int = 2
    noises: tuple[float, ...] = (0.7, 1e3)

    def drafting(self, drafter: Drafter, codes: int) -> Drafting:
        """Makes the drafting for a target with ``codes`` codes."""
        if self.window is not None:
            made = self.window(codes)
            return led_window(drafter, made, self.refine) if isinstance(made, Window) else made
        if self.tree is None:
            return PLAIN
        drafting = eagle(drafter, self.tree, self.echo)
        return traced_drafting(drafting) if self.traced else drafting

    @property
    def reads_noise(self) -> bool:
        """Whether its parameters are those of a noisy copy of the target."""
        led = self.window is not None and isinstance(self.window(3), Window)
        return self.kind is None and (self.tree is not None or led)


# Every second place shows the same as one before it.
PREVIEW_OF = (-1, -1, *(place // 2 for place in range(2, 64)))


def window(width, redraw=None, initial="left"):
    return lambda codes: jacobi(codes, width, redraw, initial, PREVIEW_OF)


def bushy(width, branches, levels, redraw=None, initial="left"):
    return window(DraftTree.window(width, branches, levels), redraw, initial)


def led(tree, initial="left"):
    return lambda codes: Window(codes, tree, None, initial)


CHAIN, BUSH = DraftTree.chain(3), toys.BUSHY
FORKED = DraftTree.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0), (1, 0, 0)])
# Deeper than there are heads and masks; with nodes that have no child.
DEEP = DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1), (0, 0, 0), (0, 1, 0), (0, 0, 0, 0)])
SHALLOW = DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1)])
GROWN, SMALL = {"frontier": 3, "children": 4}, {"frontier": 2, "children": 2}
# A share of 0 for the drafter, and for what the target said.
EXTREME = Echo(position=(0.0, 1.0), token=(0.5, 0.5), parent=(0.0, 0.0), grandparent=(1.0, 0.0))
FORK_OF_WINDOW = DraftTree.from_paths([*DraftTree.chain(4).paths, (2,), (2, 0), (0, 0, 1)])

GUMBEL = {
    "ar": Way(),
    "bushy": Way(tree=BUSH),
    "traced": Way(tree=BUSH, traced=True),
    "published": Way(tree=DynamicTree(9, 4, **GROWN), noises=(0.2, 1e3)),
    "gap": Way(tree=DynamicTree(9, 4, ranking="gap", **GROWN), noises=(0.2, 1e3)),
    "ddd, wide": Way(tree=DynamicTree(9, 4, threshold=0.3, checks=(2, 3), **GROWN), noises=(0.2, 1e3)),
    "echo chain": Way(tree=CHAIN, echo=Echo(), noises=(1.5,)),
    "echo bushy": Way(tree=BUSH, echo=Echo(), noises=(1.5,)),
    "echo gap": Way(tree=DynamicTree(5, 3, ranking="gap", **SMALL), echo=Echo(), noises=(1.5,)),
    "led chain": Way(window=led(DraftTree.chain(6))),
    "led": Way(window=led(DraftTree.window(6, 2, 2))),
    "led by place 0 alone": Way(window=led(DraftTree.chain(6)), refine=0),
    "led by gaps": Way(window=led(GapTree(6, 12), "random"), refine=3),
    **{
        f"led {kind}": Way(window=led(DraftTree.window(6, 3, 1)), kind=kind)
        for kind in ("eagle3", "medusa", "parallel")
    },
    **{f"jacobi {initial}": Way(window=window(6, None, initial)) for initial in INITIALS},
    "jacobi narrow": Way(window=window(1)),
    "jacobi forked": Way(window=window(FORK_OF_WINDOW)),
    "jacobi bushy": Way(window=bushy(5, 3, 2)),
    "jacobi bushy to the end": Way(window=bushy(2, 2, 2)),
    "own": Way(window=lambda codes: bigram(BUSH, codes)),
    "own, either tree": Way(window=lambda codes: either(bigram(BUSH, codes), bigram(FORKED, codes))),
    "eagle3 gumbel": Way(tree=SHALLOW, kind="eagle3"),
    "medusa gumbel": Way(tree=DEEP, kind="medusa"),
    "parallel gumbel": Way(tree=DEEP, kind="parallel"),
}
REJECTION = {
    "eagle chain": Way("rejection", CHAIN),
    "eagle": Way("rejection", BUSH),
    "eagle, traced": Way("rejection", BUSH, traced=True),
    "eagle, bad": Way("rejection", BUSH, noises=(5.0,)),
    "eagle, echo": Way("rejection", BUSH, Echo()),
    "eagle, extreme echo": Way("rejection", CHAIN, EXTREME),
    "eagle2": Way("rejection", DynamicTree(5, 3, **SMALL)),
    # Growth stops early in half of all rounds; at 0.5 it never would.
    "ddd": Way("rejection", DynamicTree(5, 3, threshold=0.7, checks=(1, 2), **SMALL)),
    "eagle3": Way("rejection", BUSH, kind="eagle3"),
    "medusa": Way("rejection", BUSH, kind="medusa"),
    "parallelspec": Way("rejection", BUSH, kind="parallel"),
    "own, rejection": Way("rejection", window=GUMBEL["own, either tree"].window),
    "sjd": Way("rejection", window=window(3, "independent")),
    "sjd, random": Way("rejection", window=window(3, "independent", "random")),
    "scd": Way("rejection", window=window(3, "maximal")),
    "shared": Way("rejection", window=window(4, "shared")),
    "shared, random": Way("rejection", window=window(4, "shared", "random")),
    "pac": Way("rejection", window=bushy(3, 2, 2, "maximal")),
    "pac, all codes": Way("rejection", window=bushy(4, 3, 1, "maximal")),
    "pac, independent": Way("rejection", window=bushy(3, 2, 2, "independent")),
    "pac, shared": Way("rejection", window=bushy(2, 2, 2, "shared")),
}
BLOCK = {
    "block": Way("block", CHAIN),
    "block, traced": Way("block", CHAIN, traced=True),
    "block, echo": Way("block", CHAIN, Echo()),
    "block, extreme echo": Way("block", CHAIN, EXTREME),
    "block, window": Way("block", window=window(3, "independent")),
}
WAYS = GUMBEL | REJECTION | BLOCK
