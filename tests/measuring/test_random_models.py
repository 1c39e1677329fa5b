"""Models of published sizes with random weights: every method finds its drafter, and only what is needed is made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from lantern_jax.apps.measuring.random_models import published_sizes, random_model
from lantern_jax.apps.measuring.shapes import batch_inputs, size_shapes
from lantern_jax.decoding.methods import METHODS
from lantern_jax.drafters.registry import DRAFTERS, misfits
from lantern_jax.families.registry import family_of
from tests.cases import exhaustive

# One of each family with layers of its own; the others are exhaustive.
FEW = ("llamagen-xl", "chameleon-7b", "janus-pro-1b")


@pytest.mark.parametrize("size", ["llamagen-b", "llamagen-xl-stage2", "chameleon-7b"])
def test_prompts_fit_a_published_size(size):
    """Shapes alone."""
    model = random_model(size)
    shapes = family_of(model.config).shapes(model.config)
    target = family_of(model.config).target(model.config, jnp.dtype("bfloat16"))
    rows = model.conditioning(2)
    prefill = lambda params, rows: target.prefill(params, rows, jnp.ones(2), 9)  # noqa: E731
    _, logits, _ = jax.eval_shape(prefill, shapes, rows)
    assert logits.shape == (2, model.config.num_codes)


@pytest.mark.parametrize(
    "size",
    [size if size in FEW else exhaustive(size) for size in published_sizes()],
)
def test_every_method_has_its_drafter_at_a_published_size(size):
    shapes = size_shapes(size, "bfloat16")
    config, drafters = shapes.recipe.config, shapes.recipe.drafters
    assert list(drafters) == list(DRAFTERS)
    assert [misfits(drafter, config) for drafter in drafters.values()] == [[]] * len(drafters)
    jobs = {}
    for platform in ("cpu", "gpu", "tpu"):
        for method in METHODS:
            settings = shapes.recipe.settings({"method": method}, platform)
            job = shapes.recipe.job(settings)
            assert job.drafter == settings.drafting.drafter, method
            jobs[job.drafter] = job
    assert set(jobs) == {None, *DRAFTERS}
    for drafter, job in jobs.items():
        assert (batch_inputs(shapes, job, 1).drafting_params is None) == (drafter is None)


def test_random_parameters_are_made_on_the_device_in_their_dtype():
    model, where = random_model("tiny"), SingleDeviceSharding(jax.devices()[3])
    parameters = model.read(jnp.dtype("bfloat16"), where)
    leaves = jax.tree_util.tree_leaves_with_path(parameters.target)
    assert {leaf.dtype.name for _, leaf in leaves} == {"bfloat16"}
    assert {device for _, leaf in leaves for device in leaf.devices()} == {jax.devices()[3]}
    for path, leaf in leaves:
        values, scale = np.asarray(leaf, np.float32), path[-1].key == "scale"
        assert values.std() == pytest.approx(0 if scale else 0.02, rel=0.2)
        assert abs(values.mean() - scale) < 0.002
    again = model.read(jnp.dtype("bfloat16"), where)
    jax.tree.map(np.testing.assert_array_equal, parameters.target, again.target)
    table = np.asarray(parameters.codebook.neighbours)
    assert all(len(set(row)) == len(row) and number not in row for number, row in enumerate(table))
    drafter = model.read_drafter(jnp.dtype("bfloat16"), "eagle", parameters, where)
    assert drafter["head"] is parameters.target["params"]["head"]["kernel"]
