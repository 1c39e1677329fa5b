"""Records of drafters and their trees: one however it is asked for, so that compiled programs are found by it."""

import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import DraftTree, Rows, drafter_from_target, eagle, named_tree
from lantern_jax.families.drafters import DRAFTERS

from . import toy_models as toys


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_drafter_is_one_record_for_each_dtype(kind):
    config = toys.drafter_config(
        kind, **toys.CONFIG.shared_with_drafter, num_codes=toys.VOCAB, **toys.KIND_SIZES
    )
    make = DRAFTERS[kind].make
    assert make(config, jnp.float32) is make(config, np.dtype("float32")) is make(config=config)
    assert make(config, jnp.bfloat16) is not make(config)


def test_a_drafting_is_one_record_however_its_tree_is_written():
    drafter = toys.copy_drafter()
    assert (
        eagle(drafter, "chain") is eagle(drafter, named_tree("chain"), None) is eagle(drafter, tree="chain")
    )
    assert eagle(drafter, [[0], [0, 0]]) is eagle(drafter, DraftTree.chain(2))
    assert drafter_from_target(toys.llamagen()) is drafter_from_target(toys.llamagen(), conditioning=None)


def test_rows_that_wait_for_whole_rows_are_the_same():
    assert Rows(16, 20) == Rows(16, 16)
