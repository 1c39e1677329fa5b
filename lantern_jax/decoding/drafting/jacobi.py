"""Windows of guesses without a drafter: the target's last pass predicts what comes, in slightly wrong contexts.

A window holds a guess for each of the W coming positions. A pass scores all of them and accepts a prefix; the rest move
to the front and get new distributions to be drawn from. The coupling decides how they are drawn:

    jacobi              ours, the shared noise: a guess is what plain decoding would put there after the guesses
                        before it (Jacobi iteration; strict decoding is plain decoding with any guesses)
    speculative_jacobi  rejection: independent draws (SJD, arXiv 2410.01699), or draws coupled to the last ones (SCD,
                        arXiv 2510.24211), in ``redraws``
    pac                 either: several guesses for each of the first positions (SJD-PAC, arXiv 2603.18599)

With every redraw the law of a guess, given the positions before it, is the distribution it was last drawn from, and
that is the q it is tested against.

Axes: B batch, W window (positions guessed), N nodes (root included), K guesses for a position at most, F first
positions that may have several, I rows of log q, H rows remembered, V codes.
"""

from dataclasses import dataclass
from functools import cache, partial

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.drafting.redraws import AFRESH, REDRAWS, Guesses
from lantern_jax.decoding.gumbel import Greedy, SharedNoise
from lantern_jax.decoding.names import INITIALS
from lantern_jax.decoding.protocols import Draft, Drafting, Outcome, Pending
from lantern_jax.decoding.rejection import Streams
from lantern_jax.decoding.sampling import first_argmax, top_children
from lantern_jax.decoding.topology import rows_depth
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.devices.partition import split
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

_LOOK_UP = ("above", "mixed")


@flax.struct.dataclass
class WindowState:
    """What the last round left.

    Attributes:
        position: int32 [B], the position that its root predicted; row i of the others belongs to i positions later.
        tokens: int32 [B, W], its guesses.
        log_q: float32 [B, W, V], the distributions they were drawn from; None on the shared noise.
        log_p: float32 [B, W + 1, V], the target's distributions of the same positions and the next, each after the
            guesses before it.
        memory: float32 [B, H, V], the newest distribution of position t in row t modulo H; None unless ``initial``
            looks at the row above.
    """

    position: Int[Array, " B"]
    tokens: Int[Array, "B W"]
    log_q: Float[Array, "B W V"] | None
    log_p: Float[Array, "B W+1 V"]
    memory: Float[Array, "B H V"] | None


