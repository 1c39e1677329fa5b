"""Published config files: what they ask for is honoured or refused in one line, and nothing is dropped in silence."""

import json
from functools import cache, partial
from pathlib import Path

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
from lantern_jax.io.errors import Assumed
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
    "hidden_activation": "relu",
    "partial_rotary_factor": 0.5,
    "sliding_window": 2,
    "use_sliding_window": True,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "quantization_config": {"quant_method": "fp8"},
    "attention_bias": True,
    "mlp_bias": True,
    "swin_norm": True,
    "model_type": "gemma3n",
    "architectures": ["MistralForCausalLM"],
    "head_dim": 32,
    "num_key_value_heads": 1,
    "an_entry_of_tomorrow": 3,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_entry_is_honoured_or_refused(name, written, tmp_path):
    folder, tensors, config = written(name)
    _, kind, sizes, told = LAYOUTS[name]

    def read(entry, value):
        (tmp_path / "config.json").write_text(json.dumps(changed(config, entry, value)))
        return sizes(tensors, settings_for(kind, tmp_path, told)[0])

    plain = sizes(tensors, settings_for(kind, folder, told)[0])
    for entry, value in CHANGES.items():
        if entry == "num_key_value_heads" and kind in (JANUS, LIQUID):
            assert read(entry, value).kv_heads == 1, "honoured"
            continue
        with refused(
            rf"{entry} is |(kv_heads|head_width) is {value} in the config|^1 key-value heads do not fit"
        ):
            read(entry, value)
        if entry not in ("model_type", "num_key_value_heads"):
            assert read(entry, None) == plain, f"{entry}: null changes nothing"
    if kind is T5:
        assert read("layer_norm_epsilon", 0.25).norm_eps == 0.25
    else:
        assert (read("rms_norm_eps", 0.25).norm_eps, read("rope_theta", 77.0).rope_base) == (0.25, 77.0)
        assert read("rope_parameters", {"rope_type": "default", "rope_theta": 77}).rope_base == 77
        assert read("rope_scaling", {"rope_type": "default", "type": "default"}) == plain
    for entry in (
        "transformers_version",
        "torch_dtype",
        "dtype",
        "_name_or_path",
        "use_cache",
        "bos_token_id",
    ):
        assert read(entry, "other") == plain
    if kind not in (JANUS, LIQUID, T5):
        with refused("tie_word_embeddings is True, expected False"):
            read("tie_word_embeddings", True)


def changed(config: dict, entry: str, value) -> dict:
    """Returns a published config with another entry in its part about the language model."""
    made = json.loads(json.dumps(config))
    language(made)[entry] = value
    return made


def test_a_head_that_is_not_tied_must_be_there(written):
    _, tensors, config = written("Liquid")
    headless = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    with refused("tie_word_embeddings is false and lm_head.weight is missing"):
        liquid_config_from_shapes(headless, config | GRID | {"tie_word_embeddings": False})
    assert liquid_config_from_shapes(headless, config | GRID | {"tie_word_embeddings": True})


def test_other_parts_of_a_model_are_looked_at(written):
    config = written("Janus, transformers")[2]
    for entry in ({"vq_config": {"hidden_act": "relu"}}, {"gen_aligner_config": {"params": {"depth": 3}}}):
        (part,) = entry
        with refused(rf"{part}\.(hidden_act is 'relu'|depth is 3), expected"):
            normalize_settings(config | entry, JANUS)
    assert normalize_settings(config | {"vision_config": {"hidden_act": "relu"}}, JANUS)


def test_a_drafter_of_another_stage_is_told_by_its_config(written):
    _, tensors, config = written("drafter, LlamaGen")
    told = config | {"input_type": "t2i2", "caption_dim": 2048, "class_dropout_p": 0.0, "pretraining_tp": 1}
    assert drafter_config_from_shapes(tensors, told, target=CAPTION).grid == 32


def test_t5_of_another_kind_is_refused(written):
    config = written("T5")[2]
    for entry in ({"feed_forward_proj": "relu"}, {"dense_act_fn": "relu"}, {"is_gated_act": False}):
        ((name, value),) = entry.items()
        with refused(f"{name} is {value!r}, expected"):
            normalize_settings(config | entry, T5)


