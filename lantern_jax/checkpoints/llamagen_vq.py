"""LlamaGen's published VQ tokenizers to `VQModel` parameters.

Tensor names: `encoder.conv_blocks.{l}.res.{b}`, `.attn.{b}`, `.downsample.conv`, `encoder.mid.{0,1,2}`, the
same for the decoder with `.upsample.conv`, `quant_conv`, `post_quant_conv`, `quantize.embedding.weight`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.checkpoints.strict import Entry, convolution, identity, read_tensors
from lantern_jax.models.vq import VQConfig, VQModel

IGNORED = ("quantize.codebook_used",)


def _published_name(path: tuple[str, ...]) -> str:
    """The published name of a parameter of `VQModel`."""
    if path == ("codebook",):
        return "quantize.embedding.weight"
    parts = []
    for part in path[:-1]:
        kind, _, number = part.rpartition("_")
        if kind == "level":
            parts += ["conv_blocks", number]
        elif kind in ("res", "attn"):
            parts += [kind, number]
        elif part in ("downsample", "upsample"):
            parts += [part, "conv"]
        else:
            parts.append(part)
    leaf = "bias" if path[-1] == "bias" else "weight"
    return ".".join((*parts, leaf))


def vq_shapes(config: VQConfig) -> dict[str, Any]:
    """The abstract parameter tree of a tokenizer: what ``VQModel(config).init`` makes, as shapes."""
    side = config.downsampling
    pictures = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    return jax.eval_shape(VQModel(config).init, jax.random.key(0), pictures)


def vq_table(config: VQConfig) -> dict[str, Entry]:
    """{published name: Entry} of a tokenizer of these sizes."""
    table = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(vq_shapes(config)["params"])[0]:
        path = tuple(key.key for key in keys)
        shape, transform = leaf.shape, identity
        if path[-1] == "kernel":
            height, width, inputs, outputs = leaf.shape
            shape, transform = (outputs, inputs, height, width), convolution
        table[_published_name(path)] = Entry(path, tuple(shape), transform)
    return table


def vq_config_from_shapes(tensors: Mapping[str, Any]) -> VQConfig:
    """The sizes of a published tokenizer, from the names and shapes of its tensors (anything with `.shape`).

    What shapes do not tell is as published: 32 groups, l2-normalised codes. Raises ValueError where a tensor
    that decides a size is missing or has too few dimensions.
    """
    decisive = {
        "encoder.conv_in.weight": 4,
        "encoder.conv_out.weight": 4,
        "decoder.conv_out.weight": 4,
        "quantize.embedding.weight": 2,
        "encoder.conv_blocks.0.res.0.conv2.weight": 4,
        "decoder.conv_blocks.0.res.0.conv2.weight": 4,
    }
    levels = _count(tensors, r"encoder\.conv_blocks\.(\d+)\.")
    widths = [f"encoder.conv_blocks.{i}.res.0.conv2.weight" for i in range(levels)]
    decisive |= {name: 4 for name in widths}
    wrong = [
        name for name, ndim in decisive.items() if name not in tensors or len(tensors[name].shape) != ndim
    ]
    if wrong:
        raise ValueError(
            f"these tensors are not a LlamaGen VQ tokenizer: missing or misshapen: {', '.join(wrong)}; "
            "give a published VQ checkpoint"
        )
    ch = tensors["encoder.conv_in.weight"].shape[0]
    patch = max(1, math.isqrt(tensors["encoder.conv_in.weight"].shape[1] // 3))
    codebook_size, codebook_dim = tensors["quantize.embedding.weight"].shape
    decoder_ch = tensors["decoder.conv_out.weight"].shape[1]
    return VQConfig(
        ch=ch,
        decoder_ch=None if decoder_ch == ch else decoder_ch,
        ch_mult=tuple(max(1, tensors[name].shape[0] // ch) for name in widths),
        z_channels=tensors["encoder.conv_out.weight"].shape[0],
        codebook_size=codebook_size,
        codebook_dim=codebook_dim,
        encoder_blocks=_count(tensors, r"encoder\.conv_blocks\.0\.res\.(\d+)\."),
        decoder_blocks=_count(tensors, r"decoder\.conv_blocks\.0\.res\.(\d+)\."),
        level_attention=_count(tensors, r"encoder\.conv_blocks\.\d+\.attn\.(\d+)\.") > 0,
        mid_attention=any(name.startswith("encoder.mid.1.") for name in tensors),
        patch=patch,
    )


def _count(names: Mapping[str, Any], pattern: str) -> int:
    """One more than the largest number that `pattern` finds at the start of a name; 0 where there is none."""
    return max((int(found[1]) + 1 for name in names if (found := re.match(pattern, name))), default=0)


def convert_vq(
    tensors: Mapping[str, np.ndarray], config: VQConfig | None = None
) -> tuple[VQConfig, dict[str, Any]]:
    """(sizes, `VQModel` parameters as float32 NumPy arrays) of a published tokenizer's tensors.

    `config` None finds the sizes from the shapes. Raises ValueError, one line listing all missing, unexpected
    and misshapen tensors.
    """
    config = vq_config_from_shapes(tensors) if config is None else config
    params = read_tensors(tensors, vq_table(config), what="LlamaGen VQ tokenizer", ignored=IGNORED)
    return config, params
