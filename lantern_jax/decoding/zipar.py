"""ZipAR: rows of a picture in parallel (arXiv 2412.04062). Not lossless.

A code depends mostly on those around it, so a row begins once the row above is ``window`` codes ahead, and a pass makes
one code of every row that has begun. Nothing is guessed or refused: what is sampled stands, although the rest of the
row above was missing. Which pass makes which code is known beforehand and the same for all sequences, so a round looks
its nodes up in a table.

A pass feeds the last known code of each row. A row's first code follows the end of the row above: where that is forced
(a row end) it is fed; where it is a code not known yet, the last code of the nearest finished row stands in, and while
none is finished the newest code of the row above (ours; the paper does not say). When a row is finished its end is fed
again, forced tokens included, and replaces the stand-in (the published code feeds the last code alone). Nodes of a pass
see each other in raster order. Token i still reads the noise g(i), and with a window of a row or more nothing is
missing: the tokens are plain decoding's.

Axes: B batch, P passes after prefill, N nodes of the busiest pass, T stream tokens, S cache slots, V vocabulary.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from lantern_jax.decoding import contracts
from lantern_jax.decoding.protocols import Drafting, Target
from lantern_jax.decoding.sampling import gumbel_argmax, gumbel_noise, process_logits
from lantern_jax.decoding.stream import Stream
from lantern_jax.io.errors import LanternError

_FOREVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Rows:
    """The rows of a picture and their delay; static.

    Attributes:
        width: codes of a row.
        window: s, codes that a row must be ahead of the next one; ``width`` or more is plain decoding. The paper uses
            16, LlamaGen's code 8.

    Raises:
        LanternError: a width or window below 1.

    Example:
        >>> target = lantern_jax.llamagen_target(lantern_jax.published_config("B"))
        >>> lantern_jax.Rows(width=16, window=8).schedule(target).passes  # of 256 tokens
        135
    """

    width: int
    window: int = 16

    def __post_init__(self):
        for name in ("width", "window"):
            value = getattr(self, name)
            if value < 1 or int(value) != value:
                raise LanternError(f"{name} {value} is not valid: give a whole number >= 1")

    def schedule(self, target: Target) -> "Schedule":
        """Returns the tables of a target's stream; raises LanternError unless it is made of such rows."""
        return _schedule(self, target.num_tokens, target.forced_tokens)

    def slots(self, target: Target, drafting: Drafting) -> int:
        """Returns the rows of keys that the cache must hold; raises LanternError for a drafting that guesses."""
        if drafting.max_depth:
            raise LanternError("rows in parallel leave nothing to draft: give no drafting, or rows=None")
        return len(self.schedule(target).slot_position)


class Schedule(NamedTuple):
    """What every pass does, as constant tables; row t - 1 belongs to pass t.

    Attributes:
        position: int32 [P, N], stream position of each node; existing ones come first.
        source: int32 [P, N], position of the token that is fed there.
        made: int32 [P, N], position of the token that the node makes; T where it makes none.
        count: int32 [P], nodes of the pass.
        before: int32 [P], nodes of earlier passes: the length of the cache.
        known: int32 [P], stream tokens known after the pass.
        pass_of_token: int32 [T], the pass that makes a token, 0 for prefill; a forced one as the token before it.
        slot_position: int32 [S], stream position of each row of the cache.
        slot_until: int32 [S], the pass from which it is replaced.
    """

    position: Int[np.ndarray, "P N"]
    source: Int[np.ndarray, "P N"]
    made: Int[np.ndarray, "P N"]
    count: Int[np.ndarray, " P"]
    before: Int[np.ndarray, " P"]
    known: Int[np.ndarray, " P"]
    pass_of_token: Int[np.ndarray, " T"]
    slot_position: Int[np.ndarray, " S"]
    slot_until: Int[np.ndarray, " S"]

    @property
    def passes(self) -> int:
        """P."""
        return len(self.count)


class Node(NamedTuple):
    """A place of a pass: its stream position, the position of the token fed there, and of the token it makes."""

    position: int
    source: int
    made: int


@cache
def _schedule(rows: Rows, total: int, forced: tuple[int, ...] | None) -> Schedule:
    """Makes the tables.

    The passes that make the codes of 3 rows of 4, with a window of 2; prefill makes code 0 of row 0:

        row 0    0 1 2 3
        row 1        2 3 4 5        pass 2 makes code 0: what ends row 0 is not known, and has a stand-in
        row 2            4 5 6 7    pass 4 feeds the end of row 0 again, pass 6 the end of row 1
    """
    grid = _grid(rows, total, forced)
    height, width = grid.shape
    begins = np.arange(height) * min(rows.window, width)
    ends = begins + width
    made_at = np.zeros(total, np.int32)
    made_at[grid] = begins[:, None] + np.arange(width)
    is_free = np.zeros(total, bool)
    is_free[grid] = True
    for position in np.flatnonzero(~is_free):
        made_at[position] = made_at[position - 1]

    def row_end(row: int, number: int) -> list[Node]:
        """Feeds the end of a finished row again; the last of it makes the next row's first code if it begins now."""
        first = grid[row + 1, 0]
        positions = range(grid[row, -1], first)
        follows = begins[row + 1] == number
        return [Node(at, at, at + 1 if follows and at + 1 == first else total) for at in positions]

    def stand_in(row: int, number: int) -> Node:
        """Makes a row's first code before the row above is finished."""
        position = source = grid[row, 0] - 1
        if is_free[position]:
            finished = np.flatnonzero(ends[:row] <= number)
            source = grid[finished[-1], -1] if finished.size else grid[row - 1, number - 1 - begins[row - 1]]
        return Node(position, source, grid[row, 0])

    passes, slots, stands_at = [], [], {}
    for number in range(1, int(ends[-1])):
        nodes = []
        for row in range(height):
            column = number - begins[row]
            if row + 1 < height and number == ends[row]:
                for node in row_end(row, number):
                    if node.position in stands_at:
                        slots[stands_at[node.position]][1] = number
                    nodes.append(node)
            if 0 < column < width:
                nodes.append(Node(grid[row, column - 1], grid[row, column - 1], grid[row, column]))
            elif column == 0 and row and ends[row - 1] > number:
                nodes.append(stand_in(row, number))
                stands_at[nodes[-1].position] = len(slots) + len(nodes) - 1
        slots += [[node.position, _FOREVER] for node in nodes]
        passes.append(nodes)
    return _tables(passes, slots, made_at, total)


