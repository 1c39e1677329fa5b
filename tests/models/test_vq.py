"""The VQ tokenizer: published values, shapes, sizes and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.families.chameleon.weights import VQGAN, convert_vqgan
from lantern_jax.families.llamagen.weights import LLAMAGEN, convert_vq
from lantern_jax.families.vq_weights import vq_config_from_shapes, vq_table
from lantern_jax.models.vq import (
    VQConfig,
    VQModel,
    depth_to_space,
    l2_normalize,
    nearest_code,
    space_to_depth,
)
from tests.fixtures.published_shapes import CHAMELEON_VQ, VQ_8, VQ_16
from tests.golden_cases import DEFAULT_DIRECTORY, read_case
from tests.refused import refused
from tests.tiny_checkpoint import random_parameters

TINY = VQConfig(
    ch=8, ch_mult=(1, 2), z_channels=8, codebook_size=16, codebook_dim=4, encoder_blocks=1, decoder_blocks=1,
    groups=4, patch=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    model = VQModel(TINY)
    return model, random_parameters(model, 0, 0.2, jnp.zeros((1, 8, 8, 3)))


def test_sizes_are_found_in_the_tensors():
    """A count of used codes may be among them. (The values are a golden case.)"""
    tensors = read_case(DEFAULT_DIRECTORY / "llamagen_vq.json").tensors
    config, _ = convert_vq({**tensors, "quantize.codebook_used": np.zeros(3)})
    assert config == convert_vq(tensors)[0] == VQConfig(32, None, (1, 2), 32, 64)


def test_vqgan_tensors_all_matter():
    case = read_case(DEFAULT_DIRECTORY / "chameleon_vqgan.json")
    training = {"loss.discriminator.main.0.weight": np.zeros(1), "loss.logvar": np.zeros(())}
    config, params = convert_vqgan({**case.tensors, **training}, jnp.bfloat16)
    assert config == VQConfig(32, None, (1, 2), 32, 64, 32, l2_norm=False, level_attention=False)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    # The decoder's levels are counted from the coarsest, the published ones from the finest.
    coarsest = case.tensors["decoder.up.1.block.2.conv1.bias"].astype(jnp.bfloat16)
    np.testing.assert_array_equal(params["decoder"]["level_0"]["res_2"]["conv1"]["bias"], coarsest)
    for tensors, convert in ((case.tensors, convert_vq), ({}, convert_vqgan)):
        with refused("missing or misshapen: "):
            convert(tensors)


@pytest.mark.parametrize(
    ("config", "layout", "parameters"),
    [(VQ_16, LLAMAGEN, 72), (VQ_8, LLAMAGEN, 70), (CHAMELEON_VQ, VQGAN, 69)],
)
def test_published_sizes_from_shapes(config, layout, parameters):
    table = vq_table(config, layout)
    shapes = {name: jax.ShapeDtypeStruct(entry.shape, jnp.float32) for name, entry in table.items()}
    assert vq_config_from_shapes(shapes, layout) == config
    assert round(sum(np.prod(entry.shape) for entry in table.values()) / 1e6) == parameters


def test_grid_is_row_major(tiny):
    model, variables = tiny
    pictures = np.random.default_rng(1).uniform(-1, 1, (2, 8, 16, 3)).astype(np.float32)

    @jax.jit
    def made(variables, pictures):
        z = model.apply(variables, pictures, method="encode")
        codes = model.apply(variables, z, method="quantize")
        decoded = VQModel(TINY, (2, 4)).apply(variables, codes, method="decode")
        return z, codes, decoded, model.apply(variables, pictures)

    z, codes, decoded, whole = made(variables, pictures)
    assert z.shape == (2, 2, 4, 4)
    assert codes.shape == (2, 8) and codes.dtype == jnp.int32
    one = nearest_code(z[1, 1, 2], variables["params"]["codebook"])
    assert codes[1, 1 * 4 + 2] == one
    assert decoded.shape == pictures.shape
    np.testing.assert_allclose(decoded, whole, rtol=1e-5, atol=1e-5)


def test_nearest_code_is_nearest_with_ties_to_the_lowest():
    codebook = jnp.array([[0.0, 2.0], [3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    z = jnp.array([[0.1, 5.0], [1.9, 0.0], [-0.2, 0.1]])
    np.testing.assert_array_equal(nearest_code(z, codebook), [0, 1, 3])
    np.testing.assert_array_equal(nearest_code(z, codebook, l2_norm=False), [0, 1, 3])
    np.testing.assert_array_equal(nearest_code(jnp.array([[0.9, 1.0]]), codebook, l2_norm=False), [0])
    assert jnp.all(jnp.isfinite(jax.grad(lambda x: l2_normalize(x).sum())(jnp.zeros(3))))


def test_space_to_depth_folds_blocks_in_reading_order():
    picture = jnp.arange(16.0).reshape(1, 4, 4, 1)
    folded = space_to_depth(picture, 2)
    expected = [[[0, 1, 4, 5], [2, 3, 6, 7]], [[8, 9, 12, 13], [10, 11, 14, 15]]]
    np.testing.assert_array_equal(folded, [expected])
    np.testing.assert_array_equal(depth_to_space(folded, 2), picture)


def test_errors_are_one_line(tiny):
    model, variables = tiny
    for message, call in {
        "groups": lambda: VQConfig(ch=8, groups=32),
        "ch_mult": lambda: VQConfig(ch_mult=()),
        "codebook_size": lambda: VQConfig(codebook_size=0),
        "9": lambda: model.apply(variables, jnp.zeros((1, 9, 8, 3)), method="encode"),
        "5": lambda: model.apply(variables, jnp.zeros((1, 5), jnp.int32), method="decode"),
    }.items():
        with refused(message):
            call()
