"""Checkpoints with random weights in the layouts in which models are published, to try converters and commands on.

    python -m eval.published_layouts KIND --out PATH [--size full|tiny] [--model XL] [--seed 0]

Published files: LlamaGen GPTs and VQ tokenizers (`.pt`), LlamaGen-T2I as on the Hugging Face hub, Chameleon (Anole,
Lumina-mGPT) as on the hub, its `vqgan.ckpt` and `text_tokenizer.json`, Flan-T5, LANTERN's drafters. The tiny sizes fit
together: codes, widths and vocabularies are those that their tiny targets expect.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from eval.published_shapes import (
    Shapes,
    chameleon_shapes,
    drafter_shapes,
    hugging_face_gpt_shapes,
    llamagen_vq_shapes,
    original_gpt_shapes,
    t5_shapes,
    vqgan_shapes,
)
from eval.tensor_writing import SHARD_BYTES, new, write_folder, write_torch
from lantern_jax.models.chameleon import ChameleonConfig
from lantern_jax.models.drafter import DrafterConfig
from lantern_jax.models.llamagen import SIZES, LlamaGenConfig, published_config
from lantern_jax.models.vq import CHAMELEON_VQ, VQ_8, VQ_16, VQConfig

# Changes to what is written: a shape adds a tensor or gives it another shape, None leaves it out.
Changes = Mapping[str, tuple[int, ...] | None]

TINY_CLASS = LlamaGenConfig(32, 2, 2, vocab_size=64, grid=4, hidden_dim=48, num_labels=6)
TINY_CAPTION = LlamaGenConfig(
    32, 2, 2, vocab_size=64, grid=4, hidden_dim=48, caption_dim=24, caption_length=12
)
TINY_VQ = VQConfig(ch=32, ch_mult=(1, 1), z_channels=16, codebook_size=64, encoder_blocks=1, decoder_blocks=1)
TINY_CHAMELEON = ChameleonConfig(32, 2, 2, hidden_dim=48, vocab_size=9216, num_codes=64, grid=4)
TINY_VQGAN = dataclasses.replace(TINY_VQ, codebook_dim=16, l2_norm=False, level_attention=False)
# Text may have the ids from here on in a made-up text_tokenizer.json; size tokens end here.
FIRST_TEXT_ID = 8900
# Flan-T5's own config.json, as far as it decides shapes.
T5_XL = {
    "d_model": 2048, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 32, "d_kv": 64, "d_ff": 5120,
    "vocab_size": 32128, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
}  # fmt: skip
TINY_T5 = T5_XL | {
    "d_model": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 40, "vocab_size": 384,
}  # fmt: skip


def write_llamagen(
    path: str | Path,
    config: LlamaGenConfig,
    layout: str = "original",
    *,
    dtype: Any = np.float32,
    seed: int = 0,
    changes: Changes | None = None,
) -> Path:
    """A LlamaGen GPT: a ``.pt`` file ("original") or a folder of the hub ("hugging_face"); returns its path.

    The original class-conditional files have the weights under "model", the caption-conditional ones at the top.
    """
    path = Path(path)
    if layout == "hugging_face":
        settings = {
            "architectures": ["LlamaGenForCausalLM"], "model_type": "llamagen", **_llama_settings(config),
            "intermediate_size": config.transformer.hidden_dim, "block_size": config.num_tokens,
        }  # fmt: skip
        write_folder(path, _changed(hugging_face_gpt_shapes(config), changes), dtype, seed, settings=settings)
        return path
    if layout != "original":
        raise ValueError(f"unknown layout {layout!r}: choose original or hugging_face")
    wrapper = {"key": "model", "beside": {"steps": 1}} if config.num_labels else {}
    with new(path) as partial:
        write_torch(partial, _changed(original_gpt_shapes(config), changes), dtype, seed, **wrapper)
    return path


def write_vq(path: str | Path, config: VQConfig, *, seed: int = 0, changes: Changes | None = None) -> Path:
    """LlamaGen's VQ tokenizer: a ``.pt`` file."""
    with new(Path(path)) as partial:
        write_torch(partial, _changed(llamagen_vq_shapes(config), changes), np.float32, seed, key="model")
    return Path(path)


def write_vqgan(path: str | Path, config: VQConfig, *, seed: int = 0, changes: Changes | None = None) -> Path:
    """Chameleon's VQGAN: a ``.ckpt`` file that still has the tensors of its training losses."""
    beside = {"epoch": 3, "global_step": 1000}
    with new(Path(path)) as partial:
        shapes = _changed(vqgan_shapes(config), changes)
        write_torch(partial, shapes, np.float32, seed, key="state_dict", beside=beside)
    return Path(path)


