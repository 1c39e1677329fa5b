"""A window led and refined by a drafter (ours): strict decoding in the fewest passes of the target.

A Jacobi window (``jacobi``) remembers what the target's last pass said about the coming places, and far places are
refined by several passes before they come near. What it lacks is the effect of the tokens just chosen, which a drafter
knows. With the shared noise, the noise of all places is known too, so the whole window can be guessed again and again
before the target sees it. A round:

1. Place 0 has the drafter's q after the root. All others begin with what the target last said about them.
2. ``refine`` times: for each place, the old node whose last tokens agree longest with the guesses before it is recalled
   (``echo.recalled``); the drafter passes over all guesses together, reading before a guess the target's own feature at
   the recalled node if that node's token agrees, and gives q of all places; and each place is guessed anew by
   log q' = a log q + b log p_old and the noise.
3. The best guesses are put on a static window's tree, or on one chosen by the gaps of the race (``gap_tree``). Nodes
   off its spine follow other tokens than those their place's guess was made after, and are guessed again in their own
   context, by recall alone.

After k passes, the first k + 1 guesses are what as many passes one after the other would have given, and all others are
better than before. Coupling ``Gumbel``; strict decoding is plain decoding.

Axes: G guidance rows, B batch, W window, V codes, D feature width.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import flax.struct
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.drafting import window as windows
from lantern_jax.decoding.drafting.eagle import Committed, Drafter, Stale, catch_up
from lantern_jax.decoding.drafting.guessing import ModelParts
from lantern_jax.decoding.drafting.window import MOST_PLACES, GuessedWindow, Window, WindowState
from lantern_jax.decoding.echo import (
    COMPARED,
    MIXTURE,
    Echo,
    Memory,
    blended,
    histories,
    nothing,
    recalled,
    remember,
)
from lantern_jax.decoding.fields import SHARPNESS, ByPlatform, Made, field, whole
from lantern_jax.decoding.gap_tree import GapTree
from lantern_jax.decoding.gumbel import Greedy, SharedNoise
from lantern_jax.decoding.protocols import MOST_RECORDS, Draft, Drafting, Outcome, Pending
from lantern_jax.decoding.sampling import first_argmax, process_logits, top_children
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.io.errors import LanternError


@flax.struct.dataclass
class LedState:
    """What a led window carries from round to round.

    Attributes:
        committed: the drafter's part of the state.
        memory: the last round's nodes, with the target's features.
        window: the newest distributions, for places that no node precedes.
    """

    committed: Committed
    memory: Memory
    window: WindowState


class Guessed(NamedTuple):
    """The distributions of a window's places.

    Attributes:
        log_q: float32 [B, W, V], the drafter's.
        old: float32 [B, W, V], what the target last said.
        agreement: int32 [B, W], as ``echo.recalled`` returns it.
        mixed: float32 [B, W, V], log q'.
    """

    log_q: Float[Array, "B W V"]
    old: Float[Array, "B W V"]
    agreement: Int[Array, "B W"]
    mixed: Float[Array, "B W V"]


@dataclass(frozen=True)
class LedWindow:
    """A led window's parts, for ``led_window`` and for code that logs its rounds.

    Attributes:
        drafter: one that refines.
        settings: the window; its ``redraw`` is None.
        refine: passes of the drafter over the window.
        echo: the mixture.
    """

    drafter: Drafter
    settings: Window
    refine: int
    echo: Echo

    def init(self, params, prefix, slots: int, span: int) -> LedState:
        """Makes the state before the first round."""
        # The forced tokens before a root are expanded.
        chain = max(1, span - 1 - self.settings.width)
        committed = Committed.begin(self.drafter, params, prefix, slots, span, chain)
        batch, nodes = len(committed.count), self.settings.tree.num_nodes
        memory = nothing(batch, nodes, self.settings.vocab_size, committed.features)
        return LedState(committed, memory, windows.init_window(self.settings, params, prefix, slots, span))

    def guess(self, params, state: LedState, pending: Pending, noise: Float[Array, "#B W V"], sampling):
        """Guesses every place; returns (``Guessed``, state)."""
        committed, start = catch_up(self.drafter, params, state.committed, pending)
        log_q = process_logits(start.logits, sampling)[:, None]
        unseen = windows.coming(self.settings, state.window, pending.position)
        # Before the first round, also after given tokens, the target has said nothing.
        is_first = jnp.all(state.memory.positions < 0, axis=1)
        unseen = jnp.where(is_first[:, None, None], log_q, unseen)
        state = state.replace(committed=committed, window=state.window.replace(position=pending.position))
        # The tokens before a place are known for place 0 alone.
        history = jnp.full((*unseen.shape[:2], COMPARED), -2, jnp.int32).at[:, 0].set(pending.history)
        node, agreement, old = self._recalled(state, pending, history, unseen)
        mixed = jnp.concatenate([blended(self.echo, log_q, old[:, :1], agreement[:, :1]), old[:, 1:]], axis=1)
        guessed, predicted = Guessed(jnp.broadcast_to(log_q, mixed.shape), old, agreement, mixed), None
        for _ in range(self.refine if self.settings.width > 1 else 0):
            tokens = first_argmax(guessed.mixed + noise)
            node, agreement, old = self._recalled(state, pending, _histories(pending, tokens), unseen)
            features = jnp.take_along_axis(state.memory.features, node[None, :, :-1, None], axis=2)
            stale, window = Stale(features, agreement[:, :-1] > 1), tokens[:, :-1]
            given = start.state, start.number, window, stale, predicted
            logits, predicted = self.drafter.refine(params, *given)
            all_q = jnp.concatenate([log_q, process_logits(logits, sampling)], axis=1)
            guessed = Guessed(all_q, old, agreement, blended(self.echo, all_q, old, agreement))
        return guessed, state

    def _recalled(self, state: LedState, pending: Pending, history: Int[Array, "B W H"], unseen):
        """Recalls a node for each place; returns it, its agreement, and what the target said there.

        Where there is none, agreement is 0 and the node is that of the last place that has one.
        """
        places = jnp.arange(self.settings.width, dtype=jnp.int32)[None]
        node, agreement = recalled(state.memory, history, pending.position[:, None] + places)
        node = jnp.take_along_axis(node, lax.cummax(jnp.where(agreement > 0, places, 0), axis=1), axis=1)
        return node, agreement, _said(state.memory, node, agreement, unseen)

    def in_context(self, state: LedState, pending: Pending, guessed: Guessed, noise, draft: Draft) -> Draft:
        """Guesses the nodes of a traced tree again, each after the tokens above it, with the q of its place."""
        topology = draft.topology
        place = jnp.minimum(topology.depth, self.settings.width - 1)[..., None]
        log_q, unseen = (jnp.take_along_axis(rows, place, axis=1) for rows in (guessed.log_q, guessed.old))
        positions = pending.position[:, None] + topology.depth
        node, agreement = recalled(state.memory, histories(draft, pending), positions)
        old = _said(state.memory, node, agreement, unseen)
        noise = jnp.take_along_axis(jnp.broadcast_to(noise, (len(place), *noise.shape[1:])), place, axis=1)
        width = min(topology.children.shape[-1], log_q.shape[-1])
        _, best = top_children(blended(self.echo, log_q, old, agreement) + noise, width)
        batch = jnp.arange(len(place), dtype=jnp.int32)[:, None, None]
        # Children that are not there fall off the end.
        below = jnp.where(topology.children < 0, topology.num_nodes, topology.children)[..., :width]
        return draft.replace(tokens=draft.tokens.at[batch, below].set(best, mode="drop"))


def _said(
    memory: Memory, node: Int[Array, "B M"], agreement: Int[Array, "B M"], unseen: Float[Array, "B M V"]
) -> Float[Array, "B M V"]:
    """Returns what the target said after recalled nodes; ``unseen`` where none was recalled."""
    old = jnp.take_along_axis(memory.log_probs, node[..., None], axis=1)
    return jnp.where((agreement > 0)[..., None], old, unseen)


def _histories(pending: Pending, tokens: Int[Array, "B W"]) -> Int[Array, "B W H"]:
    """Returns the last tokens before each place."""
    known = jnp.concatenate([pending.history[:, ::-1], tokens], axis=1)
    before = [known[:, COMPARED - 1 - step :][:, : tokens.shape[1]] for step in range(COMPARED)]
    return jnp.stack(before, axis=-1)


def led_window(drafter: Drafter, settings: Window, refine: int = 3, echo: Echo | None = None) -> Drafting:
    """Makes the drafting of a led window; its parameters are the drafter's.

    Args:
        drafter: one that can pass over a window (``Drafter.refine``).
        settings: the window; its ``redraw`` is None.
        refine: passes of the drafter over the window, 0 or more, besides the one that absorbs what was committed.
        echo: the mixture; None gives the library's own.

    Raises:
        LanternError: a window for ``Rejection``, or a drafter that cannot refine; when traced, the coupling
            ``Rejection``.

    Example:
        >>> from lantern_jax.drafters.eagle import eagle_drafter
        >>> from lantern_jax.drafters.sequence import DrafterConfig
        >>> config = DrafterConfig(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, grid=4)
        >>> drafter = eagle_drafter(config)
        >>> window = lantern_jax.draftings.Window(64, lantern_jax.DraftTree.window(8))
        >>> lantern_jax.draftings.led_window(drafter, window, refine=1).max_depth
        8
    """
    if settings.redraw is not None:
        raise LanternError("a led window needs the coupling gumbel: give a window without redraw")
    if drafter.refine is None:
        raise LanternError("this drafter cannot pass over a window: give it refine, or draft a tree with it")
    return _drafting_of(LedWindow(drafter, settings, refine, Echo() if echo is None else echo))


@lru_cache(MOST_RECORDS)
def _drafting_of(led: LedWindow) -> Drafting:
    settings = led.settings

    def propose(params, state: LedState, pending: Pending, draws, sampling):
        noise = window_noise(draws, settings)
        guessed, state = led.guess(params, state, pending, noise, sampling)
        draft = windows.window_draft(settings, pending.tokens[:, -1:], guessed.mixed + noise)
        if not settings.tree.is_static:
            draft = led.in_context(state, pending, guessed, noise, draft)
        return draft, state

    def observe(params, state: LedState, outcome: Outcome) -> LedState:
        return LedState(
            committed=state.committed.after(outcome),
            memory=remember(outcome, with_features=True),
            window=windows.observe_window(settings, state.window, outcome),
        )

    return Drafting(led.init, propose, observe, settings.width)


def window_noise(draws: Any, settings: Window) -> Float[Array, "#B W #V"]:
    """Returns the noise of a window's places, zeros when greedy; raises LanternError for draws of another coupling."""
    if isinstance(draws, Greedy):
        return jnp.zeros((1, settings.width, 1), jnp.float32)
    if not isinstance(draws, SharedNoise):
        raise LanternError(f"a led window was given {type(draws).__name__} as draws: decode it with gumbel")
    return draws.noise[:, : settings.width]


