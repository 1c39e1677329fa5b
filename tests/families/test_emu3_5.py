"""Emu3.5-Image: converted from files as published with its IBQ tokenizer, decoded by guesses as without, and drawn."""

import json

import numpy as np
import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.families.emu3.prompts import EMU3_BEGIN
from lantern_jax.families.emu3_5.model import Emu35Config
from lantern_jax.families.emu3_5.prompts import Emu35Encoder
from lantern_jax.models.vq import VQConfig
from lantern_jax.pipeline.pipeline import load
from lantern_jax.text.encoders import PromptParts
from tests.fixtures import guided_layouts as layouts
from tests.fixtures import guided_shapes
from tests.fixtures.published_shapes import autoencoder, linear
from tests.fixtures.tensor_writing import write_folder, write_torch

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

CODES, TEXT = 24, 300
SPECIAL = (*layouts.EMU3_SPECIAL, "<|extra_100|>")
TINY = Emu35Config(32, 2, 4, 48, TEXT + CODES, CODES, 3, kv_heads=2, head_width=12, row_end=6, image_end=5)
VQ = VQConfig(ch=32, ch_mult=(1, 1), z_channels=8, codebook_size=CODES, codebook_dim=4, l2_norm=False, encoder_blocks=1,
              decoder_blocks=2, by_product=True)  # fmt: skip
PROMPTS = ["a lake at dusk", "hills"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("emu3_5")
    names = tuple(f"<|visual token {number:06d}|>" for number in range(CODES))
    layouts.write_byte_level(made / "tokenizer.json", SPECIAL, TEXT, names)
    shapes = guided_shapes.llama_shapes(TINY, "model.", TEXT + CODES) | linear("lm_head", TEXT + CODES, 32)
    for i in range(2):
        shapes |= {f"model.layers.{i}.self_attn.{part}_norm.weight": (12,) for part in "qk"}
    settings = guided_shapes.llama_settings(
        TINY, TEXT + CODES, model_type="Emu3", architectures=["Emu3ForCausalLM"], head_dim=12, eol_token_id=6,
        eoi_token_id=5, eof_token_id=7, boi_token_id=4, img_token_id=3, image_area=518400,
    )  # fmt: skip
    write_folder(made / "model", shapes, np.float32, settings=settings)
    at = {
        "encoder": "down.{i}",
        "decoder": "up.{n}",
        "block": "block",
        "mid": ("block_1", "attn_1", "block_2"),
    }
    write_torch(made / "model.ckpt", autoencoder(VQ, **at), np.float32)
    told = json.dumps({"num_codes": CODES, "grid": 3})
    words = ["convert", "emu3.5", "--model", str(made / "model"), "--vqgan", str(made / "model.ckpt"),
             "--text-tokenizer", str(made / "tokenizer.json"), "--config", told, "--dtype", "float32"]  # fmt: skip
    assert main([*words, "--out", str(made / "out")]) == 0
    return made / "out"


def test_guesses_change_no_code_and_pictures_of_any_shape_are_drawn(folder):
    loaded = load(folder, mesh="data=1", size="8x4")
    config = loaded.checkpoint.target_config
    assert (config.grid, config.columns) == (2, 4) and loaded.checkpoint.tokenizer_config == VQ
    # A row end between the rows, the picture's end after the last one.
    assert [t for t in config.forced_tokens if t >= 0] == [CODES + 6, CODES + 5]
    plain = loaded.generate(PROMPTS, method="ar", seed=3, temperature=4.0)
    assert plain.tokens.shape == (2, 8) and plain.pictures.shape == (2, 4, 8, 3)
    guessed = loaded.generate(PROMPTS, method="jacobi:nodes=5", seed=3, temperature=4.0)
    np.testing.assert_array_equal(guessed.tokens, plain.tokens)
    assert loaded.encode_pictures(plain.pictures).shape == (2, 8)


def test_prompts_have_a_task_and_the_rows_they_are_compared_with_none(folder):
    encoder = Emu35Encoder(PromptParts(TINY, text_tokenizer=folder / "text" / "tokenizer.json"))
    encode, end = encoder.parts.tokenizer.encode, " ASSISTANT: <|extra_100|><|image start|>3*3<|image token|>"
    row, against = encoder.rows("a lake", None)
    assert row == encode(f"{EMU3_BEGIN}You are a helpful assistant for t2i task. USER: a lake{end}")
    assert against == encode(f"{EMU3_BEGIN}You are a helpful assistant. USER: {end}")
    assert encoder.rows("a lake", "fog")[1] == encoder.rows("fog", None)[0]
