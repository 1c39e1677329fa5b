"""X-Omni: converted from files as published, decoded by guesses as without."""

import json
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.families.registry import FAMILIES
from lantern_jax.families.x_omni.model import XOmniConfig
from lantern_jax.families.x_omni.prompts import XOmniEncoder
from lantern_jax.pipeline.pipeline import load
from lantern_jax.text.encoders import PromptParts
from tests.fixtures import guided_layouts as layouts
from tests.fixtures.guided_shapes import llama_shapes, query_biases
from tests.fixtures.tensor_writing import write_folder

pytest.importorskip("tokenizers")

CODES, TEXT = 24, 300
MARKS = ("<SOM>", "<EOM>", "<IMAGE>")
LAYERS = {"front_layers": 1, "back_layers": 2}
TINY = XOmniConfig(32, 4, 2, 48, TEXT + 28, CODES, 3, kv_heads=1, columns=4, picture_tokens=28, **LAYERS)
PROMPTS = ["a lake at dusk", "hills"]


def published_shapes(config: XOmniConfig) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the published part, written down independently of the converter's table."""
    dim, shapes = config.dim, llama_shapes(config, "model.", TEXT)
    shapes |= query_biases(shapes)
    del shapes["model.embed_tokens.weight"], shapes["model.norm.weight"]
    return shapes | {
        "model.lm_embed_tokens.weight": (TEXT, dim), "model.mm_embed_tokens.weight": (28, dim),
        "model.lm_norm.weight": (dim,), "model.mm_norm.weight": (dim,), "lm_head.weight": (TEXT, dim),
        "mm_head.weight": (28, dim),
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("x_omni")
    names = tuple(f"<MM-Token-{i}>" for i in range(CODES))
    layouts.write_byte_level(made / "tokenizer.json", (), TEXT, (*names, *MARKS))
    settings = {
        "architectures": ["XOmniForCausalLM"], "model_type": "x-omni", "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "vocab_size": TEXT, "mm_vocab_size": 28, "image_vocab_size": CODES, "hidden_act": "silu",
        "num_mm_adap_layers": 1, "num_mm_head_layers": 2, "mm_special_tokens": list(MARKS), "vision_config": {"a": 1},
        "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28,
    }  # fmt: skip
    write_folder(made / "model", published_shapes(TINY), np.float32, settings=settings)
    words = ["convert", "x-omni", "--model", str(made / "model"), "--text-tokenizer", str(made / "tokenizer.json"),
             "--config", json.dumps({"grid": 3, "columns": 4}), "--dtype", "float32"]  # fmt: skip
    assert main([*words, "--out", str(made / "out")]) == 0
    return made / "out"


@pytest.mark.slow
def test_guesses_change_no_code(folder):
    loaded = load(folder, mesh="data=1")
    assert loaded.checkpoint.target_config == TINY
    assert loaded.checkpoint.defaults == {"guidance": 1.0, "temperature": 1.0, "top_k": 0, "min_p": 0.03}
    plain = loaded.generate(PROMPTS, method="ar", seed=3).tokens
    assert plain.shape == (2, 12) and len(np.unique(plain)) > 8
    guessed = loaded.generate(PROMPTS, method="jacobi:nodes=5", seed=3, batch=1)
    np.testing.assert_array_equal(guessed.tokens, plain)
    assert FAMILIES["x_omni"].product(TINY, plain)["codes"].shape == (2, 3, 4)


def test_prompts_end_in_the_header_of_a_picture(folder):
    encoder = XOmniEncoder(PromptParts(TINY, text_tokenizer=folder / "text" / "tokenizer.json"))
    row, against = encoder.rows("a lake", None)
    assert row == encoder.parts.tokenizer.encode("a lake<SOM>3 4<IMAGE>") and row[-1] == TEXT + CODES + 2
    assert against == encoder.parts.tokenizer.encode("<SOM>3 4<IMAGE>")
    made = encoder.encode(["a lake"])
    tokens = made.tokens[0][made.mask[0]]
    # Marks come right after the codes, text after them.
    assert tokens[-1] == CODES + 2 and tokens[0] == row[0] + 28
