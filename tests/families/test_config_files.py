"""Published config files: what changes pictures is honoured or refused in one line."""

import json
from functools import cache, partial

import numpy as np
import pytest

from lantern_jax.apps.convert.given_settings import settings_for
from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.drafters.eagle_weights import DIALECT as DRAFTER
from lantern_jax.drafters.eagle_weights import drafter_config_from_shapes
from lantern_jax.families.chameleon.weights import DIALECT as CHAMELEON
from lantern_jax.families.chameleon.weights import chameleon_config_from_shapes
from lantern_jax.families.config_files import normalize_settings
from lantern_jax.families.emu3.weights import DIALECT as EMU3
from lantern_jax.families.emu3.weights import emu3_config_from_shapes
from lantern_jax.families.janus.weights import DIALECT as JANUS
from lantern_jax.families.janus.weights import janus_config_from_shapes
from lantern_jax.families.liquid.weights import DIALECT as LIQUID
from lantern_jax.families.liquid.weights import liquid_config_from_shapes
from lantern_jax.families.llamagen.t5_weights import DIALECT as T5
from lantern_jax.families.llamagen.t5_weights import t5_config_from_shapes
from lantern_jax.families.llamagen.weights import DIALECT as LLAMAGEN
from lantern_jax.families.llamagen.weights import gpt_config_from_shapes
from lantern_jax.families.lumina2.weights import DIALECT as LUMINA2
from lantern_jax.families.lumina2.weights import lumina2_config_from_shapes
from tests.fixtures import guided_layouts as guided
from tests.fixtures import published_layouts as layouts
from tests.refused import refused

