"""A window led by a drafter: plain decoding's tokens, in fewer passes than either alone."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.jacobi import Window, drafting_of
from lantern_jax.decoding.drafting.led import led_window
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys

BATCH = 8
TREES = {"chain": DraftTree.chain(6), "bushy": DraftTree.window(6, 2, 2)}
FORCED = tuple(3 if i % 6 == 5 else -1 for i in range(29))


def window(name: str, vocab: int, redraw=None) -> Window:
    return Window(vocab, TREES[name], redraw, "left", None)


@cache
def decode(kind, temperature=1.0, guided=True, noise=0.7, devices=1):
    """``kind``: "plain", "eagle", "jacobi", or a led window by the name of its tree."""
    target, params, conditioning = toys.llamagen(), toys.target_params(), toys.conditioning(BATCH)
    common = {
        "guidance": jnp.full(BATCH, 2.5) if guided else None,
        "sampling": SamplingParams.create(temperature),
        "mesh": None if devices == 1 else jax.make_mesh((devices,), ("data",)),
    }
    given = target, params, conditioning, toys.sequence_keys(0, BATCH)
    if kind == "plain":
        return autoregressive_decode(*given, **common)
    drafter = toys.noisy_drafter(target)
    drafting = {
        "eagle": lambda: eagle(drafter, DraftTree.chain(6)),
        "jacobi": lambda: drafting_of(window("chain", target.vocab_size)),
    }.get(kind, lambda: led_window(drafter, window(kind, target.vocab_size), 3))()
    drafting_params = None if kind == "jacobi" else toys.noisy_params(params, conditioning, noise)
    return speculative_decode(*given, drafting=drafting, drafting_params=drafting_params, **common)


@pytest.mark.parametrize("name", TREES)
def test_strict_decoding_is_plain_decoding(name):
    greedy = [(0.0, 0.7)] if name == "bushy" else []
    for temperature, noise in ((1.0, 0.7), (1.0, 1e3), *greedy):
        expected = decode("plain", temperature).tokens
        np.testing.assert_array_equal(decode(name, temperature, noise=noise).tokens, expected)


def test_strict_decoding_is_plain_decoding_on_eight_devices():
    np.testing.assert_array_equal(decode("bushy", devices=8).tokens, decode("plain").tokens)


@pytest.mark.exhaustive
def test_strict_decoding_is_plain_decoding_unguided():
    np.testing.assert_array_equal(decode("chain", guided=False).tokens, decode("plain", guided=False).tokens)


def test_forced_tokens():
    vocab, length = 12, len(FORCED)
    target, params = toys.markov_target(vocab, length, FORCED), toys.markov_params(vocab)
    given = target, params, jnp.zeros((BATCH, 1)), toys.sequence_keys(1, BATCH)
    led = speculative_decode(
        *given, drafting=led_window(toys.noisy_drafter(target), window("bushy", vocab), 3),
        drafting_params=toys.noisy_params(params, jnp.zeros((BATCH, 1)), 0.7),
    )  # fmt: skip
    np.testing.assert_array_equal(led.tokens, autoregressive_decode(*given).tokens)
    assert int(led.rounds.max()) < length - 6


def test_it_takes_fewer_passes_than_either_alone():
    rounds = {kind: int(decode(kind, noise=0.6).rounds.sum()) for kind in ("chain", "eagle", "jacobi")}
    assert rounds["chain"] < 0.97 * min(rounds["eagle"], rounds["jacobi"]), rounds


def test_what_does_not_fit_is_refused():
    drafter = toys.noisy_drafter(toys.llamagen())
    with pytest.raises(ValueError, match="a led window needs the coupling gumbel"):
        led_window(drafter, window("chain", toys.VOCAB, "maximal"))
    with pytest.raises(ValueError, match="reach 0 is not valid"):
        led_window(drafter, window("chain", toys.VOCAB), 0)
