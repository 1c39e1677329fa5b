"""What all windows share: their settings, what a round leaves them, and how their guesses are put on a tree.

Axes: B batch, W window (positions guessed), N nodes (root included), K guesses for a position at most, F first
positions that may have several, P places of a preview, V codes.
"""

from dataclasses import dataclass
from typing import Any, Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lantern_jax.decoding import fields
from lantern_jax.decoding.drafting.guessing import Guessing, ModelParts
from lantern_jax.decoding.drafting.redraws import REDRAWS, Guesses
from lantern_jax.decoding.echo import accepted_above
from lantern_jax.decoding.fields import ByPlatform, named, whole
from lantern_jax.decoding.gap_tree import GapTree, gap_draft
from lantern_jax.decoding.protocols import Draft, Outcome
from lantern_jax.decoding.sampling import first_argmax, top_children
from lantern_jax.decoding.stream import point_masses
from lantern_jax.decoding.topology import with_batch
from lantern_jax.decoding.tree import DraftTree, GuessTree
from lantern_jax.devices.partition import split
from lantern_jax.io.errors import LanternError

# Where the guesses at a window's new positions come from.
INITIALS = ("left", "random", "preview")
# The most places in a window.
MOST_PLACES = 64


@flax.struct.dataclass
class WindowState:
    """What the last round left.

    Attributes:
        position: int32 [B], the position that its root predicted; row i of the other fields belongs to the position i
            later.
        tokens: int32 [B, W], its guesses.
        log_q: float32 [B, W, V], the distributions they were drawn from; None on the shared noise.
        log_p: float32 [B, W + 1, V], the target's distributions at the same positions and the next, each after the
            guesses before it.
        preview: int32 [B, P], the codes of the preview, -1 where none is committed; None unless ``initial`` reads it.
    """

    position: Int[Array, " B"]
    tokens: Int[Array, "B W"]
    log_q: Float[Array, "B W V"] | None
    log_p: Float[Array, "B W+1 V"]
    preview: Int[Array, "B P"] | None = None


@dataclass(frozen=True)
class Window:
    """The settings of a window, checked.

    Attributes:
        vocab_size: V.
        tree: its guesses; a number is a chain of that length, 1 to 64. A node at depth d guesses the
            token d positions after the root's, the best guess where its rank is 0; the path of best guesses is W long.
            Nodes of one depth and rank hold the same token. With a ``GapTree`` the tree is chosen in each round; for
            led windows only.
        redraw: one of ``REDRAWS``; None on the shared noise.
        initial: the source of guesses at positions that no pass has seen: ``left`` draws from the newest distribution
            before them, ``random`` uniformly from the codes that this distribution allows, ``preview`` copies the code
            of a preview that the model sampled first (``left`` where there is none).
        preview_of: [T], for each stream position the preview's that shows the same part of the picture, -1 for none;
            read by ``preview`` only.

    Raises:
        LanternError: an invalid number or name, or a tree without the path of best guesses.

    Example:
        >>> tree = lantern_jax.DraftTree.window(8, branches=3, levels=2)
        >>> window = lantern_jax.draftings.Window(16384, tree)
        >>> window.width, window.branches, window.tree.num_nodes
        (8, 3, 19)
    """

    vocab_size: int
    tree: DraftTree | GapTree
    redraw: str | None = named(None, REDRAWS)
    initial: str = named("left", INITIALS)
    preview_of: tuple[int, ...] | None = None

    def __post_init__(self):
        if not isinstance(self.tree, GuessTree):
            object.__setattr__(self, "tree", DraftTree.window(self.tree))
        fields.check_fields(self)
        if self.initial == "preview" and self.preview_of is None:
            raise LanternError(
                "initial 'preview' needs a model that samples a preview first, as GLM-Image does: choose another"
            )
        if self.tree.is_static and (0,) * self.width not in self.tree.paths:
            raise LanternError(
                "the tree has no path of best guesses as long as any other: add [0], [0, 0], ..."
            )

    @property
    def width(self) -> int:
        """W."""
        return self.tree.max_depth

    @property
    def branches(self) -> int:
        """K, the most guesses for a position."""
        return self.tree.max_rank + 1

    @property
    def front(self) -> int:
        """F, the number of first positions that may have more than one guess."""
        if not self.tree.is_static:
            return self.width
        return max((int(depth) for depth in self.tree.depth[self.tree.rank > 0]), default=0)

    @property
    def spine(self) -> Int[np.ndarray, " W+1"]:
        """Nodes of a static tree's path of best guesses, root first."""
        below = [1 + self.tree.paths.index((0,) * depth) for depth in range(1, self.width + 1)]
        return np.asarray([0, *below], np.int32)


def init_window(settings: Window, params, prefix, slots, span) -> WindowState:
    """Makes the state before the first round."""
    batch, width, vocab = prefix.tokens.shape[1], settings.width, settings.vocab_size

    def unknown(rows: int) -> Float[Array, "B rows V"]:
        return split(jnp.full((batch, rows, vocab), -np.log(vocab), jnp.float32), -1)

    return WindowState(
        # So far back that no row reaches the first guess.
        position=jnp.full(batch, -width - 1, jnp.int32),
        tokens=jnp.zeros((batch, width), jnp.int32),
        log_q=None if settings.redraw is None else unknown(width),
        log_p=unknown(width + 1),
        preview=jnp.full((batch, 1 + max(settings.preview_of)), -1, jnp.int32)
        if settings.initial == "preview"
        else None,
    )


