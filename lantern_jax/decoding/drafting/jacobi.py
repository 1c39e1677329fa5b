"""Windows of guesses without a drafter: the target's last pass predicts the coming tokens, in slightly wrong contexts.

A window holds a guess for each of the W coming positions. A pass scores all of them and accepts a prefix; the rest move
to the front and get new distributions to be drawn from. The coupling decides how they are drawn:

    gumbel      ours, the shared noise: a guess is what plain decoding would put there after the guesses before it
                (Jacobi iteration; strict decoding is plain decoding with any guesses)
    rejection   independent draws (SJD, arXiv 2410.01699), or draws coupled to the last ones (SCD, arXiv 2510.24211),
                in ``redraws``

With either, each of the first positions may have several guesses (SJD-PAC, arXiv 2603.18599). With every redraw
the law of a guess, given the positions before it, is the distribution it was last drawn from, and that is the q it is
tested against.

Axes: B batch, W window (positions guessed), F first positions that may have several guesses, V codes.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

from jaxtyping import Array, Float

from lantern_jax.decoding.choices import coupling_name
from lantern_jax.decoding.drafting import window as windows
from lantern_jax.decoding.drafting.guessing import ModelParts
from lantern_jax.decoding.drafting.redraws import AFRESH, REDRAWS, Guesses
from lantern_jax.decoding.drafting.window import MOST_PLACES, GuessedWindow, Window, WindowState
from lantern_jax.decoding.fields import ByPlatform, named, whole
from lantern_jax.decoding.gumbel import Greedy, SharedNoise
from lantern_jax.decoding.protocols import MOST_RECORDS, Drafting, Outcome, Pending
from lantern_jax.decoding.rejection import Streams
from lantern_jax.decoding.sampling import first_argmax
from lantern_jax.decoding.topology import rows_depth
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.io.errors import LanternError


def jacobi(
    vocab_size: int,
    window: int | DraftTree = 16,
    redraw: str | None = None,
    initial: str = "left",
    preview_of: tuple[int, ...] | None = None,
) -> Drafting:
    """Makes a window without a drafter, which has no parameters; arguments and errors as of ``Window``.

    Without ``redraw`` it is for the coupling ``Gumbel``: guesses race with the noise that plain decoding uses, so one
    changes only where the target's distribution moved enough for another code to win. With one it is for ``Rejection``.
    SCD's released code keeps the old q for a kept guess; here q is always the law that the guess follows now. SJD-PAC's
    deviates from the target's law in two ways; here siblings are drawn from the first one's distribution without that
    one, and the first accepted sibling is taken, not the one with the longest path.

    Raises:
        LanternError: as ``Window``, and a ``GapTree``; when traced and at a temperature above 0, a coupling that does
            not fit ``redraw``, and ``Block`` with a redraw other than ``independent``.

    Example:
        >>> lantern_jax.draftings.jacobi(16384, window=8).max_depth
        8
        >>> window = lantern_jax.DraftTree.window(8, branches=3, levels=2)
        >>> lantern_jax.draftings.jacobi(16384, window, "maximal").max_depth
        8
    """
    return drafting_of(Window(vocab_size, window, redraw, initial, preview_of))


@lru_cache(MOST_RECORDS)
def drafting_of(settings: Window) -> Drafting:
    """Makes a window's ``Drafting``, which has no parameters; always the same one, since programs are found by it."""
    if not settings.tree.is_static:
        raise LanternError("a gap tree needs a led window: give it to led_window, or a static tree here")
    return Drafting(
        init=partial(windows.init_window, settings),
        propose=partial(_propose, settings),
        observe=partial(_observe, settings),
        max_depth=settings.width,
    )


def _propose(settings: Window, params, state: WindowState, pending: Pending, draws, sampling):
    log_q = windows.coming(settings, state, pending.position)
    old = None if settings.redraw is None else windows.old_guesses(settings, state, pending.position)
    tokens, ranked = _drawn(settings, draws, old, log_q)
    draft = windows.on_tree(settings, pending.tokens[:, -1:], tokens, ranked)
    if settings.redraw is not None:
        draft = draft.replace(log_q=log_q[:, rows_depth(settings.tree)])
    return draft, state.replace(position=pending.position)


def _drawn(settings: Window, draws, old: Guesses | None, log_q: Float[Array, "B W V"]):
    """Draws a guess for every place [B, W]; also returns what ranks the first places' codes [B, F, V]."""
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


def _observe(settings: Window, params, state: WindowState, outcome: Outcome) -> WindowState:
    tokens, log_q = outcome.draft.tokens[:, settings.spine[1:]], None
    if settings.redraw is not None:
        log_q = outcome.draft.log_q[:, settings.tree.draft_rows[settings.spine[:-1]]]
    state = windows.observe_window(settings, state, outcome)
    return state.replace(tokens=tokens, log_q=log_q)


@dataclass(frozen=True)
class Jacobi(GuessedWindow):
    """Guesses a window by the target's last pass (Jacobi decoding; SJD, arXiv 2410.01699; SCD, arXiv 2510.24211).

    Attributes:
        redraw: how guesses are drawn again with the couplings rejection and block: independent of what they were;
            maximal, kept as often as possible; or shared, with noise that stays the same for a position. None is
            maximal, and independent with block, which allows no other.

    Example:
        >>> lantern_jax.draftings.Jacobi(window=8, branches=3, levels=2).tree.num_nodes
        19
    """

    nodes: int | ByPlatform | None = whole(None, 1, MOST_PLACES + 10, otherwise=ByPlatform(4, 56, 31))
    redraw: str | None = named(None, REDRAWS)

    def __post_init__(self):
        super().__post_init__()
        if self.nodes is not None and self.window is not None:
            raise LanternError(f"a window of {self.window} has its nodes: give window or nodes, not both")

    @property
    def tree(self) -> DraftTree:
        """The window's tree."""
        if self.window is not None:
            return DraftTree.window(self.window, self.branches, min(self.levels, self.window))
        # Three guesses for each of two places take ten nodes more than a chain.
        return DraftTree.window(self.nodes) if self.nodes <= 16 else DraftTree.window(self.nodes - 10, 3, 2)

    def make(self, parts: ModelParts) -> Drafting:
        coupling = coupling_name(parts.coupling)
        usual = AFRESH if coupling == "block" else "maximal"
        return drafting_of(self.of(parts, None if coupling == "gumbel" else self.redraw or usual))
