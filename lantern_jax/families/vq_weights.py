"""Converts published VQ tokenizers to `VQModel` parameters: what the families' layouts of them share.

Several have the tensor names of taming-transformers: `encoder.down.{l}.block.{b}`, `.downsample.conv`,
`encoder.mid.{block_1,attn_1,block_2}`, `decoder.up.{l}.block.{b}`, `.upsample.conv`, where the decoder's levels are
numbered like the encoder's, finest first.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lantern_jax.models.vq import VQConfig, vq_shapes
from lantern_jax.tensors.layer_names import deciding_shapes, one_more
from lantern_jax.tensors.matching import Entry, module_table, published_name, read_tensors

# Levels, and blocks of a level: published tokenizers have five of the one and two or three of the other.
_MOST_PARTS = 64


@dataclasses.dataclass(frozen=True)
class VQLayout:
    """How a family of published tokenizers names its tensors, and what their shapes do not show.

    `place` gives the published place of a module of `VQModel`: (its path, the number of levels) -> dotted name.
    `ignored` are patterns of names that are not weights of the tokenizer. `stored` changes the entry of a tensor that
    is published in another form. `by_product` is as in `VQConfig`.
    """

    what: str
    place: Callable[[tuple[str, ...], int], str]
    l2_norm: bool
    ignored: tuple[str, ...]
    stored: Callable[[Entry], Entry] = lambda entry: entry
    by_product: bool = False

    def name(self, path: tuple[str, ...], levels: int = 0) -> str:
        """Returns the published name of a parameter of `VQModel`. Names of the encoder do not depend on `levels`."""
        if path == ("codebook",):
            return "quantize.embedding.weight"
        return published_name(self.place(path[:-1], levels), path[-1])


_MIDDLE = {"0": "block_1", "1": "attn_1", "2": "block_2"}


def taming_place(
    path: tuple[str, ...],
    levels: int,
    *,
    level: tuple[str, str] = ("down", "up"),
    block: str = "block",
    middle: Mapping[str, str] = _MIDDLE,
    coarsest_first: bool = False,
) -> str:
    """Returns the place of a module in taming-transformers' names, or in similar ones.

    Args:
        level, block, middle: words for a level of the encoder and of the decoder, for a residual block, and for the
            parts of the middle.
        coarsest_first: whether the decoder's levels are numbered like ours.
    """
    parts = []
    for part in path:
        kind, _, number = part.rpartition("_")
        if kind == "level":
            decoder = path[0] == "decoder"
            turned = decoder and not coarsest_first
            parts += [level[decoder], str(levels - 1 - int(number)) if turned else number]
        elif kind in ("res", "attn"):
            parts += [block if kind == "res" else kind, number]
        elif part in ("downsample", "upsample"):
            parts += [part, "conv"]
        else:
            parts.append(middle.get(part, part))
    return ".".join(parts)


def vq_table(config: VQConfig, layout: VQLayout) -> dict[str, Entry]:
    """Lists {published name: Entry} of a tokenizer of these sizes."""
    levels = len(config.ch_mult)
    shapes = vq_shapes(config)["params"]
    table = module_table(shapes, lambda path: layout.name(tuple(path.split(".")), levels))
    return {name: layout.stored(entry) for name, entry in table.items()}


def vq_config_from_shapes(tensors: Mapping[str, Any], layout: VQLayout) -> VQConfig:
    """Infers the sizes of a published tokenizer from the names and shapes of its tensors (anything with `.shape`).

    What shapes do not show is as published: 32 groups, and whether codes are l2-normalized. Raises ValueError if a
    tensor that decides a size is missing, has another number of dimensions, or is empty.
    """

    def count(*path: str, levels: int = 0) -> int:
        """Counts a module by the numbers at # in its published names; 0 where there is none."""
        pattern = re.escape(layout.place(path, levels)).replace(r"\#", r"(\d+)") + r"\."
        return one_more((found[1] for name in tensors if (found := re.match(pattern, name))), _MOST_PARTS)

    levels = count("encoder", "level_#")
    conv_in = layout.name(("encoder", "conv_in", "kernel"))
    conv_out = layout.name(("encoder", "conv_out", "kernel"))
    decoder_out = layout.name(("decoder", "conv_out", "kernel"))
    codebook = layout.name(("codebook",))
    widths = [
        layout.name(("encoder", f"level_{i}", "res_0", "conv2", "kernel")) for i in range(max(1, levels))
    ]
    decoder_block = layout.name(("decoder", "level_0", "res_0", "conv2", "kernel"), max(1, levels))
    decisive = {name: 4 for name in (conv_in, conv_out, decoder_out, *widths, decoder_block)} | {codebook: 2}
    deciding_shapes(tensors, decisive, layout.what)
    ch = tensors[conv_in].shape[0]
    codebook_size, codebook_dim = tensors[codebook].shape
    decoder_ch = tensors[decoder_out].shape[1]
    return VQConfig(
        ch=ch,
        decoder_ch=None if decoder_ch == ch else decoder_ch,
        ch_mult=tuple(max(1, tensors[name].shape[0] // ch) for name in widths),
        z_channels=tensors[conv_out].shape[0],
        codebook_size=codebook_size,
        codebook_dim=codebook_dim,
        l2_norm=layout.l2_norm,
        encoder_blocks=count("encoder", "level_0", "res_#"),
        decoder_blocks=count("decoder", "level_0", "res_#", levels=levels),
        level_attention=count("encoder", f"level_{levels - 1}", "attn_#") > 0,
        mid_attention=layout.name(("encoder", "mid", "1", "q", "kernel")) in tensors,
        patch=max(1, math.isqrt(tensors[conv_in].shape[1] // 3)),
        code_norm=layout.name(("decoder", "norm_out", "norm_layer", "scale")) in tensors,
        clip_blocks=count("encoder_clip", "res_#"),
        by_product=layout.by_product,
    )


def read_vq(
    tensors: Mapping[str, Any], dtype: Any = np.float32, *, layout: VQLayout
) -> tuple[VQConfig, dict[str, Any]]:
    """Converts a published tokenizer's tensors; returns (sizes, `VQModel` parameters as NumPy arrays of `dtype`).

    Raises ValueError, one line listing all missing, unexpected and misshapen tensors.
    """
    config = vq_config_from_shapes(tensors, layout)
    ignored = [name for name in tensors if any(re.fullmatch(pattern, name) for pattern in layout.ignored)]
    table = vq_table(config, layout)
    return config, read_tensors(tensors, table, what=layout.what, ignored=ignored, dtype=dtype)