def write_chameleon(
    folder: str | Path,
    config: ChameleonConfig,
    vqgan: VQConfig,
    *,
    dtype: Any = ml_dtypes.bfloat16,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    changes: Changes | None = None,
) -> Path:
    """Chameleon as on the hub, with the encoder of its VQGAN inside: a folder of safetensors shards."""
    settings = {
        "architectures": ["ChameleonForConditionalGeneration"], "model_type": "chameleon",
        "torch_dtype": np.dtype(dtype).name, **_llama_settings(config),
        "vq_config": {"embed_dim": vqgan.codebook_dim, "num_embeddings": vqgan.codebook_size},
    }  # fmt: skip
    write_folder(
        Path(folder), _changed(chameleon_shapes(config, vqgan), changes), dtype, seed, settings=settings,
        shard_bytes=shard_bytes,
    )  # fmt: skip
    return Path(folder)


def write_drafter(
    folder: str | Path,
    config: DrafterConfig,
    *,
    kind: str = "bin",
    dtype: Any = np.float32,
    seed: int = 0,
    changes: Changes | None = None,
) -> Path:
    """A LANTERN drafter: a folder with ``pytorch_model.bin`` or ``model.safetensors`` and ``config.json``.

    One with norms of queries and keys is Anole's.
    """
    anole = config.qk_norm == "layer"
    settings = {
        "architectures": ["ChameleonForConditionalGeneration" if anole else "LlamaForCausalLM"],
        "model_type": "chameleon" if anole else "llama", **_llama_settings(config), "num_hidden_layers": 1,
    }  # fmt: skip
    shapes = _changed(drafter_shapes(config), changes)
    write_folder(Path(folder), shapes, dtype, seed, settings=settings, kind=kind)
    return Path(folder)


def write_t5(
    folder: str | Path,
    settings: Mapping[str, Any] = T5_XL,
    *,
    decoder: bool = True,
    kind: str = "safetensors",
    dtype: Any = np.float32,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    changes: Changes | None = None,
) -> Path:
    """Flan-T5 as on the hub, with or without its decoder: a folder of shards."""
    written = {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", **settings,
        "feed_forward_proj": "gated-gelu", "is_gated_act": True, "dense_act_fn": "gelu_new",
        "layer_norm_epsilon": 1e-6, "tie_word_embeddings": False,
    }  # fmt: skip
    shapes = _changed(t5_shapes(settings, decoder), changes)
    write_folder(Path(folder), shapes, dtype, seed, settings=written, kind=kind, shard_bytes=shard_bytes)
    return Path(folder)


def write_t5_tokenizer(path: str | Path) -> Path:
    """T5's ``tokenizer.json``: a unigram model of the printable ASCII characters and a few words, 256 ids at most."""
    words = ["▁", *(f"▁{word}" for word in ("a", "the", "of", "lake", "snowy", "mountains", "at", "dusk"))]
    characters = [chr(code) for code in range(ord("!"), 127)]
    special = ["<pad>", "</s>", "<unk>"]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    content = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [_added_token(i, name) for i, name in enumerate(special)],
        "normalizer": None, "pre_tokenizer": metaspace, "decoder": metaspace,
        "post_processor": {
            "type": "TemplateProcessing", "pair": [],
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "model": {
            "type": "Unigram", "unk_id": 2, "byte_fallback": False,
            "vocab": [[name, 0.0] for name in special] + [[w, -2.0] for w in words] + [[c, -8.0] for c in characters],
        },
    }  # fmt: skip
    return _write_json(Path(path), content)


