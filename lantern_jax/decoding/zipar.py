"""ZipAR: decoding the rows of a picture in parallel (arXiv 2412.04062). Not lossless.

A code depends mostly on the codes around it, so a row begins once the row above is ``window`` codes ahead, and all rows
that have begun advance together: the rows form a *staircase*. A sampled code is final, although the rest of the row
above was missing when it was sampled.

A pass feeds the last known code of each row. A row's first code follows the end of the row above. If that end is forced
(a row end), it is fed; if it is a code that is not known yet, the last code of the nearest finished row stands in for
it or, while no row is finished, the newest code of the row above (ours; the paper does not say). When a row is
finished, its end is fed again, forced tokens included, and replaces the stand-in (the published code feeds the last
code alone). The places of a pass see each other in raster order. Token i still reads the noise g(i), and with a window
of a row or more nothing is missing: the tokens are plain decoding's.

The staircase alone therefore determines what every place sees, and in which pass it would be fed at one code per row;
that is the ``Schedule`` here. ``staircase`` runs it, and may guess several codes of each row in a pass: the result is
the same.

Axes: H rows, M places of the schedule, C places of the longest row, T stream tokens, N places of a pass.
"""

from dataclasses import MISSING, dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int

from lantern_jax.decoding.drafting.guessing import Guessing, ModelParts
from lantern_jax.decoding.fields import ByPlatform, check_fields, whole
from lantern_jax.decoding.protocols import MOST_RECORDS, Drafting, Target
from lantern_jax.decoding.stream import Stream
from lantern_jax.io.errors import LanternError

NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Rows:
    """The rows of a picture, the delay between them, and how far each is guessed ahead; static.

    Attributes:
        width: the number of codes in a row.
        window: s, how many codes a row must be ahead of the next one; ``width`` or more is plain decoding. The paper
            uses 16, its code for LlamaGen 8.
        guesses: how many codes of every row are guessed in a pass and then tested (the windows of PJD, arXiv
            2606.05703, on the shared noise). They change the number of passes, but no token.

    Raises:
        LanternError: a width or window below 1, guesses below 0.

    Example:
        >>> from lantern_jax.families.llamagen.model import published_config
        >>> from lantern_jax.families.registry import target_of
        >>> target = target_of(published_config("B"))
        >>> lantern_jax.draftings.Rows(width=16, window=8).schedule(target).passes  # of 256 tokens, without guesses
        135
    """

    width: int = whole(MISSING, 1)
    window: int = whole(16, 1)
    guesses: int = whole(0)

    def __post_init__(self):
        check_fields(self)
        # Longer windows do the same, so they are the same record: compiled programs are found by it.
        object.__setattr__(self, "window", min(self.window, self.width))

    def schedule(self, target: Target) -> "Schedule":
        """Returns the tables for a target's stream; raises LanternError unless the stream is made of such rows."""
        return _schedule(self, target.num_tokens, target.forced_tokens)

    def places(self, target: Target) -> int:
        """Returns the most places of a row in a pass: guesses after the last known code, and after a row's end."""
        return self.guesses + Stream(target).longest

    def slots(self, target: Target, drafting: Drafting) -> int:
        """Returns how many rows of keys the cache must hold; raises LanternError for a drafting that guesses."""
        if drafting.max_depth:
            raise LanternError("rows in parallel leave nothing to draft: give no drafting, or rows=None")
        schedule = self.schedule(target)
        # A commit writes as many rows as a pass can have places.
        return schedule.none + schedule.active * self.places(target)


class Schedule(NamedTuple):
    """All places of a staircase; entry M stands for none.

    Attributes:
        position: int32 [M + 1], stream position of a place.
        source: int32 [M + 1], position of the token that is fed there.
        made: int32 [M + 1], position of the token that it makes; T where it makes none.
        number: int32 [M + 1], the pass that would feed it without guesses, counted from 1.
        until: int32 [M + 1], the first such pass whose places no longer see it, because another place has replaced it.
        above: int32 [M + 1], how many other places must be right for it to be right: those up to its position and its
            pass.
        chain: int32 [H, C], the places of each row in order, padded with M.
        lengths: int32 [H], the number of places in each row.
        passes: the number of passes after prefill, without guesses.
        active: the most rows that advance together.
    """

    position: Int[np.ndarray, " M+1"]
    source: Int[np.ndarray, " M+1"]
    made: Int[np.ndarray, " M+1"]
    number: Int[np.ndarray, " M+1"]
    until: Int[np.ndarray, " M+1"]
    above: Int[np.ndarray, " M+1"]
    chain: Int[np.ndarray, "H C"]
    lengths: Int[np.ndarray, " H"]
    passes: int
    active: int

    @property
    def none(self) -> int:
        """M."""
        return len(self.position) - 1