@dataclass(frozen=True)
class Led(GuessedWindow):
    """Guesses a window by the target's last pass and refines it with a drafter (ours).

    A window with nodes too, or more than 24 nodes, has a tree chosen in each round by the gaps of the race.

    Attributes:
        refine: passes of the drafter over the whole window.
        sharpness: beta of a tree by gaps: a guess is worth softmax(beta (log q' + g)).
        drafter: the kind of the checkpoint's drafter; None for its first.
        mixture: a and b of what the target said, for old nodes that agree in position, token, parent, grandparent too;
            fitted.

    Example:
        >>> lantern_jax.draftings.Led(nodes=25).tree
        GapTree(window=24, nodes=25, sharpness=2.83)
    """

    # Few nodes where each one costs, many where a pass costs no more than a step. By its compiler's account, a TPU v5e
    # is done with 32 nodes of LlamaGen-XL by the time it has read the weights (docs/scale.md).
    nodes: int | ByPlatform | None = whole(None, 1, 1024, otherwise=ByPlatform(7, 56, 25))
    refine: int | ByPlatform = whole(ByPlatform(1, 3), high=64)
    sharpness: float = field(2.83, SHARPNESS)
    drafter: str | None = field(None, Made("the kind of a drafter", str))
    mixture: Echo | None = field(None, MIXTURE, fitted=True, otherwise=Echo())
    couplings: ClassVar[tuple[str, ...]] = ("gumbel",)
    drafts: ClassVar[bool] = True

    @property
    def tree(self) -> DraftTree | GapTree:
        """The window's tree."""
        window, nodes = self.window, self.nodes
        if window is not None and nodes is not None:
            return GapTree(window, nodes, self.sharpness)
        if window is not None:
            return DraftTree.window(window, self.branches, min(self.levels, window))
        # Measured on the demo (docs/methods.md): a chain for few nodes, then a front; for many, a tree by gaps.
        if nodes <= 16:
            return DraftTree.window(nodes)
        if nodes <= 24:
            return DraftTree.window(nodes - 2, 3, 1)
        return GapTree(min(max(24, nodes * 5 // 7), MOST_PLACES), nodes, self.sharpness)

    def make(self, parts: ModelParts) -> Drafting:
        return led_window(parts.drafter, self.of(parts, None), self.refine, self.mixture)