def _grid(rows: Rows, total: int, forced: tuple[int, ...] | None) -> Int[np.ndarray, "H W"]:
    """Returns the stream positions of the codes; raises LanternError unless they are unbroken rows."""
    free = np.arange(total) if forced is None else np.flatnonzero(np.asarray(forced) < 0)
    grid = free.reshape(-1, rows.width) if free.size % rows.width == 0 else None
    if grid is None or np.any(np.diff(grid, axis=1) != 1):
        raise LanternError(
            f"a stream of {free.size} free tokens is not made of unbroken rows of {rows.width}: give its row length"
        )
    return grid


def _tables(passes, slots, made_at, total) -> Schedule:
    count = np.array([len(nodes) for nodes in passes], np.int32)
    width = int(count.max(initial=1))
    padded = [[*nodes, *(Node(0, 0, total),) * (width - len(nodes))] for nodes in passes]
    nodes = np.array(padded, np.int32).reshape(len(passes), width, 3)
    known = np.sum(made_at[None] <= np.arange(1, len(passes) + 1)[:, None], axis=1)
    # A commit writes as many rows as a pass can have nodes.
    table = np.array([*slots, *((total, 0),) * width], np.int32)
    return Schedule(
        *(nodes[..., i] for i in range(3)),
        count,
        (np.cumsum(count) - count).astype(np.int32),
        known.astype(np.int32),
        made_at,
        table[:, 0],
        table[:, 1],
    )


def decode_pass(program, stream: Stream, inputs, state):
    """Runs one pass over every sequence: a round of ``loop.advance``, whose arguments it takes."""
    target, sampling, decoded = program.target, inputs.sampling, state.decoded
    schedule, total = program.rows.schedule(target), stream.length
    running = state.length < total
    number = jnp.minimum(decoded.rounds, schedule.passes - 1)

    def now(table):
        return jnp.asarray(table)[number]

    position, count, made = now(schedule.position), now(schedule.count), now(schedule.made)
    with jax.named_scope("score"):
        there = jnp.arange(position.shape[1], dtype=jnp.int32)[None] < count[:, None]
        tokens = jnp.where(there, jnp.take_along_axis(decoded.tokens, now(schedule.source), axis=1), 0)
        logits, _, block = contracts.run_score(
            target, inputs.target_params, state.cache, tokens, position - now(schedule.before)[:, None],
            _ancestors(position, there), _visible(schedule, position, number + 1),
        )  # fmt: skip
    with jax.named_scope("sample"):
        noise = None
        if not sampling.greedy:
            noise = gumbel_noise(inputs.keys, jnp.minimum(made, total - 1), target.vocab_size)
        drawn = gumbel_argmax(process_logits(logits, sampling), noise)
        makes = (made < total) & running[:, None]
        sound = jnp.all(jnp.isfinite(jnp.max(logits, axis=-1)) | ~makes, axis=1)
    with jax.named_scope("commit"):
        path = jnp.broadcast_to(jnp.arange(position.shape[1], dtype=jnp.int32)[None], position.shape)
        cache = target.commit(state.cache, block, path, jnp.where(running, count, 0))
        batch = jnp.arange(len(running), dtype=jnp.int32)[:, None]
        fresh = (jnp.asarray(schedule.pass_of_token)[None] == number[:, None] + 1) & running[:, None]
        rounds = decoded.rounds + running.astype(jnp.int32)
        decoded = decoded.replace(
            tokens=decoded.tokens.at[batch, jnp.where(makes, made, total)].set(drawn, mode="drop"),
            rounds=rounds,
            accepted=decoded.accepted.at[:, 0].add(running.astype(jnp.int32)),
            round_of_token=jnp.where(fresh, rounds[:, None], decoded.round_of_token),
            finite=decoded.finite & sound,
        )
    length = jnp.where(running, jnp.where(sound, now(schedule.known), jnp.int32(total)), state.length)
    return state.replace(decoded=decoded, length=length, cache=cache)


def _ancestors(position: Int[Array, "B N"], there: Bool[Array, "B N"]) -> Bool[Array, "B N N"]:
    """Tells which nodes of a pass a node sees: the earlier ones in the stream, and itself."""
    before = (position[:, None, :] <= position[:, :, None]) & there[:, None, :]
    return before | np.eye(position.shape[1], dtype=bool)[None]


def _visible(
    schedule: Schedule, position: Int[Array, "B N"], number: Int[Array, " B"]
) -> Bool[Array, "B N S"]:
    """Tells which rows of the cache a node sees; the cache itself hides rows not written yet."""
    before = jnp.asarray(schedule.slot_position)[None, None] < position[:, :, None]
    return before & (jnp.asarray(schedule.slot_until)[None, None] > number[:, None, None])


def from_settings(settings: Any, target: Target, grid: int, drafter: None) -> Rows:
    """Returns the rows that ``Settings`` describe, as ``DraftingKind.make``."""
    return Rows(grid, settings.ahead)