def coming(settings: Window, state: WindowState, position: Int[Array, " B"]) -> Float[Array, "B W V"]:
    """Returns the distributions to draw this round's guesses from; ``position`` is the one that its root predicts."""
    row = _rows(settings, state, position)
    # Past the last row this is the last one: the newest distribution before the place.
    log_p = jnp.take_along_axis(state.log_p, jnp.minimum(row, settings.width)[..., None], axis=1)
    # No pass has seen such a place.
    is_new = row > settings.width
    if settings.initial == "random":
        allowed = jax.nn.log_softmax(jnp.where(jnp.isfinite(log_p), jnp.float32(0), -jnp.inf), axis=-1)
        return jnp.where(is_new[..., None], allowed, log_p)
    if settings.initial == "preview":
        place = jnp.minimum(_places(settings, position), len(settings.preview_of) - 1)
        cell = jnp.asarray(settings.preview_of, jnp.int32)[place]
        code = jnp.take_along_axis(state.preview, jnp.maximum(cell, 0), axis=1)
        return point_masses(log_p, jnp.where(is_new & (cell >= 0), code, -1))
    return log_p


def old_guesses(settings: Window, state: WindowState, position: Int[Array, " B"]) -> Guesses:
    """Returns the last round's guesses, moved to their places in this round's window."""
    row = jnp.minimum(_rows(settings, state, position), settings.width)
    before = jnp.minimum(row, settings.width - 1)
    log_q = jnp.take_along_axis(state.log_q, before[..., None], axis=1)
    return Guesses(jnp.take_along_axis(state.tokens, before, axis=1), log_q, row < settings.width)


def _rows(settings: Window, state: WindowState, position: Int[Array, " B"]) -> Int[Array, "B W"]:
    """Returns each place's row in the last round's arrays; past the last one if it has none."""
    return _places(settings, position - state.position)


def _places(settings: Window, first: Int[Array, " B"]) -> Int[Array, "B W"]:
    """Returns the positions of the window's places, given the first one's."""
    return first[:, None] + jnp.arange(settings.width, dtype=jnp.int32)[None]


def window_draft(settings: Window, root: Int[Array, "B 1"], ranked: Float[Array, "B W V"]) -> Draft:
    """Drafts the best codes of every place, as point masses."""
    if not settings.tree.is_static:
        return gap_draft(settings.tree, root, ranked)
    return on_tree(settings, root, first_argmax(ranked), ranked[:, : settings.front])


def on_tree(
    settings: Window, root: Int[Array, "B 1"], tokens: Int[Array, "B W"], ranked: Float[Array, "B F V"]
) -> Draft:
    """Puts guesses on the nodes of a static tree; where a place has several, those ranked best."""
    tree = settings.tree
    drafted = tokens[:, tree.depth[1:] - 1]
    if settings.front:
        _, best = top_children(ranked, settings.branches)
        sibling = np.flatnonzero(tree.rank > 0)
        more = best[:, tree.depth[sibling] - 1, tree.rank[sibling]]
        drafted = drafted.at[:, sibling - 1].set(more, unique_indices=True)
    return Draft(jnp.concatenate([root, drafted], axis=1), tree)


def newest(settings: Window, outcome: Outcome) -> Float[Array, "B W+1 V"]:
    """Returns the target's distribution at each place of a round: the one after the truest of the nodes before it.

    That is the deepest one; among the deepest, the one with the longest accepted path; among those, the first.
    """
    log_p, topology = outcome.log_probs, outcome.draft.topology
    if not settings.front:
        return log_p
    levels = jnp.arange(settings.width + 1, dtype=jnp.int32)[None, :, None]
    depth = with_batch(topology.depth, 2)[:, None]
    common = accepted_above(outcome)[:, None]
    order = jnp.where(depth <= levels, depth * jnp.int32(settings.width + 2) + common, -1)
    return jnp.take_along_axis(log_p, jnp.argmax(order, axis=-1)[..., None], axis=1)


def observe_window(settings: Window, state: WindowState, outcome: Outcome) -> WindowState:
    """Returns the state after a round: the newest distributions, the first of which is for the state's position."""
    log_p, preview = newest(settings, outcome), state.preview
    if preview is not None:
        batch = jnp.arange(len(preview), dtype=jnp.int32)[:, None]
        row = jnp.arange(outcome.tokens.shape[1], dtype=jnp.int32)[None]
        place = (outcome.pending.position - outcome.pending.count)[:, None] + row
        # What is not committed, and what comes after the preview, falls off the end.
        place = jnp.where(row < outcome.count[:, None], place, preview.shape[1])
        preview = preview.at[batch, place].set(outcome.tokens, mode="drop")
    return state.replace(log_p=log_p, preview=preview)


@dataclass(frozen=True)
class GuessedWindow(Guessing):
    """A window, by its nodes or by its shape.

    Attributes:
        nodes: nodes of the best window known for that number, the root not counted; None where a shape is given.
        window: positions that are guessed; None where only nodes are given.
        branches: guesses for each of a window's first positions.
        levels: positions of a window that have several guesses.
        initial: where the guesses of new positions come from: left draws from the newest distribution before them,
            random from all codes, preview copies the code of GLM-Image's preview.
    """

    nodes: int | ByPlatform | None = whole(None, 1, 1024)
    window: int | ByPlatform | None = whole(None, 1, MOST_PLACES)
    branches: int = whole(1, 1, MOST_PLACES)
    levels: int = whole(0, 0, 8)
    initial: str = named("left", INITIALS)

    def __post_init__(self):
        super().__post_init__()
        if self.window is None and (self.branches, self.levels) != (1, 0):
            raise LanternError("branches and levels shape a window: give window too")

    def settled(self, platform: str, fitted: dict[str, Any]) -> Self:
        return fields.settled(self, platform, fitted, but=() if self.window is None else ("nodes",))

    def of(self, parts: ModelParts, redraw: str | None) -> Window:
        """Returns the window."""
        return Window(parts.target.vocab_size, self.tree, redraw, self.initial, parts.preview_of)
