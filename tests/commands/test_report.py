"""What ``lantern generate`` says of two runs, and of a drafter that does not suit its model."""

from dataclasses import replace

from lantern_jax.apps.commands.report import _comparison, weak_drafter
from lantern_jax.engine.generation import Statistics
from tests.tiny_checkpoint import tiny_pipeline


def test_a_ratio_below_the_tokens_per_pass_is_explained():
    plain = Statistics(1, 16, 15, 1.0, 1.0, 0, 0, 16, 0, 0, (15,))
    ours = Statistics(1, 16, 6, 2.5, 1.25, 0, 0, 12, 0, 0, (2, 2, 2), speedup=0.8, same_tokens=1.0)
    passes, seconds, why = _comparison(ours, plain)
    assert passes.startswith("6 passes in place of 15;")
    assert seconds == "1.25 s in place of 1.00 s on this machine: 0.80 times as fast"
    assert why.startswith("a pass that checks guesses takes 3.12 times as long as a plain one here;")
    as_expected = replace(ours, speedup=2.5)
    assert len(list(_comparison(as_expected, plain))) == 2


def test_a_drafter_that_guesses_nothing_is_pointed_out():
    def settings(method):
        return tiny_pipeline().settings({"method": method})

    for method in ("eagle", "led"):
        assert "1.03 tokens per pass: check that it was made" in weak_drafter(settings(method), 1.03, 300)
        assert weak_drafter(settings(method), 1.2, 300) is None
        assert weak_drafter(settings(method), 1.0, 15) is None
    assert not any(weak_drafter(settings(method), 1.0, 300) for method in ("ar", "jacobi", "zipar"))
