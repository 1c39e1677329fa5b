"""CLIP's scores of pictures with prompts: the plain CLIP score and the human preference score HPSv2.

Both are the cosine of a picture's and a text's embedding; weights and preprocessing differ.

Axes: n pictures with their prompts, h w height and width, P positions, F embedding.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt8

from lantern_jax.apps.metrics.clip import Clip, ClipConfig
from lantern_jax.apps.metrics.clip_files import read_clip
from lantern_jax.apps.metrics.clip_tokenizer import ClipTokenizer, load_clip_tokenizer
from lantern_jax.apps.metrics.features import FeatureReader, Score, check_pairs, in_batches, network
from lantern_jax.apps.metrics.preprocessing import clip_input, padded_input
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

Picture = UInt8[np.ndarray, "H W 3"]
HPS_VERSIONS = ("2.0", "2.1")
# LANTERN's evaluation puts this before every prompt, after arXiv 2104.08718.
LANTERN_PREFIX = "A photo depicts "


def embedding(config: ClipConfig, params: PyTree, method: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function by which ``in_batches`` reads embeddings of length 1, from ``method`` of ``Clip``."""

    def apply(params: PyTree, inputs: Array) -> Float[Array, "n F"]:
        found = Clip(config).apply(params, inputs, method=method)
        return found / jnp.linalg.norm(found, axis=-1, keepdims=True)

    return network(apply, params)


def embedding_reader(
    config: ClipConfig, params: Any, prepare: Callable[[Picture, int], Float[np.ndarray, "h w 3"]], *,
    name: str, batch: int,
) -> FeatureReader:  # fmt: skip
    """Returns the reader of a CLIP's picture embeddings, of length 1.

    Args:
        params: of ``Clip``, on the device.
        prepare: (picture, side) -> the network's input.
        name: of network and preprocessing.
    """
    return FeatureReader(
        name=name,
        width=config.embedding,
        prepare=lambda picture: prepare(picture, config.side),
        read=embedding(config, params, "embed_pictures"),
        batch=batch,
    )


def clip_scores(
    weights: str | Path,
    tokenizer: str | Path | None = None,
    *,
    activation: str | None = None,
    prefix: str = "",
    batch: int = 32,
) -> Score:
    """Returns the CLIP score: the plain cosine of picture and prompt, about 0.2 to 0.4 for good ones.

    LlamaGen, LANTERN and Cool-SD print it. Others set negatives to 0 and multiply by 2.5 (arXiv 2104.08718) or 100
    (torchmetrics).

    Args:
        weights: file or folder; see ``read_clip``.
        tokenizer: file or folder, see ``load_clip_tokenizer``; None for the folder of the weights.
        activation: see ``read_clip``.
        prefix: put before every prompt, such as ``LANTERN_PREFIX``.
        batch: pictures read together.

    Raises:
        LanternError: a file cannot be read, is not CLIP's, or weights and tokenizer do not belong together.
        ImportError: a package that reads them is not installed.
    """
    config, *parts = _load(weights, tokenizer, activation)
    name = f"{config.name}, plain cosine" + (f", prompts after {prefix.strip()!r}" if prefix else "")
    return _cosine(name, config, *parts, clip_input, prefix, batch)


def lantern_clip_scores(weights: str | Path) -> Score:
    """Returns ``clip_scores`` with the prefix of LANTERN's evaluation."""
    return clip_scores(weights, prefix=LANTERN_PREFIX)


def hps_scores(
    weights: str | Path,
    tokenizer: str | Path | None = None,
    *,
    version: str | None = None,
    batch: int = 16,
) -> Score:
    """Returns the human preference score v2 (arXiv 2306.09341): the raw cosine, about 0.2 to 0.35.

    Its authors' tables show it times 100. Versions 2.0 and 2.1 have different weights and are not comparable.

    Args:
        weights: ``HPS_v2_compressed.pt`` (2.0) or ``HPS_v2.1_compressed.pt``, or the same tensors in another file.
        tokenizer: as in ``clip_scores``.
        version: "2.0" or "2.1", for a file whose name does not say it.
        batch: pictures read together.

    Raises:
        LanternError, ImportError: as ``clip_scores``.
    """
    version = version or _version_named(Path(weights))
    if version not in HPS_VERSIONS:
        raise errors.unknown("version of HPSv2", version, HPS_VERSIONS)
    loaded = _load(weights, tokenizer, "gelu")
    return _cosine(f"HPSv{version}, raw cosine", *loaded, padded_input, "", batch)


def _version_named(weights: Path) -> str:
    named = re.match(r"HPS_v2(\.\d+)?(?=[_.])", weights.name)
    if not named:
        raise LanternError(f"the name of {weights} does not tell HPSv2.0 from 2.1: give the version")
    return f"2{named[1] or '.0'}"


def _load(
    weights: str | Path, tokenizer: str | Path | None, activation: str | None
) -> tuple[ClipConfig, Any, ClipTokenizer]:
    """Reads (config, parameters on the device, tokenizer); the tokenizer first, because it is quick to read."""
    weights = Path(weights)
    if tokenizer is None:
        tokenizer = weights if weights.is_dir() else weights.parent
    ids = load_clip_tokenizer(tokenizer)
    config, params = read_clip(weights, activation)
    if ids.end != config.vocab_size - 1:
        raise LanternError(
            f"the tokenizer {tokenizer} ends at id {ids.end}, the table of {weights} at {config.vocab_size - 1}: "
            "give the tokenizer of these weights"
        )
    return config, jax.device_put(params), ids


def _cosine(
    name: str, config: ClipConfig, params: Any, tokenizer: ClipTokenizer,
    prepare: Callable[[Picture, int], Float[np.ndarray, "h w 3"]], prefix: str, batch: int,
) -> Score:  # fmt: skip
    reader = embedding_reader(config, params, prepare, name=name, batch=batch)
    read = embedding(config, params, "embed_texts")

    def of(pictures: Sequence[Picture], prompts: Sequence[str]) -> Float[np.ndarray, " n"]:
        check_pairs(pictures, prompts)
        ids = tokenizer.encode(prompts, config.context, prefix)
        texts = [np.zeros((0, config.embedding)), *in_batches(read, batch, zip(ids, strict=True))]
        cosines = np.sum(reader.features(pictures) * np.concatenate(texts), axis=-1)
        if not np.isfinite(cosines).all():
            raise LanternError(f"{name}: cosines are not finite: the weights are damaged, fetch them again")
        return cosines

    return Score(name, of)
