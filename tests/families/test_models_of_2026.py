"""GLM-Image, X-Omni and Emu3.5 decode as others do: by any window, on meshes, in refilled slots, from a beginning."""

from functools import cache

import jax
import numpy as np
import pytest

from lantern_jax.decoding.completion import Completion
from lantern_jax.decoding.drafting.window import INITIALS
from tests import meshes
from tests.engine.test_refill import assert_same, refilled, unrefilled

WINDOW = "jacobi:window=5"
METHODS = (
    *(f"{WINDOW},initial={initial}" for initial in INITIALS[:-1]), f"{WINDOW},branches=3,levels=2",
    "led:window=4,drafter=eagle", "echo",
)  # fmt: skip


# Equality of each family with plain decoding is tested beside its conversion.
pytestmark = pytest.mark.exhaustive
families = pytest.mark.parametrize("name", ("glm_image", "x_omni", "emu3_5"))


@cache
def decoded(name: str, method: str, data: int = 1, model: int = 1):
    return meshes.decoded(name, data, model, method=method)


def assert_plain(made, name: str) -> None:
    np.testing.assert_array_equal(made.tokens, decoded(name, "ar").tokens)
    assert made.accepted[:, 1:].sum() > 4, "nothing is accepted: the test sees plain decoding"


@families
def test_a_mesh_changes_no_token(name):
    assert_plain(decoded(name, WINDOW, 2, 4), name)


@families
@pytest.mark.parametrize("method", METHODS)
def test_guesses_change_no_token(name, method):
    assert_plain(decoded(name, method), name)


@families
def test_slots_are_refilled(name):
    engine, job = meshes.engine(name, 1, 1), meshes.job(name, method=WINDOW)
    prompts = meshes.prompts(name, 6)

    def rows(numbers):
        return jax.tree.map(lambda leaf: leaf[np.asarray(numbers)], prompts)

    assert_same(refilled(engine, job, rows, 6), unrefilled(engine, job, rows, 6))


@families
def test_a_pictures_own_beginning_is_completed_to_the_same_picture(name):
    """A row and a half are given, or a preview and half a picture."""
    engine, job, whole = (
        meshes.engine(name, 1, 1),
        meshes.job(name, method=WINDOW),
        decoded(name, "ar").tokens,
    )
    given = 264 if name == "glm_image" else 7
    run = engine.start(job, Completion(meshes.prompts(name, 4), whole[:, :given]), seed=3)
    np.testing.assert_array_equal(engine.finish(engine.advance(run)).tokens, whole)
