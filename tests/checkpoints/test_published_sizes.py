"""Sizes of the published models, inferred from the shapes of their tensors alone."""

import dataclasses
import math
from functools import partial

import jax
import numpy as np
import pytest

from lantern_jax.apps.metrics.clip import ClipConfig, Tower
from lantern_jax.apps.metrics.clip_files import HUGGING_FACE, OPENAI, clip_config_from_shapes, clip_table
from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.chameleon.weights import chameleon_config_from_shapes
from lantern_jax.families.emu3.model import Emu3Config
from lantern_jax.families.emu3.vq_weights import HUGGING_FACE as HUGGING_FACE_CLIPS
from lantern_jax.families.emu3.vq_weights import ORIGINAL, emu3_tokenizer
from lantern_jax.families.emu3.weights import emu3_config_from_shapes
from lantern_jax.families.janus.model import janus_config
from lantern_jax.families.janus.weights import janus_config_from_shapes
from lantern_jax.families.liquid.model import LiquidConfig
from lantern_jax.families.liquid.weights import liquid_config_from_shapes
from lantern_jax.families.llamagen.model import published_config
from lantern_jax.families.llamagen.t5_weights import t5_config_from_shapes
from lantern_jax.families.llamagen.weights import gpt_config_from_shapes
from lantern_jax.families.lumina2.model import Lumina2Config
from lantern_jax.families.lumina2.weights import MOVQGAN, lumina2_config_from_shapes, movqgan
from lantern_jax.families.vq_weights import vq_config_from_shapes
from lantern_jax.models.t5 import T5Config
from tests.fixtures.guided_shapes import (
    emu3_shapes,
    emu3_vq_shapes,
    janus_shapes,
    liquid_shapes,
    lumina2_shapes,
    movqgan_shapes,
)
from tests.fixtures.published_layouts import T5_XL
from tests.fixtures.published_shapes import (
    CHAMELEON_VQ,
    VQ_16,
    chameleon_shapes,
    hugging_face_gpt_shapes,
    original_gpt_shapes,
    t5_shapes,
)

CLIPS = {
    "ViT-B/32": ClipConfig(Tower(768, 12, 12, 3072), Tower(512, 12, 8, 2048), "quick_gelu", 32, 224, 512),
    "ViT-L/14@336": ClipConfig(
        Tower(1024, 24, 16, 4096), Tower(768, 12, 12, 3072), "quick_gelu", 14, 336, 768
    ),
    "ViT-H/14": ClipConfig(Tower(1280, 32, 16, 5120), Tower(1024, 24, 16, 4096), "gelu", 14, 224, 1024),
    "ViT-bigG/14": ClipConfig(Tower(1664, 48, 16, 8192), Tower(1280, 32, 20, 5120), "gelu", 14, 224, 1280),
}


def shallow(config):
    """Returns the config with few layers, which all have the same shapes: tracing many takes seconds."""
    vision, text = (dataclasses.replace(tower, layers=3) for tower in (config.vision, config.text))
    return dataclasses.replace(config, vision=vision, text=text)


# Parameters in millions; CLIP's without the temperature.
MILLIONS = {
    "LlamaGen-B": 111, "LlamaGen-L": 343, "LlamaGen-XL": 775, "LlamaGen-XXL": 1400, "LlamaGen-3B": 3100,
    "LlamaGen-7B": 6600, "T5-XL's encoder": 1223.5, "Chameleon-7B": 7010, "MoVQGAN-270M": 270,
    "CLIP ViT-B/32": 151.277312, "CLIP ViT-H/14": 986.10944,
}  # fmt: skip


def found_hidden(config):
    """Returns the config with the hidden width of its own rule written out, as shapes tell it."""
    return dataclasses.replace(config, hidden_dim=config.transformer.hidden_dim)


def cases():
    """Yields (name, what infers the config, the config, what makes names and shapes: tracing some takes seconds)."""
    for size in ("B", "L", "XL", "XXL", "3B", "7B"):
        config, captions = published_config(size), published_config(size, "caption")
        yield (
            f"LlamaGen-{size}",
            gpt_config_from_shapes,
            found_hidden(config),
            partial(original_gpt_shapes, config),
        )
        shapes = partial(hugging_face_gpt_shapes, captions)
        yield f"LlamaGen-{size} of captions", gpt_config_from_shapes, found_hidden(captions), shapes
    yield "T5-XL's encoder", t5_config_from_shapes, T5Config(), partial(t5_shapes, T5_XL, decoder=False)
    codes = ChameleonConfig().num_codes
    tell = partial(chameleon_config_from_shapes, settings={"num_codes": codes})
    yield "Chameleon-7B", tell, ChameleonConfig(), chameleon_without_vq
    for size in ("1B", "7B"):
        for layout in ("original", "hugging_face"):
            config = janus_config(size)
            shapes = partial(janus_shapes, config, VQ_16, layout)
            yield f"Janus-Pro-{size}, {layout}", janus_config_from_shapes, config, shapes
    for layout in ("original", "older", "hugging_face"):
        shapes = partial(emu3_shapes, Emu3Config(), emu3_tokenizer(), layout)
        tell = partial(emu3_config_from_shapes, settings={"num_codes": 32768})
        yield f"Emu3-Gen, {layout}", tell, Emu3Config(), shapes
    for layout in ("original", "hugging_face"):
        read = ORIGINAL if layout == "original" else HUGGING_FACE_CLIPS
        shapes = partial(emu3_vq_shapes, emu3_tokenizer(), layout)
        yield (
            f"Emu3's tokenizer, {layout}",
            partial(vq_config_from_shapes, layout=read),
            emu3_tokenizer(),
            shapes,
        )
    tell = partial(liquid_config_from_shapes, settings={"num_codes": 8192})
    yield "Liquid-7B", tell, LiquidConfig(), partial(liquid_shapes, LiquidConfig())
    yield (
        "Lumina-mGPT-2.0",
        lumina2_config_from_shapes,
        Lumina2Config(),
        partial(lumina2_shapes, Lumina2Config()),
    )
    tell = partial(vq_config_from_shapes, layout=MOVQGAN)
    yield "MoVQGAN-270M", tell, movqgan(), partial(movqgan_shapes, movqgan())
    for name, config in CLIPS.items():
        config = config if f"CLIP {name}" in MILLIONS else shallow(config)
        told = {"activation": config.activation}
        for where, layout in (("", HUGGING_FACE), (", OpenAI's", OPENAI)):
            tell = partial(clip_config_from_shapes, layout=layout, told=told)
            yield f"CLIP {name}{where}", tell, config, partial(of_table, clip_table, config, layout)


def chameleon_without_vq():
    shapes = chameleon_shapes(ChameleonConfig(), CHAMELEON_VQ)
    return {name: shape for name, shape in shapes.items() if "vqmodel" not in name}


def of_table(table, *arguments):
    return {name: entry.shape for name, entry in table(*arguments).items()}


@pytest.mark.parametrize(
    ("name", "tell", "config", "shapes_of"), [pytest.param(*one, id=one[0]) for one in cases()]
)
def test_shapes_tell_the_sizes(name, tell, config, shapes_of):
    shapes = shapes_of()
    tensors = {tensor: jax.ShapeDtypeStruct(shape, np.float32) for tensor, shape in shapes.items()}
    assert tell(tensors) == config
    if name in MILLIONS:
        assert sum(map(math.prod, shapes.values())) / 1e6 == pytest.approx(MILLIONS[name], rel=0.02)


def test_the_name_of_a_clip_tells_its_size():
    for name, config in CLIPS.items():
        assert config.name == f"CLIP {name} ({config.activation})"
