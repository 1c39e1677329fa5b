"""Files of a tiny LlamaGen as they are published: a class-conditional GPT, its VQ tokenizer and a drafter."""

import json
from pathlib import Path

import numpy as np

from lantern_jax.families.drafter_weights import drafter_table
from lantern_jax.families.llamagen_vq_weights import vq_table
from lantern_jax.families.llamagen_weights import ORIGINAL_NAMES, gpt_table
from lantern_jax.models.drafter import DrafterConfig
from lantern_jax.models.llamagen import LlamaGenConfig
from lantern_jax.models.vq import VQConfig
from tests.golden_cases import golden_weight

GPT = LlamaGenConfig(dim=32, num_layers=2, num_heads=2, vocab_size=24, grid=4, hidden_dim=48, num_labels=6)
DRAFTER = DrafterConfig(dim=32, num_heads=4, hidden_dim=40, vocab_size=24, grid=4, prefix_length=1)
VQ = VQConfig(
    ch=32, ch_mult=(1,), z_channels=8, codebook_size=24, codebook_dim=4, encoder_blocks=1, decoder_blocks=1
)
SETTINGS = {"num_heads": 2, "grid": 4}


def published_tensors() -> dict[str, dict[str, np.ndarray]]:
    """{part: {published name: array}}."""
    tables = {"gpt": gpt_table(GPT, ORIGINAL_NAMES), "vq": vq_table(VQ), "drafter": drafter_table(DRAFTER)}
    tensors = {
        part: {name: golden_weight(name, entry.shape, 0) for name, entry in table.items()}
        for part, table in tables.items()
    }
    tensors["vq"]["quantize.codebook_used"] = np.zeros(24, np.float32)
    return tensors


def write_settings(folder: Path) -> Path:
    """The config file with what shapes do not tell, and the drafter's own config beside it."""
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    return folder / "settings.json"
