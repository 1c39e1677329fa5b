"""Ids, masks and prompts that a model would silently misread are refused before any work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lantern_jax
from lantern_jax import TokenConditioning
from lantern_jax.decoding.completion import Completion
from lantern_jax.families.llamagen.model import CaptionConditioning, LlamaGenConfig
from lantern_jax.families.registry import target_of
from tests.decoding import toy_models as toys
from tests.models.test_applied import KEYS, LENGTH, PROMPTS, SIZES, foreign_model, foreign_params
from tests.refused import refused

KNOWN = lantern_jax.target_from_apply(foreign_model, **SIZES, vocab_size=30)
LABELS = toys.conditioning(3)
TOKENS = np.asarray(PROMPTS.tokens)


def completed(tokens):
    return toys.llamagen(), toys.target_params(), Completion(LABELS, tokens)


def of_lumina(given=None, **changes):
    target, params, prompts = toys.lumina(3)
    prompts = prompts.replace(**changes)
    return target, params, prompts if given is None else Completion(prompts, given)


def foreign(tokens=TOKENS, mask=None):
    return KNOWN, foreign_params(), tokens if mask is None else TokenConditioning(tokens, mask)


def labelled(labels):
    return toys.llamagen(), toys.target_params(), labels


def captions(lengths):
    config = LlamaGenConfig(16, 1, 2, vocab_size=32, grid=5, caption_dim=8, caption_length=4)
    mask = np.arange(4)[None] < np.array(lengths)[:, None]
    return (
        target_of(config),
        {},
        CaptionConditioning(jnp.zeros((3, 4, 8)), mask),
    )


RIGHT = np.array([[True, True, True], [True, True, False], [True, True, True]])
FLOATS, ADDED = TOKENS.astype(np.float32), np.where(RIGHT, 0, -np.inf).astype(np.float32)
REFUSED = {
    "prompt 1 ends in padding on the right": lambda: foreign(mask=RIGHT),
    "prompt 2 ends in padding on the right": lambda: of_lumina(mask=jnp.arange(12).reshape(3, 4) < 11),
    "prompt 1 ends in padding on the right: pad on the left": lambda: captions([4, 2, 4]),
    "of float32: give bool": lambda: foreign(mask=ADDED),
    r"the mask has shape \(3, 2\)": lambda: foreign(mask=RIGHT[:, :2]),
    "ids of prompts are float32": lambda: foreign(FLOATS),
    "labels are float32": lambda: labelled(LABELS.astype(jnp.float32)),
    r"conditioning\[0\]\[0\] has shape \(\) for 3 keys": lambda: foreign(TOKENS.tolist()),
    r"prompts have shape \(3,\): give ids \[B, P\]": lambda: foreign(TOKENS[:, 0]),
    "ids of prompts are 0 to 30: give 0 to 29": lambda: foreign(np.where(TOKENS == 5, 30, TOKENS)),
    "ids of prompts are -1 to 5": lambda: foreign(np.where(TOKENS == 0, -1, TOKENS)),
    "give 0 to 19": lambda: of_lumina(tokens=toys.lumina(3)[2].tokens + 3),
    "labels are 6 to 8: give 0 to 5": lambda: labelled(LABELS + 6),
    "labels have shape": lambda: labelled(LABELS[:, :0]),
    "given tokens are 31 to 32: give 0 to 31": lambda: completed(jnp.array([[31, 32]] * 3)),
    "given tokens are float32": lambda: completed(jnp.full((3, 2), 1.5)),
    # A row has four codes and then its end.
    "given token 4 is not 12": lambda: of_lumina(given=np.full((3, 6), 3)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_inputs_that_would_be_misread_are_refused(message):
    with refused(message):
        lantern_jax.autoregressive_decode(*REFUSED[message](), KEYS)


def test_traced_inputs_are_left_alone_except_for_their_dtypes():
    """So a program may be traced, exported or mapped; dtypes are known even then."""

    def tokens(conditioning):
        return lantern_jax.autoregressive_decode(KNOWN, foreign_params(), conditioning, KEYS).tokens

    assert jax.eval_shape(tokens, TokenConditioning(TOKENS, RIGHT)).shape == (3, LENGTH)
    with pytest.raises(ValueError, match="ids of prompts are float32"):
        jax.eval_shape(tokens, TOKENS.astype(np.float32))
    # The ids are known, but not which of them are padding.
    jax.eval_shape(lambda mask: tokens(TokenConditioning(TOKENS - 1, mask)), RIGHT)


def test_ids_at_padding_are_not_read():
    mask = np.asarray(PROMPTS.mask)
    given = [foreign(np.where(mask, TOKENS, other).astype(np.int32), mask) for other in (0, 10**6)]
    made = [lantern_jax.autoregressive_decode(*one, KEYS).tokens for one in given]
    np.testing.assert_array_equal(*made)
    with refused("active is int32: give bool"):
        lantern_jax.autoregressive_decode(*foreign(), KEYS, active=np.array([0, 1, 2], np.int32))


CHAIN = lantern_jax.DraftTree.chain(2)


def verified(tokens):
    draft = lantern_jax.Draft(tokens, CHAIN)
    lantern_jax.verify_tree(
        draft, jnp.zeros((1, 3, 4)), lantern_jax.couplings.Greedy(), coupling=lantern_jax.couplings.Gumbel()
    )


def neighbours(table):
    lantern_jax.verify_tree(
        lantern_jax.Draft(jnp.array([[0, 2, 1]], jnp.int32), CHAIN), jnp.zeros((1, 3, 3)),
        lantern_jax.couplings.Greedy(), coupling=lantern_jax.couplings.Gumbel(), rule="lantern",
        codebook=lantern_jax.Codebook(table, jnp.zeros((3, 2))),
    )  # fmt: skip


def slots(number):
    """Prefills with ``number`` slots."""
    KNOWN.prefill(foreign_params(), TOKENS, None, number)


PARTS = {
    "draft tokens are 1 to 4: give 0 to 3": lambda: verified(jnp.array([[-1, 4, 1]], jnp.int32)),
    "draft tokens are float32": lambda: verified(jnp.zeros((1, 3))),
    "the neighbour table holds float32": lambda: neighbours(jnp.zeros((3, 20))),
    "slots are float64: give whole numbers": lambda: slots(8.0),
    "vocab_size and num_tokens are float64": lambda: lantern_jax.Target(None, None, None, 24, 20.0),
    r"tokens have shape \(3,\): give batch x 3 tree nodes, under vmap tokens\[None\]": lambda: jax.vmap(
        verified
    )(jnp.zeros((5, 3), jnp.int32)),
    "values that are not finite": lambda: lantern_jax.nearest_codes(jnp.array([[0.0], [jnp.nan], [1.0]]), 1),
}


@pytest.mark.parametrize("message", PARTS)
def test_the_parts_of_a_users_own_loop_refuse_them_too(message):
    with pytest.raises(ValueError, match=message):
        PARTS[message]()
