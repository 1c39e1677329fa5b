"""The draftings by name: one with a tree for every kind of drafter, and some that guess otherwise. Needs no JAX.

A new drafting is a file that fills ``Drafting`` and an entry in ``DRAFTINGS``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lantern_jax.decoding.knobs import Knob
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.io.errors import LanternError
from lantern_jax.io.plugins import Late, Table, at

TREE, WINDOW, ROWS, OWN = "tree", "window", "rows", "own"
# The most places in a window.
MOST_PLACES = 64
ANY = "any"


def tree_levels(settings: Any) -> int:
    """Returns how many levels of a tree are drafted one after the other."""
    return settings.tree.max_depth


def _led_levels(settings: Any) -> int:
    return 1 + (settings.refine if settings.tree.max_depth > 1 else 0)


def _led_of_nodes(nodes: int) -> dict[str, int]:
    # Measured on the demo (docs/methods.md): a chain for few nodes, then a front; for many, a tree by gaps.
    if nodes <= 16:
        return {"window": nodes, "branches": 1, "levels": 0}
    if nodes <= 24:
        return {"window": nodes - 2, "branches": 3, "levels": 1}
    return {"window": min(max(24, nodes * 5 // 7), MOST_PLACES), "branches": 1, "levels": 0, "nodes": nodes}


def _window_of_nodes(nodes: int) -> dict[str, int]:
    if nodes <= 16:
        return {"window": nodes, "branches": 1, "levels": 0}
    # Three guesses for each of two places take ten nodes more than a chain.
    return {"window": min(nodes - 10, MOST_PLACES), "branches": 3, "levels": 2}


@dataclass(frozen=True, eq=False)
class DraftingKind(Late):
    """A named way of guessing.

    Attributes:
        make: (settings, target, grid, drafter) -> the ``Drafting``, or for ``ROWS`` the ``Rows``. ``grid`` is the
            length of the picture's rows in codes, ``drafter`` a ``Drafter`` or None. The same arguments give the same
            record.
        knobs: its own knobs, which become settings.
        reads: names of the settings that this drafting reads, of those that only some draftings read.
        nodes: what a round's draft consists of: a TREE, static or dynamic; a WINDOW of ``window`` positions unless a
            tree is given; anything of its OWN; or ROWS of the picture, which nothing verifies.
        of_nodes: number of nodes -> window, branches and levels of the best WINDOW known for that number, and also
            nodes if it is a ``GapTree``.
        by_gaps: whether its WINDOW may be a ``GapTree``, as it is if both a window and nodes are given.
        drafter: the kind of drafter it needs: a name, ``ANY``, or "" for none.
        couplings: names of the couplings it goes with; empty for all.
        levels: settings -> how many drafter passes a draft takes, one after the other.

    Example:
        >>> kind = lantern_jax.DraftingKind(lambda settings, target, grid, drafter: None, nodes="window")
        >>> kind.drafter, kind.nodes
        ('', 'window')
    """

    make: Callable[..., Any]
    knobs: tuple[Knob, ...] = ()
    reads: tuple[str, ...] = ()
    nodes: str = TREE
    of_nodes: Callable[[int], dict[str, int]] = _window_of_nodes
    by_gaps: bool = False
    drafter: str = ""
    couplings: tuple[str, ...] = ()
    levels: Callable[[Any], int] = lambda settings: 0

    def drafters(self) -> tuple[str, ...]:
        """Returns the kinds of drafters of which it needs one; empty if it needs none."""
        return tuple(DRAFTERS) if self.drafter == ANY else (self.drafter,) if self.drafter else ()


def _trees() -> dict[str, DraftingKind]:
    make = at("lantern_jax.decoding.drafting.eagle:from_settings")
    reads = ("echo", "mixture")
    return {name: DraftingKind(make, reads=reads, drafter=name, levels=tree_levels) for name in DRAFTERS}


def _own(drafting: Any) -> DraftingKind | None:
    """Returns the kind of a drafting that is given as a record or as a kind; None for anything else."""
    from lantern_jax.decoding.protocols import Drafting

    if isinstance(drafting, Drafting):
        return DraftingKind(lambda *given: drafting, nodes=OWN)
    if not isinstance(drafting, DraftingKind):
        return None
    if drafting.knobs:
        raise LanternError("the knobs of this DraftingKind are not known yet: call register_drafting first")
    return drafting


_WINDOW = ("window", "branches", "levels", "initial")


DRAFTINGS: Table[DraftingKind] = Table(
    "drafting",
    {
        "led": DraftingKind(
            at("lantern_jax.decoding.drafting.led:from_settings"),
            reads=(*_WINDOW, "mixture", "refine"),
            nodes=WINDOW,
            of_nodes=_led_of_nodes,
            by_gaps=True,
            drafter=ANY,
            couplings=("gumbel",),
            levels=_led_levels,
        ),
        "jacobi": DraftingKind(
            at("lantern_jax.decoding.drafting.jacobi:from_settings"),
            reads=(*_WINDOW, "redraw"),
            nodes=WINDOW,
        ),
        "zipar": DraftingKind(
            at("lantern_jax.decoding.zipar:from_settings"), reads=("ahead", "guesses"), nodes=ROWS
        ),
    },
    beside=_trees,
    wrap=_own,
)


def register_drafting(name: str, kind: DraftingKind) -> None:
    """Registers another package's drafting under a name; its knobs become settings.

    Raises:
        LanternError: a name that is taken or not valid.

    Example:
        >>> lantern_jax.register_drafting("led", lantern_jax.DraftingKind(lantern_jax.led_window))
        Traceback (most recent call last):
        lantern_jax.io.errors.LanternError: there is a drafting led already: give yours another name
    """
    DRAFTINGS.add(name, kind)
