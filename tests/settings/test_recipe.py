"""What a model decodes with: the parts of a job."""

import numpy as np
import pytest

from lantern_jax.decoding.methods import AUTO, METHODS
from lantern_jax.decoding.rules.near import Near
from lantern_jax.settings.recipe import Recipe
from tests.tiny_checkpoint import TARGET, drafters, tiny_checkpoint

KINDS = {kind: config for kind, (config, _) in drafters().items()}
RECIPE = Recipe(TARGET, KINDS, np.dtype(np.float32), {"guidance": 2.0}, tiny_checkpoint().codebook)


def settings(method, **options):
    return RECIPE.settings({"method": method, **options}, "cpu")


@pytest.mark.parametrize("name", [name for name in METHODS if name != AUTO])
def test_programs_are_found_by_the_method(name):
    """However it is given; the numbers of a rule are arguments of its program, which needs no other for them."""
    first, again = RECIPE.job(settings(name)), RECIPE.job(settings(settings(name).method))
    assert first.program == again.program and first.made_from == again.made_from
    drafting = settings(name).drafting
    assert first.drafter == (drafting.drafter if drafting.drafts else None)
    if settings(name).coupling == settings("near").coupling and drafting.verifies:
        other = RECIPE.job(settings(name, rule=Near(tau=3.0)))
        assert other.program == first.program
    plain = RECIPE.job(settings(name), plain=True)
    assert plain.program == RECIPE.job(settings("ar")).program and plain.guidance == 2
