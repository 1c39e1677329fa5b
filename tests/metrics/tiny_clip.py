"""Small random CLIPs in both published layouts, their configs and a tokenizer, for tests of what is built on them."""

import json
import re

import numpy as np

from lantern_jax.apps.metrics.clip import ClipConfig, Tower
from lantern_jax.apps.metrics.clip_files import HUGGING_FACE, clip_table
from lantern_jax.apps.metrics.clip_tokenizer import END, START
from tests.fixtures.tensor_writing import random_tensor, write_safetensors

# The vocabulary of these merges: 256 bytes, the same at the end of a word, the merges, start and end.
MERGES = ("l a", "la k", "lak e</w>", "t h", "th e</w>")
VOCAB = 512 + len(MERGES) + 2
_PIECES = (
    rf"{re.escape(START)}|{re.escape(END)}|'s|'t|'re|'ve|'m|'ll|'d|\p{{L}}+|\p{{N}}|[^\s\p{{L}}\p{{N}}]+"
)
# One head of the usual width in each tower, so that shapes leave only the activation open.
CONFIG = ClipConfig(Tower(64, 2, 1, 48), Tower(64, 2, 1, 40), "quick_gelu", 4, 12, 20, VOCAB, 16)
# OpenAI's names; where one contains another, the longer comes first.
_RENAMED = (
    ("vision_model.embeddings.class_embedding", "visual.class_embedding"),
    ("vision_model.embeddings.patch_embedding.weight", "visual.conv1.weight"),
    ("vision_model.embeddings.position_embedding.weight", "visual.positional_embedding"),
    ("vision_model.pre_layrnorm", "visual.ln_pre"), ("vision_model.post_layernorm", "visual.ln_post"),
    ("vision_model.encoder.layers", "visual.transformer.resblocks"),
    ("text_model.embeddings.token_embedding", "token_embedding"),
    ("text_model.embeddings.position_embedding.weight", "positional_embedding"),
    ("text_model.encoder.layers", "transformer.resblocks"), ("text_model.final_layer_norm", "ln_final"),
    ("layer_norm1", "ln_1"), ("layer_norm2", "ln_2"), ("self_attn.out_proj", "attn.out_proj"),
    ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"), ("visual_projection.weight", "visual.proj"),
    ("text_projection.weight", "text_projection"),
)  # fmt: skip


def hugging_face_shapes(config=CONFIG):
    return {name: entry.shape for name, entry in clip_table(config, HUGGING_FACE).items()}


def hugging_face_tensors(config=CONFIG, seed=0):
    return {name: random_tensor(name, shape, seed) for name, shape in hugging_face_shapes(config).items()}


def to_openai(tensors):
    renamed = {}
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            pieces = [tensors[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            name, tensor = name.replace("self_attn.q_proj.", "attn.in_proj_"), np.concatenate(pieces)
        elif ".k_proj." in name or ".v_proj." in name:
            continue
        elif "_projection." in name:
            tensor = tensor.T
        for old, new in _RENAMED:
            name = name.replace(old, new)
        renamed[name] = tensor
    return renamed


def write_folder(folder, config=CONFIG, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", hugging_face_shapes(config), np.float32, seed)
    towers = {
        f"{name}_config": {
            "hidden_size": tower.width, "num_attention_heads": tower.heads, "hidden_act": config.activation,
        }
        for name, tower in (("vision", config.vision), ("text", config.text))
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "clip", **towers}))
    return folder


def byte_letters() -> list[str]:
    """Returns a printable character per byte, in the vocabulary's order: first the printable bytes, as themselves."""
    printing = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(code) for code in (*printing, *range(0x100, 0x200 - len(printing)))]


def write_tokenizer(path):
    """Writes a tokenizer.json with these merges, as CLIP's."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    merges = [tuple(merge.split()) for merge in MERGES]
    tokens = [
        *byte_letters(),
        *(f"{letter}</w>" for letter in byte_letters()),
        *map("".join, merges),
        START,
        END,
    ]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=END, end_of_word_suffix="</w>"))
    tokenizer.add_special_tokens([START, END])
    pieces = pre_tokenizers.Split(Regex(_PIECES), behavior="removed", invert=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, letters])
    tokenizer.save(str(path))
    return path


def random_pictures(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
