"""Windows, led ones too: past forced tokens, and what is refused (tokens: test_equality.py, laws: test_laws.py)."""

import numpy as np
import pytest

from lantern_jax import DraftTree
from lantern_jax.draftings import Drafter, GapTree, Window, jacobi, led_window
from tests.cases import exhaustive

from . import toy_models as toys

CHAIN, SIDEWAYS = DraftTree.chain(6), DraftTree.from_paths([(0,), (1,), (1, 0)])


def of_chain(redraw, coupling):
    toys.decode(jacobi(toys.VOCAB, 6, redraw), name="chain", coupling=coupling)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coupling", "redraw"),
    [exhaustive("gumbel", None), ("rejection", "maximal")],
)
def test_a_window_reaches_past_row_ends(coupling, redraw):
    target = toys.lumina(toys.BATCH)[0]
    decoded = toys.decode(jacobi(12, 6, redraw), name="lumina", coupling=coupling)
    assert decoded.finite.all() and int(decoded.substituted.sum()) == 0
    ends = target.forced >= target.vocab_size
    assert ends.sum() == 5
    np.testing.assert_array_equal(decoded.tokens[:, ends], np.tile(target.forced[ends], (toys.BATCH, 1)))
    codes = decoded.tokens[:, ~ends]
    assert codes.min() >= 0 and codes.max() < target.vocab_size
    # Some round commits codes of two rows, with the row end between them.
    rounds, before = decoded.round_of_token, np.flatnonzero(ends[:-2])
    assert (rounds[:, before - 1] == rounds[:, before + 1]).any()
    # Forced tokens are not counted: free places hold the first token, accepted tokens and free bonus tokens.
    bonus = (target.forced < 0).sum() - 1 - decoded.accepted @ np.arange(7)
    assert (bonus <= decoded.rounds).all() and (bonus >= decoded.rounds - ends.sum()).all()


REFUSED = {
    "redraw None was given Streams as draws: decode it with .* 'gumbel'": lambda: of_chain(None, "rejection"),
    "redraw 'maximal' was given SharedNoise .* 'rejection'": lambda: of_chain("maximal", "gumbel"),
    "window 0 is not valid: give a whole number from 1 to 64": lambda: jacobi(12, window=0),
    "window 2.5 is not valid: give a whole number from 1 to 64": lambda: jacobi(12, 2.5),
    "a gap tree needs a led window: give it to led_window": lambda: jacobi(12, GapTree(6, 8)),
    "unknown initial 'below': choose one of left, random, preview": lambda: jacobi(12, initial="below"),
    "initial 'preview' needs a model that samples a preview first": lambda: jacobi(12, initial="preview"),
    "unknown redraw 'new': choose one of independent, maximal, shared": lambda: jacobi(12, 4, "new"),
    "levels 5 is not valid: give a whole number from 0 to 4 .no more": lambda: DraftTree.window(4, 2, 5),
    "branches 0 is not valid: give a whole number from 1 to 4096": lambda: DraftTree.window(4, 0),
    "the tree has no path of best guesses as long as any other": lambda: jacobi(12, SIDEWAYS),
    "a led window needs the coupling gumbel": lambda: led_window(
        toys.copy_drafter(), Window(toys.VOCAB, CHAIN, "maximal")
    ),
    "this drafter cannot pass over a window": lambda: led_window(Drafter(print, print, print), Window(12, CHAIN)),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_windows_that_do_not_fit_are_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()