class Place(NamedTuple):
    """The first four fields of a place."""

    position: int
    source: int
    made: int
    number: int


@lru_cache(MOST_RECORDS)
def _schedule(rows: Rows, total: int, forced: tuple[int, ...] | None) -> Schedule:
    """Makes the tables.

    The passes that make the codes of 3 rows of 4, with a window of 2; prefill makes code 0 of row 0:

        row 0    0 1 2 3
        row 1        2 3 4 5        pass 2 makes code 0: the end of row 0 is not known, and has a stand-in
        row 2            4 5 6 7    pass 4 feeds the end of row 0 again, pass 6 the end of row 1
    """
    grid = _grid(rows, total, forced)
    height, width = grid.shape
    begins = np.arange(height) * rows.window
    ends, chains = begins + width, []
    for row, (codes, number) in enumerate(zip(grid, begins, strict=True)):
        chain = [Place(codes[i - 1], codes[i - 1], codes[i], number + i) for i in range(1, width)]
        if row and ends[row - 1] != number:
            # The first code comes before the row above is finished.
            before = source = codes[0] - 1
            if before == grid[row - 1, -1]:
                finished = np.flatnonzero(ends[:row] <= number)
                newest = grid[row - 1, number - 1 - begins[row - 1]]
                source = grid[finished[-1], -1] if finished.size else newest
            chain.insert(0, Place(before, source, codes[0], number))
        if row + 1 < height:
            # A finished row's end is fed again; its last token makes the next row's first code if that row begins now.
            first, follows = grid[row + 1, 0], begins[row + 1] == ends[row]
            for at in range(codes[-1], first):
                chain.append(Place(at, at, first if follows and at + 1 == first else total, ends[row]))
        chains.append(chain)
    return _tables(chains, total, passes=int(ends[-1]) - 1, active=min(width // rows.window + 1, height))


def _grid(rows: Rows, total: int, forced: tuple[int, ...] | None) -> Int[np.ndarray, "H W"]:
    """Returns the stream positions of the codes; raises LanternError unless they are unbroken rows."""
    free = np.arange(total) if forced is None else np.flatnonzero(np.asarray(forced) < 0)
    grid = free.reshape(-1, rows.width) if free.size % rows.width == 0 else None
    if grid is None or np.any(np.diff(grid, axis=1) != 1):
        raise LanternError(
            f"a stream of {free.size} free tokens is not made of unbroken rows of {rows.width}: give its row length"
        )
    return grid


def _tables(chains: list[list[Place]], total: int, passes: int, active: int) -> Schedule:
    lengths = np.array([len(chain) for chain in chains], np.int32)
    # A stream of one code has no place: prefill makes its only token.
    places = np.array([place for chain in chains for place in chain], np.int32).reshape(-1, 4)
    position, number = places[:, 0], places[:, 3]
    until = np.full(len(places), NEVER, np.int32)
    # Of two places at one position, the later replaces the earlier.
    order = np.lexsort((number, position))
    twice = np.flatnonzero(np.diff(position[order]) == 0)
    until[order[twice]] = number[order[twice + 1]]
    above = np.array([np.sum((position <= at) & (number <= when)) - 1 for at, _, _, when in places], np.int32)
    chain = np.full((len(chains), max(1, lengths.max())), len(places), np.int32)
    chain[np.arange(chain.shape[1])[None] < lengths[:, None]] = np.arange(len(places))
    none = np.array([[NEVER, 0, total, NEVER]], np.int32)
    return Schedule(
        *np.concatenate([places, none]).T, np.append(until, np.int32(0)), np.append(above, np.int32(NEVER)),
        chain, lengths, passes, active,
    )  # fmt: skip


@dataclass(frozen=True)
class ZipAR(Guessing):
    """Decodes rows of the picture in parallel (ZipAR, arXiv 2412.04062); not lossless.

    Attributes:
        ahead: codes that a row is ahead of the next one. The paper uses 16, its code for LlamaGen 8.
        guesses: codes guessed in each row, which change the number of passes but no token.

    Example:
        >>> str(lantern_jax.Method(lantern_jax.draftings.ZipAR(ahead=4)))
        'zipar:ahead=4 strict gumbel'
    """

    ahead: int = whole(8, 1)
    guesses: int | ByPlatform = whole(ByPlatform(0, 7), high=64)
    verifies: ClassVar[bool] = False

    def make(self, parts: ModelParts) -> Rows:
        """Implements ``Guessing.make``: returns the rows instead of a drafting."""
        return Rows(parts.columns, self.ahead, self.guesses)
