"""LlamaGen (arXiv 2406.06525): a GPT for ImageNet's classes or for captions."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lantern_jax.families.llamagen import weights
from lantern_jax.families.llamagen.model import LlamaGen, LlamaGenConfig, published_config
from lantern_jax.families.llamagen.prompts import llamagen_encoder
from lantern_jax.families.registry import ASSUMED, DRAFTER, TENSORS, Family, File, Format, Published
from lantern_jax.models.targets import stream_target
from lantern_jax.models.vq import VQConfig

# Pixels of a code's side in the published pictures, by which files are named.
_CELL = 16


def grid_by_name(files: Mapping[str, Path]) -> tuple[dict[str, Any], str]:
    """Returns the grid in a GPT's published name (c2i_L_384.pt), as ``Published.more_settings`` requires."""
    name = files["gpt"].name
    found = re.search(r"(?<!\d)(256|384|512)(?!\d)", name)
    return ({"grid": int(found[1]) // _CELL}, f"from the name {name}") if found else ({}, ASSUMED)


_DEFAULTS = {
    "class": {"guidance": 4.0, "top_k": 2000, "temperature": 1.0},
    "caption": {"guidance": 7.5, "top_k": 1000, "temperature": 1.0},
}


def _kind(config: LlamaGenConfig) -> str:
    return "class" if config.num_labels else "caption"


FAMILY = Family(
    LlamaGenConfig,
    weights.gpt_shapes,
    partial(stream_target, LlamaGen),
    llamagen_encoder,
    weights.random_conditioning,
    text_width=lambda config: config.caption_dim,
    classes=lambda config: max(config.num_labels - 1, 0),
    tokenizer=VQConfig,
    sizes={
        **{
            f"llamagen-{size.lower()}": partial(published_config, size)
            for size in ("B", "L", "XL", "XXL", "3B")
        },
        "llamagen-xl-stage1": partial(published_config, "XL", "caption"),
        "llamagen-xl-stage2": partial(published_config, "XL", "caption", 32),
    },
    published=Published(
        dialect=weights.DIALECT,
        sizes=weights.gpt_config_from_shapes,
        read=weights.convert_gpt,
        read_tokenizer=weights.convert_vq,
        model=lambda config: f"LlamaGen, {_kind(config)}-conditional",
        defaults=lambda config: _DEFAULTS[_kind(config)],
        more_settings=grid_by_name,
        repositories={
            "foundationvision/llamagen": "llamagen --from-hub FoundationVision/LlamaGen --gpt c2i_B_256.pt "
            "--vq vq_ds16_c2i.pt --out llamagen-b",
            "peizesun/llamagen_t2i": "llamagen --from-hub peizesun/llamagen_t2i --gpt t2i_XL_stage1_256.pt "
            "--vq vq_ds16_t2i.pt --out llamagen-t2i",
            "jadohu/llamagen-t2i": "peizesun/llamagen_t2i",
        },
    ),
    formats={
        "llamagen": Format(
            "LlamaGen: GPT, VQ tokenizer, drafter, T5",
            (
                File("gpt", f"the GPT: {TENSORS}", required=True, repository=True),
                File("vq", f"the VQ tokenizer: {TENSORS}"),
                DRAFTER,
                File("t5", f"Flan-T5's encoder: {TENSORS}"),
                File("t5-tokenizer", "T5's spiece.model or tokenizer.json"),
            ),
        )
    },
)
