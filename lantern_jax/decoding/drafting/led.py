"""A window led by a drafter, ours: the drafter helps with the nearest places, the target's last pass guesses all.

A Jacobi window (``jacobi``) remembers what the target's last pass said of every coming position, and distant positions
are refined by several passes before they come near. What it lacks is the effect of the tokens just chosen, which a
drafter knows. So the first ``reach`` guesses are drawn one by one from a mixture (``echo``) of the drafter's q after
the guesses before them and the window's p, weighted by whether p stands after those same guesses. Later places cost no
pass of the drafter. Coupling ``Gumbel``; strict decoding is plain decoding.

Axes: B batch, W window, N nodes (root included), F places with several guesses, V codes.
"""

from functools import cache
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.drafting.eagle import Committed, Drafter, catch_up
from lantern_jax.decoding.drafting.jacobi import (
    Window,
    WindowState,
    coming,
    init_window,
    observe_window,
    spines,
    window_draft,
)
from lantern_jax.decoding.drafting.windows import window_of
from lantern_jax.decoding.echo import Echo, blended
from lantern_jax.decoding.gumbel import Greedy, SharedNoise
from lantern_jax.decoding.protocols import Drafting, Outcome, Pending, Target
from lantern_jax.decoding.sampling import first_argmax, process_logits
from lantern_jax.io.errors import LanternError


@flax.struct.dataclass
class LedState:
    """What a led window carries from round to round.

    Attributes:
        committed: the drafter's part.
        window: the last round's.
        told: int32 [B, W + 1], the tokens that ``window.log_p`` stands after, the round's root first.
    """

    committed: Committed
    window: WindowState
    told: Int[Array, "B W+1"]


@cache
def led_window(drafter: Drafter, settings: Window, reach: int = 4, echo: Echo | None = None) -> Drafting:
    """Makes the drafting of a led window; its parameters are the drafter's.

    Args:
        settings: the window; its ``redraw`` is None.
        reach: places that the drafter helps with, 1 or more, a pass of it each; at most the window's.
        echo: the mixture; None is the library's.

    Raises:
        LanternError: a window for ``Rejection``, or a reach below 1; when traced, the coupling ``Rejection``.

    Example:
        >>> config = lantern_jax.DrafterConfig(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, grid=4)
        >>> drafter = lantern_jax.eagle_drafter(config)
        >>> window = lantern_jax.Window(64, lantern_jax.DraftTree.window(8))
        >>> lantern_jax.led_window(drafter, window, reach=2).max_depth
        8
    """
    if settings.redraw is not None:
        raise LanternError("a led window needs the coupling gumbel: give a window without redraw")
    if reach < 1:
        raise LanternError(f"reach {reach} is not valid: give 1 or more")
    reach, echo = min(reach, settings.width), Echo() if echo is None else echo

    def init(params, prefix, slots, span) -> LedState:
        chain = span - 1 - settings.width
        committed = Committed.begin(drafter, params, prefix, slots, span, chain + reach - 1)
        window = init_window(settings, params, prefix, slots, span)
        return LedState(
            committed, window, jnp.full((len(committed.count), settings.width + 1), -1, jnp.int32)
        )

    def propose(params, state: LedState, pending: Pending, draws, sampling):
        committed, (walked, logits, node) = catch_up(drafter, params, state.committed, pending)
        log_q, is_new = coming(settings, state.window, pending.position)
        told, noise = _told(state, pending.position), _noise(draws, settings)
        token, parents_agree = pending.tokens[:, -1], jnp.ones(len(log_q), bool)
        for depth in range(reach):
            agrees = told[:, depth] == token
            agreement = jnp.where(agrees, jnp.where(parents_agree, 3, 2), 1)
            agreement = jnp.where(is_new[:, depth], 0, agreement)
            both = blended(echo, process_logits(logits, sampling), log_q[:, depth], agreement)
            log_q = log_q.at[:, depth].set(both)
            token, parents_agree = first_argmax(both + noise[:, depth]), agrees
            if depth + 1 < reach:
                walked, logits = drafter.expand(params, walked, token[:, None], node[:, None])
                logits, node = logits[:, 0], jnp.full_like(node, pending.tokens.shape[1] + depth)
        draft = window_draft(settings, pending.tokens[:, -1:], log_q + noise)
        window = state.window.replace(position=pending.position)
        return draft, state.replace(committed=committed, window=window)

    def observe(params, state: LedState, outcome: Outcome) -> LedState:
        rows = jnp.asarray(spines(settings.tree))[outcome.verdict.path[:, -1]]
        return LedState(
            committed=state.committed.after(outcome),
            window=observe_window(settings, params, state.window, outcome),
            told=jnp.take_along_axis(outcome.draft.tokens, rows, axis=1),
        )

    return Drafting(init, propose, observe, settings.width)


def _told(state: LedState, position: Int[Array, " B"]) -> Int[Array, "B W"]:
    """Returns the token that the window's distribution of each place stands after."""
    width = state.told.shape[1] - 1
    places = (position - state.window.position)[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
    return jnp.take_along_axis(state.told, jnp.minimum(places, width), axis=1)


def _noise(draws: Any, settings: Window) -> Float[Array, "B W V"]:
    if isinstance(draws, Greedy):
        return jnp.zeros((1, settings.width, 1), jnp.float32)
    if not isinstance(draws, SharedNoise):
        raise LanternError(f"a led window was given {type(draws).__name__} as draws: decode it with gumbel")
    return draws.noise[:, : settings.width]


def from_settings(settings: Any, target: Target, grid: int, drafter: Drafter) -> Drafting:
    """Returns the drafting that ``Settings`` describe, as ``DraftingKind.make``."""
    return led_window(drafter, window_of(settings, target, grid), settings.reach, Echo.of(settings.mixture))
