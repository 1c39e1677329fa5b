"""How much memory decoding takes, counted for shapes."""

import jax
import numpy as np
import pytest

from lantern_jax.commands.main import main
from lantern_jax.families.registry import family_of
from lantern_jax.measuring import fit
from tests.command import assert_refused

CHAIN = {"method": "gumbel", "tree": "chain"}


@pytest.fixture(scope="module")
def shapes():
    return fit.size_shapes("tiny", "float32")


@pytest.fixture(scope="module")
def job(shapes):
    return shapes.job(CHAIN)


def test_the_account_is_of_arrays_that_are_there(shapes, job):
    """Parameters and caches are what their shapes say; a batch of twice the pictures keeps twice the state."""
    two, four = fit.memory(shapes, job, 2), fit.memory(shapes, job, 4)
    config, drafter = shapes.recipe.config, shapes.recipe.drafters["eagle"]
    of_drafter = jax.tree.leaves(fit.DRAFTERS["eagle"].shapes(drafter))
    values = sum(leaf.size for leaf in [*jax.tree.leaves(family_of(config).shapes(config)), *of_drafter])
    assert two.parameters == four.parameters == 4 * values
    # Keys and values of both guidance rows, for the prefix and every token, in target and drafter at least.
    slots = 2 * 2 * (config.num_layers + 1) * config.dim * (1 + config.num_tokens)
    assert 4 * 2 * slots <= two.state <= 2 * 4 * 2 * slots
    np.testing.assert_allclose(four.state, 2 * two.state, rtol=0.02)
    assert 0 < two.working < four.working


def test_the_largest_batch_fits_and_its_double_does_not(monkeypatch):
    """Also where the first guess, by two small batches, is too high or too low."""

    def needs(working):
        monkeypatch.setattr(fit, "memory", lambda shapes, job, n: fit.Need(n, 1000, 100 * n, working(n)))

    def found(limit):
        return fit.largest(None, None, limit).pictures

    for working in (lambda n: 10 * n, lambda n: n * n, lambda n: 300 if n < 8 else 40 * n, lambda n: 0):
        needs(working)
        for pictures in (1, 2, 8, 64, fit.MOST):
            total = fit.memory(None, None, pictures).total
            assert found(total) == pictures
            assert pictures == 1 or found(total - 1) == pictures // 2
    assert found(1e9) == fit.MOST
    assert found(10) == 1, "one picture, which does not fit"


def test_the_command_compiles_for_a_size_and_reads_nothing(capsys):
    assert main(["info", "--fit", "1", "--size", "tiny", "--methods", "ar", "--dtype", "float32"]) == 0
    printed = capsys.readouterr().out
    assert "in 1 GB" in printed and f"{fit.MOST}" in printed


@pytest.mark.parametrize(("arguments", "line"), [
    (["--fit", "nan"], "--fit nan is not valid"), (["--fit", "8", "--size", "huge"], "unknown size 'huge'"),
    (["--fit", "8", "--size", "tiny", "demo"], "--size tiny takes no checkpoint"),
    (["--fit", "8", "--methods", "owl"], "unknown method 'owl'"),
    (["--fit", "8", "--size", "tiny", "--methods", "medusa"], "medusa"), (["--size", "tiny"], "--size is for --fit"),
    (["--fit", "8", "--verify"], "--verify reads a checkpoint's files"), (["nowhere", "--fit", "8"], "nowhere"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")  # fmt: skip
def test_bad_input_is_one_line(arguments, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert line in assert_refused(["info", *arguments], capsys)