TINY_CHAMELEON, CAPTION = layouts.TINY_CHAMELEON, layouts.TINY_CAPTION
GRID = {"grid": guided.GRID, "num_codes": guided.CODES}
# Layout -> what writes it, the config's class, what reads sizes, what shapes and the file do not tell.
LAYOUTS = {
    "LlamaGen on the hub": (
        partial(layouts.write_llamagen, config=CAPTION, layout="hugging_face"), LLAMAGEN,
        gpt_config_from_shapes, {},
    ),
    "Anole, Lumina-mGPT": (
        partial(layouts.write_chameleon, config=TINY_CHAMELEON, vqgan=layouts.TINY_VQGAN), CHAMELEON,
        chameleon_config_from_shapes, {"grid": 4, "num_codes": TINY_CHAMELEON.num_codes},
    ),
    "Janus, original": (partial(guided.write_janus, layout="original"), JANUS, janus_config_from_shapes, GRID),
    "Janus, transformers": (
        partial(guided.write_janus, layout="hugging_face"), JANUS, janus_config_from_shapes, GRID,
    ),
    "Emu3, original": (
        partial(guided.write_emu3, layout="original"), EMU3, emu3_config_from_shapes,
        GRID | guided.EMU3_ENDS,
    ),
    "Emu3, transformers": (
        partial(guided.write_emu3, layout="hugging_face"), EMU3, emu3_config_from_shapes,
        GRID | guided.EMU3_ENDS,
    ),
    "Liquid": (guided.write_liquid, LIQUID, liquid_config_from_shapes, GRID),
    "Lumina-mGPT 2.0": (
        guided.write_lumina2, LUMINA2, lumina2_config_from_shapes,
        GRID | {"row_end": 5, "image_end": 3, "begin": 1, "first_code": guided.TINY_LUMINA2.first_code},
    ),
    "drafter, LlamaGen": (
        partial(layouts.write_drafter, config=layouts.drafter_of(CAPTION)), DRAFTER,
        partial(drafter_config_from_shapes, target=CAPTION), {},
    ),
    "drafter, Anole": (
        partial(layouts.write_drafter, config=layouts.drafter_of(TINY_CHAMELEON)), DRAFTER,
        partial(drafter_config_from_shapes, target=TINY_CHAMELEON), {},
    ),
    "T5": (partial(layouts.write_t5, settings=layouts.TINY_T5), T5, t5_config_from_shapes, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Returns a function from a layout to its folder, (tensors, config.json's content)."""

    @cache
    def write(name: str):
        folder = tmp_path_factory.mktemp("layout") / "model"
        LAYOUTS[name][0](folder)
        return folder, open_tensors(folder), json.loads((folder / "config.json").read_text())

    return write


def language(config: dict) -> dict:
    """Returns the part of a published config that is about the language model."""
    return next((config[name] for name in ("text_config", "language_config") if name in config), config)


# Entries that change what most of these models compute; T5 has others of its own.
CHANGES = {
    "rope_scaling": {"type": "linear", "factor": 4.0},
    "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0},
    "hidden_act": "relu",
    "partial_rotary_factor": 0.5,
    "use_sliding_window": True,
    "final_logit_softcapping": 30.0,
    "quantization_config": {"quant_method": "fp8"},
    "attention_bias": True,
    "swin_norm": True,
    "model_type": "gemma3n",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_entries_that_change_pictures_are_honoured_or_refused(name, written, tmp_path):
    folder, tensors, config = written(name)
    _, kind, sizes, told = LAYOUTS[name]

    def read(entry, value):
        (tmp_path / "config.json").write_text(json.dumps(changed(config, entry, value)))
        return sizes(tensors, settings_for(kind, tmp_path, told)[0])

    plain = sizes(tensors, settings_for(kind, folder, told)[0])
    for entry, value in CHANGES.items():
        said = "rope_type" if entry.startswith("rope_") else entry
        with refused(rf"config\.json: not computed here: {said} is "):
            read(entry, value)
        if entry != "model_type":
            assert read(entry, None) == plain, f"{entry}: null changes nothing"
    if kind is T5:
        assert read("layer_norm_epsilon", 0.25).norm_eps == 0.25
    else:
        assert (read("rms_norm_eps", 0.25).norm_eps, read("rope_theta", 77.0).rope_base) == (0.25, 77.0)
        assert read("rope_parameters", {"rope_type": "default", "rope_theta": 77}).rope_base == 77
        assert read("rope_scaling", {"rope_type": "default", "type": "default"}) == plain
    for entry in ("transformers_version", "use_cache", "bos_token_id", "an_entry_of_tomorrow"):
        assert read(entry, "other") == plain
    if kind not in (JANUS, LIQUID, T5):
        with refused("tie_word_embeddings is True, expected False"):
            read("tie_word_embeddings", True)


def changed(config: dict, entry: str, value) -> dict:
    """Returns a published config with another entry in its part about the language model."""
    made = json.loads(json.dumps(config))
    language(made)[entry] = value
    return made


def test_a_drafter_of_another_stage_is_told_by_its_config(written):
    _, tensors, config = written("drafter, LlamaGen")
    told = config | {"input_type": "t2i2", "caption_dim": 2048, "class_dropout_p": 0.0, "pretraining_tp": 1}
    assert drafter_config_from_shapes(tensors, told, target=CAPTION).grid == 32


# What LANTERN's, DeepSeek's, BAAI's and Google's files say that decides a field or is computed in one way alone.
LLAMA = {"model_type": "llama", "hidden_act": "silu", "rope_scaling": None, "tie_word_embeddings": False}
JANUS_PART = {"model_type": "llama", "num_hidden_layers": 30, "vocab_size": 102400}
PUBLISHED = {
    "LlamaGen-T2I": (LLAMAGEN, LLAMA | {
        "hidden_size": 1280, "num_attention_heads": 20, "num_key_value_heads": 20, "block_size": 256,
        "caption_dim": 2048, "rope_base": 10000,
    }, {"dim": 1280, "num_heads": 20, "grid": 16, "caption_dim": 2048, "rope_base": 10000}),
    "Anole": (CHAMELEON, LLAMA | {
        "model_type": "chameleon", "attention_bias": False, "mlp_bias": False, "swin_norm": False, "vocab_size": 65536,
        "rope_theta": 10000.0, "vq_config": {"model_type": "chameleon_vqgan"},
    }, {"vocab_size": 65536, "rope_base": 10000.0}),
    "Janus-Pro-7B": (
        JANUS, {"model_type": "multi_modality", "language_config": JANUS_PART}, {"num_layers": 30},
    ),
    "Emu3-Gen": (EMU3, LLAMA | {
        "model_type": "Emu3", "vocab_size": 184622, "eof_token_id": 151847, "eoi_token_id": 151853,
        "eol_token_id": 151846, "image_area": 518400, "rope_theta": 1e6,
    }, {"rope_base": 1e6, "row_end": 151846, "frame_end": 151847, "image_end": 151853, "grid": 90}),
    "Liquid": (LIQUID, {
        "model_type": "gemma", "attention_bias": False, "head_dim": 256, "hidden_act": "gelu",
        "hidden_activation": None, "vocab_size": 264192, "num_key_value_heads": 16,
    }, {"head_width": 256, "kv_heads": 16}),
    "Flan-T5-XL": (T5, {
        "model_type": "t5", "d_ff": 5120, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
        "relative_attention_max_distance": 128,
    }, {"hidden_dim": 5120, "max_distance": 128}),
    "LANTERN's drafter": (
        DRAFTER, LLAMA | {"hidden_size": 1280, "caption_dim": 2048, "rms_norm_eps": 1e-6, "input_type": "t2i"},
        {"dim": 1280, "norm_eps": 1e-6, "grid": 16},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name):
    kind, config, expected = PUBLISHED[name]
    found = normalize_settings(config, kind)
    assert found == expected


def test_part_of_a_published_models_layers_does_not_tell_its_heads():
    config = LLAMAGEN.config(768, 11, 12, num_labels=1001)
    shapes = layouts.published_shapes.original_gpt_shapes(config)
    with refused("number of heads .*11 are here"):
        gpt_config_from_shapes({name: np.broadcast_to(0, shape) for name, shape in shapes.items()})
