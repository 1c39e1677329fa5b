"""GLM-Image: converted from files as published, decoded by guesses as without, and handed to a diffusion decoder."""

import json
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.families.glm_image.model import GlmImageConfig, preview_of
from lantern_jax.families.glm_image.prompts import GlmImageEncoder
from lantern_jax.pipeline.pipeline import load
from lantern_jax.text.encoders import PromptParts
from tests.command import assert_refused
from tests.fixtures import guided_layouts as layouts
from tests.fixtures.guided_shapes import llama_shapes, query_biases
from tests.fixtures.tensor_writing import write_folder

pytest.importorskip("tokenizers")

# A picture of 3 x 2 codes, and a preview of 19 x 13.
CODES, MARK = 24, 24
SPECIAL = (
    *(f"<|dit_token_{i}|>" for i in range(CODES)),
    "<|dit_token_16384|>",
    "<|dit_token_16385|>",
    "<sop>",
    "<eop>",
)
TINY = GlmImageConfig(32, 2, 2, 48, 360, CODES, 3, kv_heads=1, columns=2, sections=(1, 1, 2))
PROMPTS = ["a lake at dusk", "hills"]


def published_shapes(config: GlmImageConfig) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the published part, written down independently of the converter's table."""
    dim, hidden, prefix = config.dim, config.hidden_dim, "model.language_model."
    shapes = {
        name: shape
        for name, shape in llama_shapes(config, prefix, config.vocab_size).items()
        if not name.endswith(("gate_proj.weight", "up_proj.weight"))
    }
    shapes |= query_biases(shapes)
    for at in (f"{prefix}layers.{i}" for i in range(config.num_layers)):
        shapes[f"{at}.mlp.gate_up_proj.weight"] = (2 * hidden, dim)
        shapes |= {f"{at}.post_{part}_layernorm.weight": (dim,) for part in ("self_attn", "mlp")}
    return shapes | {
        "lm_head.weight": (CODES + 4, dim),
        "model.visual.patch_embed.proj.weight": (4, 3, 2, 2),
        "model.vqmodel.quantize.embedding.weight": (CODES, 8),
    }


def settings(config: GlmImageConfig, **changes) -> dict:
    """Returns what the published ``config.json`` says."""
    rotation = {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "mrope_section": list(config.sections),
    }  # fmt: skip
    text = {
        "model_type": "glm_image_text", "hidden_size": config.dim, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.hidden_dim, "vocab_size": config.vocab_size, "vision_vocab_size": CODES + 4,
        "rms_norm_eps": config.norm_eps, "attention_bias": True, "hidden_act": "silu", "rope_parameters": rotation,
        "pad_token_id": 0, "eos_token_id": MARK + 1,
    }  # fmt: skip
    return {
        "architectures": ["GlmImageForConditionalGeneration"], "model_type": "glm_image", "text_config": text,
        "image_start_token_id": MARK, "image_end_token_id": MARK + 1, "image_token_id": 300,
        "vision_config": {"depth": 1}, "vq_config": {"embed_dim": 8}, "tie_word_embeddings": False,
    } | changes  # fmt: skip


def write(folder: Path, **changes) -> list[str]:
    """Writes the published files; returns the words of their conversion."""
    layouts.write_byte_level(folder / "tokenizer.json", SPECIAL, 360)
    write_folder(folder / "model", published_shapes(TINY), np.float32, settings=settings(TINY, **changes))
    told = json.dumps({"num_codes": CODES, "grid": TINY.grid, "columns": TINY.columns})
    (folder / "sizes.json").write_text(told)
    return ["convert", "glm-image", "--model", str(folder / "model"), "--text-tokenizer",
            str(folder / "tokenizer.json"), "--config", str(folder / "sizes.json"), "--dtype", "float32"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("glm")
    assert main([*write(made), "--out", str(made / "out")]) == 0
    return made / "out"


@pytest.fixture(scope="module")
def loaded(folder):
    return load(folder, mesh="data=1")


@pytest.fixture(scope="module")
def plain(loaded):
    return loaded.generate(PROMPTS, method="ar", seed=3).tokens


def test_the_whole_model_is_converted(loaded):
    assert loaded.checkpoint.target_config == TINY and TINY.preview == (19, 13)
    assert loaded.checkpoint.defaults == {"guidance": 1.0, "temperature": 0.9, "top_k": 0, "top_p": 0.75}


@pytest.mark.slow
def test_guesses_change_no_code(loaded, plain):
    assert plain.shape == (2, 19 * 13 + 6) and len(np.unique(plain)) > CODES // 2
    made = loaded.generate(PROMPTS, seed=3, method="jacobi:window=5,initial=preview", batch=1)
    np.testing.assert_array_equal(made.tokens, plain)
    assert made.pictures is None


def test_codes_go_into_a_file_with_what_diffusers_takes(loaded, plain, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lantern_jax.pipeline.pipeline.load", lambda *given, **more: loaded)
    words = ["generate", *PROMPTS, "--model", "glm", "--seed", "3", "--method", "ar"]
    assert "--out FILE.npz" in assert_refused(words, capsys)
    assert "hold" in assert_refused([*words, "--out", "lake.npz", "--show-acceptance"], capsys)
    assert main([*words, "--out", "lake.npz"]) == 0
    with np.load("lake.npz") as file:
        np.testing.assert_array_equal(file["tokens"], plain)
        assert file["prompts"].tolist() == PROMPTS
        ids = file["prior_token_ids"]
    assert ids.shape == (2, 24)
    # Rows of the picture's codes [3, 2], each code as a square of four.
    assert ids[0].reshape(6, 4)[:2].tolist() == [np.repeat(plain[0, -6:-4], 2).tolist()] * 2


def test_prompts_name_both_grids_and_end_in_the_mark_of_a_picture(folder):
    encoder = GlmImageEncoder(PromptParts(TINY, text_tokenizer=folder / "text" / "tokenizer.json"))
    encode = encoder.parts.tokenizer.encode
    row, against = encoder.rows("a lake", None)
    assert row == [*encode("a lake<sop>3 2<eop><sop>19 13<eop>"), MARK] and row[-2] == SPECIAL.index("<eop>")
    assert against == [*encode("<sop>3 2<eop><sop>19 13<eop>"), MARK]
    made = encoder.encode(["a lake"])
    assert made.tokens[0][made.mask[0]].tolist() == row, "published ids are stream ids"


def test_sizes_are_in_pixels(folder):
    wide = load(folder, size="96x64").checkpoint.target_config
    assert (wide.grid, wide.columns, wide.preview) == (2, 3, (13, 19))


def test_other_models_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = settings(TINY)["text_config"] | {"attention_bias": False}
    assert "attention_bias is False" in assert_refused(
        [*write(tmp_path, text_config=text), "--out", "out"], capsys
    )


def test_each_code_begins_as_the_previews_in_its_place():
    square = GlmImageConfig(32, 2, 2, 48, 360, CODES, 4, kv_heads=1, sections=(1, 1, 2))
    where = np.array(preview_of(square))
    assert where[:256].max() == -1 and where[256:].reshape(4, 4)[1].tolist() == [64, 68, 72, 76]
