"""What CLIP's embeddings measure: the CLIP score, the human preference score HPSv2, and the features of CMMD.

The scores are cosines of a picture's and a text's embedding; weights and preprocessing differ.

Axes: n pictures with their prompts, H W height and width, h w those of a network's input, F embedding.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt8

from lantern_jax.apps.metrics.clip import Clip, ClipConfig
from lantern_jax.apps.metrics.clip_files import read_clip
from lantern_jax.apps.metrics.clip_tokenizer import load_clip_tokenizer
from lantern_jax.apps.metrics.features import (
    FeatureReader,
    Score,
    check_pairs,
    in_batches,
    network,
    usual_batch,
)
from lantern_jax.apps.metrics.preprocessing import clip_input, padded_input, square_input
from lantern_jax.io.errors import LanternError

Picture = UInt8[np.ndarray, "H W 3"]
Prepare = Callable[[Picture, int], Float[np.ndarray, "h w 3"]]
# LANTERN's evaluation puts this before every prompt, after arXiv 2104.08718.
LANTERN_PREFIX = "A photo depicts "


def clip_scores(weights: str | Path, tokenizer: str | Path | None = None, *, prefix: str = "") -> Score:
    """Returns the CLIP score: the plain cosine of picture and prompt, about 0.2 to 0.4 for good ones.

    LlamaGen, LANTERN and Cool-SD print it. Others set negatives to 0 and multiply by 2.5 (arXiv 2104.08718) or 100
    (torchmetrics).

    Args:
        weights: file or folder; see ``read_clip``.
        tokenizer: file or folder, see ``load_clip_tokenizer``; None for the folder of the weights.
        prefix: put before every prompt, such as ``LANTERN_PREFIX``.

    Raises:
        LanternError: a file cannot be read, is not CLIP's, or weights and tokenizer do not belong together.
        ImportError: a package that reads them is not installed.
    """
    name = "{}, plain cosine" + (f", prompts after {prefix.strip()!r}" if prefix else "")
    return _cosine(name, weights, tokenizer, None, clip_input, prefix)


def lantern_clip_scores(weights: str | Path) -> Score:
    """Returns ``clip_scores`` with the prefix of LANTERN's evaluation."""
    return clip_scores(weights, prefix=LANTERN_PREFIX)


def hps_scores(weights: str | Path, tokenizer: str | Path | None = None) -> Score:
    """Returns the human preference score v2 (arXiv 2306.09341): the raw cosine, about 0.2 to 0.35.

    Its authors' tables show it times 100. Versions 2.0 and 2.1 have different weights and are not comparable; which one
    it is, the file's name says.

    Args:
        weights: ``HPS_v2_compressed.pt`` (2.0) or ``HPS_v2.1_compressed.pt``, or the same tensors in another file.
        tokenizer: as in ``clip_scores``.

    Raises:
        LanternError: as ``clip_scores``; a file whose name does not say the version.
        ImportError: as ``clip_scores``.
    """
    named = re.match(r"HPS_v2(\.1)?(?=[_.])", Path(weights).name)
    if not named:
        raise LanternError(
            f"the name of {weights} does not tell HPSv2.0 from 2.1: keep HPS_v2 or HPS_v2.1 in it"
        )
    return _cosine(f"HPSv2{named[1] or '.0'}, raw cosine", weights, tokenizer, "gelu", padded_input)


def cmmd_features(weights: str | Path) -> FeatureReader:
    """Returns the reader of CMMD's embeddings (arXiv 2401.09603), of length 1; the published CLIP is ViT-L/14@336.

    Args:
        weights: see ``read_clip``.

    Raises:
        LanternError, ImportError: as ``read_clip``.
    """
    config, params = read_clip(weights)
    return _reader(f"{config.name} picture embedding, middle square, bicubic", config, params, square_input)


def _reader(name: str, config: ClipConfig, params: PyTree, prepare: Prepare) -> FeatureReader:
    """Returns the reader of a CLIP's picture embeddings, of length 1."""
    read = _embedding(config, params, "embed_pictures")
    return FeatureReader(name, config.embedding, partial(prepare, side=config.side), read, usual_batch())


def _embedding(config: ClipConfig, params: PyTree, method: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function by which ``in_batches`` reads embeddings of length 1, from ``method`` of ``Clip``."""

    def apply(params: PyTree, inputs: Array) -> Float[Array, "n F"]:
        found = Clip(config).apply(params, inputs, method=method)
        return found / jnp.linalg.norm(found, axis=-1, keepdims=True)

    return network(apply, params)


def _cosine(
    name: str, weights: str | Path, tokenizer: str | Path | None, activation: str | None, prepare: Prepare,
    prefix: str = "",
) -> Score:  # fmt: skip
    """Returns the score of the weights and the tokenizer in these files; {} in its name stands for the network's."""
    weights = Path(weights)
    if tokenizer is None:
        tokenizer = weights if weights.is_dir() else weights.parent
    # The tokenizer first, because it is quick to read.
    words = load_clip_tokenizer(tokenizer)
    config, params = read_clip(weights, activation)
    if words.end != config.vocab_size - 1:
        raise LanternError(
            f"the tokenizer {tokenizer} ends at id {words.end}, the table of {weights} at {config.vocab_size - 1}: "
            "give the tokenizer of these weights"
        )
    # Both towers read the same copy.
    params = jax.device_put(params)
    reader = _reader(name.format(config.name), config, params, prepare)
    read = _embedding(config, params, "embed_texts")

    def of(pictures: Sequence[Picture], prompts: Sequence[str]) -> Float[np.ndarray, " n"]:
        check_pairs(pictures, prompts)
        ids = words.encode(prompts, config.context, prefix)
        texts: list[Any] = [np.zeros((0, config.embedding))]
        texts += in_batches(read, reader.batch, zip(ids, strict=True))
        return np.sum(reader.features(pictures) * np.concatenate(texts), axis=-1)

    return Score(reader.name, of)