@dataclass(frozen=True)
class Window:
    """The settings of a window, checked.

    Attributes:
        vocab_size: V.
        tree: its guesses. A node at depth d guesses the token d positions after the root's, the best guess where its
            rank is 0; the path of best guesses is W long. Nodes of one depth and rank hold the same token.
        redraw: one of ``REDRAWS``; None on the shared noise.
        initial: the source of guesses at positions that no pass has seen: ``repeat`` copies the newest code before
            them, ``left`` draws from the newest distribution before them, ``above`` from the distribution one row of
            the picture up (``left`` in the first row), ``mixed`` from the normalized geometric mean of both,
            ``random`` uniformly from the codes that ``left`` allows.
        row: positions of a row of the picture, forced row ends included; read by ``above`` and ``mixed`` only.

    Raises:
        LanternError: a number or a name outside its range, or a tree without the path of best guesses.

    Example:
        >>> tree = lantern_jax.DraftTree.window(8, branches=3, levels=2)
        >>> window = lantern_jax.Window(16384, tree)
        >>> window.width, window.branches, window.tree.num_nodes
        (8, 3, 19)
    """

    vocab_size: int
    tree: DraftTree
    redraw: str | None = None
    initial: str = "left"
    row: int | None = None

    def __post_init__(self):
        if self.redraw is not None and self.redraw not in REDRAWS:
            raise errors.unknown("redraw", self.redraw, REDRAWS)
        if self.initial not in INITIALS:
            raise errors.unknown("initial", self.initial, INITIALS)
        if self.initial == "above" and (self.row is None or self.row < 1):
            raise LanternError(
                f"row {self.row} is not valid: initial 'above' needs the length of a row, 1 or more"
            )
        if not self.tree.max_depth or (0,) * self.tree.max_depth not in self.tree.paths:
            raise LanternError(
                "the tree has no path of best guesses as long as any other: add [0], [0, 0], ..."
            )
        if self.branches > self.vocab_size:
            raise LanternError(
                f"{self.branches} guesses for a position are more than {self.vocab_size} codes"
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
        return max((int(depth) for depth in self.tree.depth[self.tree.rank > 0]), default=0)

    @property
    def remembered(self) -> int:
        """H, a row of the picture, but at least what one round sees; 0 for none."""
        return max(self.row, self.width + 1) if self.initial in _LOOK_UP else 0


@cache
def jacobi(
    vocab_size: int, window: int | DraftTree = 16, initial: str = "left", row: int | None = None
) -> Drafting:
    """Makes our window for the coupling ``Gumbel``: guesses race with the noise that plain decoding uses.

    A guess changes only where the target's distribution moved enough for another code to win.

    Args:
        vocab_size: the target's.
        window: W, positions guessed a round, 1 or more; or a tree, as in ``Window``, whose guesses for a position are
            the best few of its last perturbed distribution.
        initial, row: as in ``Window``.

    Raises:
        LanternError: as ``Window``; when traced, the coupling ``Rejection`` at a temperature above 0.

    Example:
        >>> lantern_jax.jacobi(16384, window=8).max_depth
        8
    """
    return drafting_of(Window(vocab_size, _as_tree(window), None, initial, row))


@cache
def speculative_jacobi(
    vocab_size: int,
    window: int | DraftTree = 16,
    redraw: str = "maximal",
    initial: str = "left",
    row: int | None = None,
) -> Drafting:
    """Makes a window for the coupling ``Rejection``: SJD (redraw ``independent``) or SCD (``maximal``, ``shared``).

    SCD's released code keeps the old q with a kept guess; here q is always the law that the guess follows now.

    Args:
        vocab_size: the target's.
        window: W, positions guessed a round, 1 or more; or a tree, as in ``Window`` and ``pac``.
        redraw: how a guess is drawn again: ``independent`` of what it was; ``maximal``, kept with probability
            min(1, p / q), else from the residual; ``shared``, with noise that stays the same for a position.
        initial, row: as in ``Window``.

    Raises:
        LanternError: as ``Window``; when traced and at a temperature above 0, the coupling ``Gumbel``, and ``Block``
            with another redraw than ``independent``.

    Example:
        >>> lantern_jax.speculative_jacobi(16384, window=8, redraw="independent").max_depth
        8
    """
    if redraw not in REDRAWS:
        raise errors.unknown("redraw", redraw, REDRAWS)
    return drafting_of(Window(vocab_size, _as_tree(window), redraw, initial, row))


def pac(
    vocab_size: int,
    window: int = 16,
    branches: int = 3,
    levels: int = 2,
    redraw: str | None = "maximal",
    initial: str = "left",
    row: int | None = None,
) -> Drafting:
    """Makes SJD-PAC's window: several guesses for each of the first positions, and a chain below the best ones.

    The released code deviates from the target's law twice; here siblings are drawn from their first one's distribution
    without it, and the first accepted sibling is taken, not the one with the longest path.

    Args:
        vocab_size: the target's.
        window: W, the depth of the longest path, 1 or more.
        branches: guesses K for each of the first ``levels`` positions, 1 to V: K + K ** 2 + ... nodes.
        levels: 0 to the window.
        redraw: as in ``speculative_jacobi``, for ``Rejection``; None for ``Gumbel``, as in ``jacobi``.
        initial, row: as in ``Window``.

    Raises:
        LanternError: as ``Window``; when traced, a coupling that does not fit ``redraw`` at a temperature above 0.

    Example:
        >>> lantern_jax.pac(16384, window=8, branches=3, levels=2).max_depth
        8
    """
    tree = DraftTree.window(window, branches, levels)
    if redraw is None:
        return jacobi(vocab_size, tree, initial, row)
    return speculative_jacobi(vocab_size, tree, redraw, initial, row)


def _as_tree(window: int | DraftTree) -> DraftTree:
    return window if isinstance(window, DraftTree) else DraftTree.window(window)


def drafting_of(settings: Window) -> Drafting:
    """Makes the ``Drafting`` of a window; it has no parameters."""
    return Drafting(
        init=partial(init_window, settings),
        propose=partial(_propose, settings),
        observe=partial(observe_window, settings),
        max_depth=settings.width,
    )


def init_window(settings: Window, params, prefix, slots, span) -> WindowState:
    batch, width, vocab = prefix.tokens.shape[1], settings.width, settings.vocab_size

    def unknown(rows: int) -> Float[Array, "B rows V"]:
        return split(jnp.full((batch, rows, vocab), -np.log(vocab), jnp.float32), -1)

    return WindowState(
        # So far back that no row reaches the first guess.
        position=jnp.full(batch, -width - 1, jnp.int32),
        tokens=jnp.zeros((batch, width), jnp.int32),
        log_q=None if settings.redraw is None else unknown(width),
        log_p=unknown(width + 1),
        memory=unknown(settings.remembered) if settings.remembered else None,
    )


def _propose(settings: Window, params, state: WindowState, pending: Pending, draws, sampling):
    log_q, is_new = coming(settings, state, pending.position)
    old = None if settings.redraw is None else old_guesses(settings, state, pending.position)
    tokens, ranked = _drawn(settings, draws, old, log_q)
    if settings.initial == "repeat":
        tokens, log_q = _repeated(settings, pending, tokens, log_q, is_new)
    draft = _on_tree(settings, pending.tokens[:, -1:], tokens, ranked)
    if settings.redraw is not None:
        draft = draft.replace(log_q=log_q[:, rows_depth(settings.tree)])
    return draft, state.replace(position=pending.position)


def _repeated(settings: Window, pending: Pending, tokens, log_q, is_new):
    """Puts the newest code before them at new places: returns tokens [B, W] and their log q [B, W, V]."""
    # The last token that was sampled: forced ones after it need not be codes.
    sampled = jnp.take_along_axis(pending.tokens, pending.tokens.shape[1] - pending.count[:, None], axis=1)
    last = jnp.sum(~is_new, axis=1, dtype=jnp.int32)[:, None]
    last = jnp.take_along_axis(jnp.concatenate([sampled, tokens], axis=1), last, axis=1)
    if settings.redraw is not None:
        point = jnp.where(jax.nn.one_hot(last, settings.vocab_size, dtype=bool), jnp.float32(0), -jnp.inf)
        log_q = jnp.where(is_new[..., None], point, log_q)
    return jnp.where(is_new, last, tokens), log_q


def window_draft(settings: Window, root: Int[Array, "B 1"], ranked: Float[Array, "B W V"]) -> Draft:
    """Drafts the best codes of every place, as point masses."""
    return _on_tree(settings, root, first_argmax(ranked), ranked[:, : settings.front])


def _on_tree(
    settings: Window, root: Int[Array, "B 1"], tokens: Int[Array, "B W"], ranked: Float[Array, "B F V"]
) -> Draft:
    """Puts guesses on the nodes of the tree; where a place has several, those ranked best."""
    tree = settings.tree
    drafted = tokens[:, tree.depth[1:] - 1]
    if settings.front:
        _, best = top_children(ranked, settings.branches)
        sibling = np.flatnonzero(tree.rank > 0)
        more = best[:, tree.depth[sibling] - 1, tree.rank[sibling]]
        drafted = drafted.at[:, sibling - 1].set(more, unique_indices=True)
    return Draft(jnp.concatenate([root, drafted], axis=1), tree)


def coming(settings: Window, state: WindowState, position: Int[Array, " B"]):
    """Returns the distributions [B, W, V] to draw this round's guesses from, and which places [B, W] are new.

    ``position`` is the one that the round's root predicts; no pass has seen a new place.
    """
    row = _rows(settings, state, position)
    is_new = row > settings.width
    # Where no row is left this is the last one: the newest distribution before the place.
    log_p = jnp.take_along_axis(state.log_p, jnp.minimum(row, settings.width)[..., None], axis=1)
    fill = _FILLS.get(settings.initial)
    return log_p if fill is None else fill(settings, state, position, log_p, is_new), is_new


def old_guesses(settings: Window, state: WindowState, position: Int[Array, " B"]) -> Guesses:
    """Returns the last round's guesses, moved to their places in this round's window."""
    row = jnp.minimum(_rows(settings, state, position), settings.width)
    before = jnp.minimum(row, settings.width - 1)
    log_q = jnp.take_along_axis(state.log_q, before[..., None], axis=1)
    return Guesses(jnp.take_along_axis(state.tokens, before, axis=1), log_q, row < settings.width)


def _rows(settings: Window, state: WindowState, position: Int[Array, " B"]) -> Int[Array, "B W"]:
    """Returns each place's row in the last round's arrays; past the last where it has none."""
    return (position - state.position)[:, None] + jnp.arange(settings.width, dtype=jnp.int32)[None]


def _uniform(settings: Window, state: WindowState, position, log_p, is_new):
    allowed = jax.nn.log_softmax(jnp.where(jnp.isfinite(log_p), jnp.float32(0), -jnp.inf), axis=-1)
    return jnp.where(is_new[..., None], allowed, log_p)


def _from_above(settings: Window, state: WindowState, position, log_p, is_new):
    above = position[:, None] + jnp.arange(settings.width, dtype=jnp.int32)[None] - settings.row
    seen = is_new & (above >= 1) & (above <= state.position[:, None] + settings.width)
    slot = jnp.maximum(above, 0) % settings.remembered
    remembered = jnp.take_along_axis(state.memory, slot[..., None], axis=1)
    if settings.initial == "mixed":
        mean = (log_p + remembered) / 2
        # Filters may leave two distributions without a common code.
        seen = seen & jnp.any(jnp.isfinite(mean), axis=-1)
        remembered = jax.nn.log_softmax(jnp.where(seen[..., None], mean, log_p), axis=-1)
    return jnp.where(seen[..., None], remembered, log_p)


# What new places are drawn from, where it is not the newest distribution before them.
_FILLS = {"above": _from_above, "mixed": _from_above, "random": _uniform}


def _drawn(settings: Window, draws, old: Guesses | None, log_q: Float[Array, "B W V"]):
    """Draws a guess for every place [B, W]; returns also what ranks the first places' codes [B, F, V]."""
    if isinstance(draws, Greedy):
        ranked = log_q
    elif settings.redraw is None and isinstance(draws, SharedNoise):
        ranked = log_q + draws.noise[:, : settings.width]
    elif settings.redraw is not None and isinstance(draws, Streams):
        if draws.reads_ahead and settings.redraw != AFRESH:
            raise LanternError(
                f"the block coupling's tests read guesses that redraw {settings.redraw!r} keeps: give redraw {AFRESH!r}"
            )
        return REDRAWS[settings.redraw](draws, old, log_q, settings.front)
    else:
        coupling = "gumbel" if settings.redraw is None else "rejection"
        raise LanternError(
            f"a window with redraw {settings.redraw!r} was given {type(draws).__name__} as draws: decode it with "
            f"the coupling {coupling!r}"
        )
    return first_argmax(ranked), ranked[:, : settings.front]


def observe_window(settings: Window, params, state: WindowState, outcome: Outcome) -> WindowState:
    tree = settings.tree
    main = spines(tree)[0]
    log_p, memory, log_q = outcome.log_probs, state.memory, None
    if settings.front:
        rows = jnp.asarray(spines(tree))[outcome.verdict.path[:, -1]]
        log_p = jnp.take_along_axis(log_p, rows[..., None], axis=1)
    if settings.redraw is not None:
        log_q = outcome.draft.log_q[:, tree.draft_rows[main[:-1]]]
    if memory is not None:
        slot = state.position[:, None] + jnp.arange(settings.width + 1, dtype=jnp.int32)[None]
        batch = jnp.arange(slot.shape[0], dtype=jnp.int32)[:, None]
        memory = memory.at[batch, slot % settings.remembered].set(log_p, unique_indices=True)
    tokens = outcome.draft.tokens[:, main[1:]]
    return state.replace(tokens=tokens, log_q=log_q, log_p=log_p, memory=memory)


@cache
def spines(tree: DraftTree) -> Int[np.ndarray, "N W+1"]:
    """Returns for every node the path to it, on by first children, and below a leaf the root's."""
    spines = np.zeros((tree.num_nodes, tree.max_depth + 1), np.int32)
    for node in range(tree.num_nodes):
        depth, below = tree.depth[node], tree.children[node, 0]
        spines[node] = spines[0]
        spines[node, : depth + 1] = tree.node_paths[node, : depth + 1]
        while below >= 0:
            spines[node, tree.depth[below]] = below
            below = tree.children[below, 0]
    spines.flags.writeable = False
    return spines