# As published, where the files of tests have less: facts of LANTERN's, DeepSeek's, BAAI's and Google's config.json.
BOOKKEEPING = {
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0",
    "use_cache": True,
    "pretraining_tp": 1,
}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.02}
LLAMA = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
PUBLISHED = {
    "LlamaGen-T2I": (LLAMAGEN, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1280, "num_attention_heads": 20,
        "num_key_value_heads": 20, "block_size": 256, "cls_token_num": 120, "caption_dim": 2048, "input_type": "t2i",
        "class_dropout_p": 0.1, "rope_base": 10000, "num_classes": 1000, "multiple_of": 256, **LLAMA,
    }, {"dim": 1280, "num_heads": 20, "grid": 16, "caption_dim": 2048, "rope_base": 10000}),
    "Anole": (CHAMELEON, {
        "architectures": ["ChameleonForConditionalGeneration"], "model_type": "chameleon", "attention_bias": False,
        "attention_dropout": 0.0, "boi_token_id": 8197, "eoi_token_id": 8196, "image_token_id": 8711, "mlp_bias": False,
        "model_parallel_size": 1, "swin_norm": False, "vocab_size": 65536, "rope_theta": 10000.0,
        "vocabulary_map": {"<s>": 0}, "vq_config": {"model_type": "chameleon_vqgan", "n_embed": 8192}, **LLAMA,
    }, {"vocab_size": 65536, "rope_base": 10000.0}),
    "Lumina-mGPT": (CHAMELEON, {
        "architectures": ["ChameleonXLLMXForConditionalGeneration"], "model_type": "chameleon", "dropout": 0.05,
        "mask_image_logits": False, "z_loss_weight": 1e-5, "attention_bias": False, "swin_norm": False, **LLAMA,
    }, {}),
    "Janus-Pro-7B": (JANUS, {
        "architectures": ["MultiModalityCausalLM"], "model_type": "multi_modality",
        "aligner_config": {"cls": "MlpProjector", "params": {"depth": 2, "projector_type": "mlp_gelu"}},
        "gen_aligner_config": {"cls": "MlpProjector", "params": {"depth": 2, "projector_type": "mlp_gelu"}},
        "gen_head_config": {"cls": "vision_head"}, "gen_vision_config": {"cls": "VQ-16"}, "vision_config": {},
        "language_config": {
            "model_type": "llama", "max_position_embeddings": 16384, "num_hidden_layers": 30, "vocab_size": 102400,
            "_attn_implementation": "flash_attention_2", "torch_dtype": "bfloat16",
        },
    }, {"num_layers": 30}),
    "Emu3-Gen": (EMU3, {
        "architectures": ["Emu3ForCausalLM"], "model_type": "Emu3", "attention_dropout": 0.1, "vocab_size": 184622,
        "auto_map": {"AutoConfig": "configuration_emu3.EMU3"}, "boi_token_id": 151852, "eof_token_id": 151847,
        "eoi_token_id": 151853, "eol_token_id": 151846, "img_token_id": 151851, "image_area": 518400,
        "rope_theta": 1e6, **LLAMA,
    }, {"rope_base": 1e6, "row_end": 151846, "frame_end": 151847, "image_end": 151853, "grid": 90}),
    "Liquid": (LIQUID, {
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": False, "head_dim": 256,
        "hidden_act": "gelu", "hidden_activation": None, "max_position_embeddings": 8192, "vocab_size": 264192,
        "rope_scaling": None, "num_key_value_heads": 16,
    }, {"head_width": 256, "kv_heads": 16}),
    "Flan-T5-XL": (T5, {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_ff": 5120, "decoder_start_token_id": 0,
        "dropout_rate": 0.1, "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True,
        "n_positions": 512, "num_decoder_layers": 24, "output_past": True, "tie_word_embeddings": False,
        "task_specific_params": {}, "relative_attention_max_distance": 128,
    }, {"hidden_dim": 5120, "max_distance": 128}),
    "LANTERN's drafter": (DRAFTER, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1280, "caption_dim": 2048,
        "class_dropout_p": 0.0, "num_hidden_layers": 1, "rms_norm_eps": 1e-6, "input_type": "t2i", **LLAMA,
    }, {"dim": 1280, "norm_eps": 1e-6, "grid": 16}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name):
    kind, config, expected = PUBLISHED[name]
    found = normalize_settings(config | BOOKKEEPING | SPECIAL, kind)
    assert found == expected


@pytest.mark.parametrize(("name", "kind"), [
    ("Chameleon", CHAMELEON), ("Janus", JANUS), ("Emu3", EMU3), ("Gemma", LIQUID),
    ("Llama", LLAMAGEN), ("Llama", DRAFTER),
])  # fmt: skip
def test_whatever_transformers_writes_is_read(name, kind):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")
    config = config(num_hidden_layers=1) if kind is DRAFTER else config()
    for written in (config.to_dict(), config.to_diff_dict()):
        assert normalize_settings(json.loads(json.dumps(written, default=str)), kind)


def test_implausible_heads_are_noticed():
    shapes = {
        name: Shape(shape) for name, shape in layouts.published_shapes.original_gpt_shapes(CAPTION).items()
    }
    with pytest.warns(Assumed, match="num_heads 8 makes heads 4 wide"):
        gpt_config_from_shapes(shapes, {"num_heads": 8})


@pytest.mark.parametrize(("changes", "settings", "match"), [
    ({"num_layers": 11}, {"num_heads": 12}, "11 layers with 12 heads, where GPT-B has 12 with 12"),
    ({}, {"num_heads": 8}, "12 layers with 8 heads, where GPT-B has 12 with 12"),
])  # fmt: skip
def test_a_published_width_with_other_sizes_is_noticed(changes, settings, match):
    config = LLAMAGEN.config(768, 12, 12, num_labels=1001)
    shapes = layouts.published_shapes.original_gpt_shapes(layouts.dataclasses.replace(config, **changes))
    with pytest.warns(Assumed, match=match):
        gpt_config_from_shapes({name: Shape(shape) for name, shape in shapes.items()}, settings)
    if changes:
        with refused("number of heads .*11 are here"):
            gpt_config_from_shapes({name: Shape(shape) for name, shape in shapes.items()})


class Shape:
    def __init__(self, shape):
        self.shape = tuple(shape)


def test_the_error_names_the_file(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "gemma", "window": 4}')
    with refused(r"/config\.json: not computed here: window is 4, an unknown entry: give weights"):
        settings_for(LIQUID, tmp_path, None)
