"""Captions to the features that caption-conditional LlamaGen takes.

Axes: n captions, P positions, D width of the encoder.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from lantern_jax.devices.partition import outside_mesh
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.t5 import T5Config, T5Encoder
from lantern_jax.text.captions import clean_caption
from lantern_jax.text.packed import PackedRows, padded_rows
from lantern_jax.text.tokenizers import TextTokenizer

# T5's ids of the end of a text and of padding, and their names.
END, PADDING = 1, 0
NAMES = {"<pad>": PADDING, "</s>": END}
# The most spare rows of an embedding table: published ones are filled up to a multiple of 128.
SPARE_ROWS = 512
# Captions that go through the encoder together.
CHUNK = 8


@outside_mesh()
def encode_captions(
    params: Mapping[str, Any],
    config: T5Config,
    tokens: Int[np.ndarray, "n P"],
    mask: Bool[np.ndarray, "n P"],
    dtype: jnp.dtype = jnp.float32,
) -> PackedRows:
    """Encodes what ``caption_tokens`` returns to features [n, P, D], left-padded as LlamaGen takes them, on the host.

    They are encoded with padding on the right, as T5 was trained; then the features move to the right, after zeros.

    Args:
        params: of ``T5Encoder(config)``.
        dtype: of the encoder's arithmetic and the features.
    """
    # Moved to the device once, not for every chunk.
    params = jax.tree.map(jnp.asarray, params)
    size = min(CHUNK, len(tokens))
    ends = np.cumsum(mask.sum(axis=1))
    features = np.empty((ends[-1], config.dim), dtype)
    for start in range(0, len(tokens), size):
        # The last chunk is filled up with earlier captions, so that one program serves all chunks.
        chunk = np.arange(start, start + size) % len(tokens)
        encoded = np.asarray(_encode(config, dtype, params, tokens[chunk], mask[chunk]))
        for i, row in zip(chunk[: len(tokens) - start], encoded, strict=False):
            count = int(mask[i].sum())
            features[ends[i] - count : ends[i]] = row[:count]
    return PackedRows(features, mask[:, ::-1].copy())


def check_tokenizer(tokenizer: TextTokenizer, vocab_size: int, path: Path) -> None:
    """Raises LanternError unless a tokenizer (of the file ``path``) fits a T5 encoder of ``vocab_size`` embeddings."""
    wrong = [
        f"{name} is its id {tokenizer.id_of(name)}, T5's {i}"
        for name, i in NAMES.items()
        if tokenizer.id_of(name) != i
    ]
    if not vocab_size - SPARE_ROWS <= tokenizer.pieces <= vocab_size:
        wrong.append(f"it has {tokenizer.pieces} pieces, the text encoder {vocab_size} embeddings")
    if wrong:
        raise LanternError(
            f"{path} is not the tokenizer of this text encoder: {'; '.join(wrong)}; give the encoder's own"
        )


def caption_tokens(
    tokenizer: TextTokenizer, captions: Sequence[str], length: int
) -> tuple[Int[np.ndarray, "n P"], Bool[np.ndarray, "n P"]]:
    """Returns token ids of cleaned captions and their mask, padded on the right.

    They are cut to ``length`` tokens, P, including T5's end token. Raises LanternError for a caption that cleaning
    leaves empty.
    """
    rows = []
    for caption in captions:
        cleaned = clean_caption(caption)
        if not cleaned:
            raise LanternError(
                f"prompt {errors.quoted(caption)} holds no words to encode: describe a picture in words"
            )
        rows.append([*tokenizer.encode(cleaned)[: length - 1], END])
    return padded_rows(rows, length, PADDING)


def cut_of(tokenizer: TextTokenizer, length: int, captions: Sequence[str]) -> str:
    """Returns a line about captions of more than ``length`` tokens, whose ends are cut, or "" if there are none."""
    counts = {caption: len(tokenizer.encode(clean_caption(caption))) + 1 for caption in captions}
    cut = [f"{errors.short(repr(text), 50)} ({n} tokens)" for text, n in counts.items() if n > length]
    return f"ignored, after {length} tokens: the end of {errors.listed(cut, 3)}" if cut else ""


@partial(jax.jit, static_argnums=(0, 1))
def _encode(config, dtype, params, tokens, mask):
    return T5Encoder(config, dtype).apply(params, tokens, mask)