def write_text_tokenizer(
    path: str | Path, num_codes: int = 8192, vocab_size: int = 65536, *, shuffle: int | None = None
) -> Path:
    """Chameleon's ``text_tokenizer.json``: a byte-level BPE whose image tokens are named after codebook entries.

    Ids are as published: 4 and on image tokens, 8196 image end, 8197 image start, 8710 separator, 8803 row end,
    8804 + n "n cells". Text (all bytes and a few words) has the last ids. ``shuffle`` is a seed: image tokens are
    then not in the codebook's order. Needs the package ``tokenizers``.

    Raises:
        ValueError: ids that do not fit.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    merges = list(_merges("a", "the", "cat", "dog", "lake", "snow", "red", "Generate", "image", "prompt"))
    text = [*dict.fromkeys("".join(pair) for pair in merges), *sorted(ByteLevel.alphabet())]
    least = FIRST_TEXT_ID + len(text)
    if not 0 < num_codes <= 8192 or vocab_size < least:
        raise ValueError(
            f"{num_codes} codes in {vocab_size} ids: give at most 8192 codes and at least {least} ids"
        )
    names = [f"<reserved{i - 4:05d}>" for i in range(vocab_size)]
    names[:4] = ["<s>", "<pad>", "</s>", "<unk>"]
    names[8196:8198] = ["<eoss>", "<racm3:break>"]
    special = [*range(4), 8196, 8197, 8710, *range(8803, FIRST_TEXT_ID)]
    codes = np.arange(num_codes)
    if shuffle is not None:
        codes = np.random.default_rng(shuffle).permutation(num_codes)
    letters = str.maketrans("0123456789", "ABCDEFGHIJ")
    names[4 : 4 + num_codes] = [f"IMGIMG{str(code).translate(letters)}Z" for code in codes]
    names[-len(text) :] = text
    content = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [_added_token(i, names[i]) for i in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {name: i for i, name in enumerate(names)}, "merges": [" ".join(pair) for pair in merges],
        },
    }  # fmt: skip
    return _write_json(Path(path), content)


def _added_token(number: int, name: str) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": name, "special": True, **plain}


def _write_json(path: Path, content: Any) -> Path:
    with new(path) as partial:
        partial.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def _merges(*words: str) -> Iterator[tuple[str, str]]:
    """The pairs that put each word together from the left; Ġ is the byte-level space before it."""
    seen = set()
    for word in (f"Ġ{word}" for word in words):
        for i in range(1, len(word)):
            if word[: i + 1] not in seen:
                seen.add(word[: i + 1])
                yield word[:i], word[i]


def _changed(shapes: Shapes, changes: Changes | None) -> Shapes:
    changed = {**shapes, **(changes or {})}
    return {name: tuple(shape) for name, shape in changed.items() if shape is not None}


def _llama_settings(config: Any) -> dict[str, Any]:
    """A config.json's usual entries."""
    settings = {
        "hidden_size": config.dim, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads, "intermediate_size": config.hidden_dim,
        "vocab_size": config.vocab_size, "rms_norm_eps": config.norm_eps, "rope_theta": config.rope_base,
    }  # fmt: skip
    if hasattr(config, "num_layers"):
        settings["num_hidden_layers"] = config.num_layers
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=_WRITERS)
    parser.add_argument(
        "--out", required=True, type=Path, help="the file (.pt, .ckpt, .json) or folder to write"
    )
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--model", choices=SIZES, help="full size of c2i (B), t2i and their drafters (XL)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    _WRITERS[options.kind](options.out, options.size == "tiny", options.model, options.seed)
    print(options.out)


def _class(tiny: bool, size: str | None) -> LlamaGenConfig:
    return TINY_CLASS if tiny else published_config(size or "B")


def _caption(tiny: bool, size: str | None) -> LlamaGenConfig:
    return TINY_CAPTION if tiny else published_config(size or "XL", "caption")


def _chameleon(tiny: bool) -> tuple[ChameleonConfig, VQConfig]:
    return (TINY_CHAMELEON, TINY_VQGAN) if tiny else (ChameleonConfig(), CHAMELEON_VQ)


def drafter_of(target: LlamaGenConfig | ChameleonConfig) -> DrafterConfig:
    """The drafter of a target: its width, heads and feed-forward width."""
    layer = target.transformer
    return DrafterConfig(
        num_heads=layer.num_heads,
        hidden_dim=layer.hidden_dim,
        qk_norm=layer.qk_norm,
        **target.shared_with_drafter,
    )


# kind -> what writes it, given (path, tiny, size, seed).
_WRITERS = {
    "c2i": lambda path, tiny, size, seed: write_llamagen(path, _class(tiny, size), seed=seed),
    "t2i": lambda path, tiny, size, seed: write_llamagen(path, _caption(tiny, size), seed=seed),
    "t2i-hf": lambda path, tiny, size, seed: write_llamagen(
        path, _caption(tiny, size), "hugging_face", seed=seed
    ),
    "vq-16": lambda path, tiny, size, seed: write_vq(path, TINY_VQ if tiny else VQ_16, seed=seed),
    "vq-8": lambda path, tiny, size, seed: write_vq(path, TINY_VQ if tiny else VQ_8, seed=seed),
    "chameleon": lambda path, tiny, size, seed: write_chameleon(path, *_chameleon(tiny), seed=seed),
    "vqgan": lambda path, tiny, size, seed: write_vqgan(path, _chameleon(tiny)[1], seed=seed),
    "t5": lambda path, tiny, size, seed: write_t5(path, TINY_T5 if tiny else T5_XL, seed=seed),
    "drafter-llamagen": lambda path, tiny, size, seed: write_drafter(
        path, drafter_of(_caption(tiny, size)), seed=seed
    ),
    "drafter-anole": lambda path, tiny, size, seed: write_drafter(
        path, drafter_of(_chameleon(tiny)[0]), kind="safetensors", dtype=ml_dtypes.bfloat16, seed=seed
    ),
    "t5-tokenizer": lambda path, tiny, size, seed: write_t5_tokenizer(path),
    "text-tokenizer": lambda path, tiny, size, seed: write_text_tokenizer(
        path, _chameleon(tiny)[0].num_codes, _chameleon(tiny)[0].vocab_size, shuffle=seed
    ),
}

if __name__ == "__main__":
    main()
