"""Models of published sizes with random weights, made where they are used: measuring the engine needs no download.

Axes: n prompts, P prefix length, F caption feature width, V codes, K neighbours, C channels of a code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import Sharding
from jaxtyping import Array, PyTree

from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.devices.partition import Where, format_at, sharding_at
from lantern_jax.drafters.registry import DRAFTERS, usual_drafters
from lantern_jax.engine.programs import Parameters
from lantern_jax.families.llamagen.model import published_config
from lantern_jax.families.registry import FAMILIES, TargetConfig, family_of
from lantern_jax.io import errors
from lantern_jax.models.quantization import SCALE, is_fixed, quantized_shapes
from lantern_jax.settings.recipe import Recipe

_CODE_CHANNELS, _NEIGHBOURS = 8, 100
_SPREAD = 0.02


def published_sizes() -> dict[str, Callable[[], TargetConfig]]:
    """Returns the published sizes of all families, by name."""
    return {name: size for family in FAMILIES.values() for name, size in family.sizes.items()}


# Pixels per code along a side, unless a tokenizer says otherwise.
_PIXELS = 16
# For checking that everything runs, not for measuring.
TINY = "tiny"
# Appended to a size: the target's layers in eight bits.
INT8 = "-int8"


@dataclass(frozen=True)
class RandomModel:
    """A target and drafters of one size, without values yet.

    Attributes:
        name: the size's name.
        config: the target's config.
        drafters: configs by kind.
        quantized: whether the target's layers are in eight bits.
    """

    name: str
    config: TargetConfig
    drafters: Mapping[str, Any]
    quantized: bool = False

    def read(self, dtype: np.dtype, where: Where) -> Parameters:
        """Makes the target's parameters and a codebook, as ``Engine`` asks for them."""
        shapes = family_of(self.config).shapes(self.config)
        shapes = quantized_shapes(shapes) if self.quantized else shapes
        target = random_parameters(shapes, 0, dtype, where)
        whole = sharding_at(where, ("codebook",), ())
        codebook = jax.jit(_codebook, static_argnums=0, out_shardings=whole)(self.config.num_codes)
        return Parameters(target, codebook=codebook)

    def read_drafter(self, dtype: np.dtype, name: str, parameters: Parameters, where: Where) -> PyTree:
        """Makes the parameters of a kind of drafter, with the target's head."""
        drafter = random_parameters(DRAFTERS[name].shapes(self.drafters[name]), 1, dtype, where)
        return {"drafter": drafter, "head": family_of(self.config).head(parameters.target)}

    def recipe(self, dtype: Any) -> Recipe:
        """Returns what it decodes with, with shapes in place of the codebook that ``read`` makes."""
        codebook = jax.eval_shape(partial(_codebook, self.config.num_codes))
        return Recipe(self.config, self.drafters, np.dtype(dtype), codebook=codebook)

    def conditioning(self, count: int) -> PyTree:
        """Returns the conditioning of ``count`` different prompts: leaves [n, ...], of labels, captions or tokens."""
        return family_of(self.config).random_conditioning(self.config, count)


def random_model(size: str) -> RandomModel:
    """Returns a model of a published size, with a drafter of every kind that has a usual config.

    Args:
        size: its name; with "-int8" after it, the target's layers are in eight bits.

    Raises:
        LanternError: an unknown size.
    """
    named = size.removesuffix(INT8)
    if named == TINY:
        config = replace(published_config("B"), dim=64, num_layers=1, num_heads=2, vocab_size=256, grid=6)
    elif named in (sizes := published_sizes()):
        config = sizes[named]()
    else:
        raise errors.unknown("size", size, sizes)
    return RandomModel(size, config, usual_drafters(config), quantized=named != size)


def pixels_a_cell(config: TargetConfig) -> int:
    """Returns the pixels per code along a side, as the family's published tokenizer or decoder draws it."""
    tokenizer = family_of(config).tokenizer()
    return getattr(config, "code_pixels", _PIXELS) if tokenizer is None else tokenizer.downsampling


def random_parameters(shapes: PyTree, seed: int, dtype: np.dtype, where: Where) -> PyTree:
    """Makes random arrays of these shapes on the devices in ``dtype``: norms 1, biases 0, the rest small and normal.

    None of them is ever on the host or in another dtype. Integers of eight bits and their scales keep their own dtypes.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    # This generator is by far the fastest on every device; different devices may make different numbers.
    key = jax.random.key(seed, impl="rbg")
    made = []
    for number, (path, leaf) in enumerate(leaves):
        make = _maker(format_at(where, path, leaf.shape))
        kept = leaf.dtype if is_fixed(path, leaf.dtype) else jnp.dtype(dtype)
        made.append(make(jax.random.fold_in(key, number), str(path[-1].key), leaf.shape, kept))
    return jax.tree_util.tree_unflatten(structure, made)


@cache
def _maker(where: Sharding | Format) -> Callable:
    return jax.jit(_random_leaf, static_argnums=(1, 2, 3), out_shardings=where)


def _random_leaf(key, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    if dtype == jnp.int8:
        return jax.random.bits(key, shape, jnp.uint8).astype(jnp.int8)
    if name == SCALE:
        # So that the products are as large as those of other weights.
        return jnp.full(shape, _SPREAD / np.iinfo(np.int8).max * np.sqrt(3), dtype)
    if name in ("scale", "bias"):
        return jnp.full(shape, float(name == "scale"), dtype)
    return jax.random.normal(key, shape, dtype) * jnp.asarray(_SPREAD, dtype)


def _codebook(codes: int) -> Codebook:
    """Makes a codebook for relaxed rules with arbitrary codes as neighbours: reading them costs the same."""
    count = min(_NEIGHBOURS, codes - 1)
    # Never the code itself, nor another one twice.
    steps = 1 + np.arange(count, dtype=np.int32) * ((codes - 1) // count)
    neighbours = (jnp.arange(codes, dtype=jnp.int32)[:, None] + steps[None]) % codes
    return Codebook(neighbours, jax.random.normal(jax.random.key(2), (codes, _CODE_CHANNELS), jnp.float32))
