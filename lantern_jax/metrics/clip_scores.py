"""How well pictures fit their prompts by CLIP: the plain CLIP score and the human preference score HPSv2.

Both are the cosine of a picture's and a text's embedding, of networks with other weights and preprocessing.

Axes: n pictures with their prompts, h w height and width, P positions, F embedding.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.metrics.clip import Clip, ClipConfig
from lantern_jax.metrics.clip_files import read_clip
from lantern_jax.metrics.clip_pictures import clip_input, padded_input
from lantern_jax.metrics.clip_tokenizer import ClipTokenizer, load_clip_tokenizer
from lantern_jax.metrics.features import FeatureReader
from lantern_jax.metrics.scores import Score

Picture = UInt8[np.ndarray, "H W 3"]
HPS_VERSIONS = ("2.0", "2.1")
# What LANTERN's evaluation puts before every prompt, after arXiv 2104.08718.
LANTERN_PREFIX = "A photo depicts "


@partial(jax.jit, static_argnums=(0, 1))
def embed(config: ClipConfig, method: str, params: Any, inputs: Array) -> Float[Array, "n F"]:
    """Embeddings of length 1, of pictures or texts; in full float32 on devices that would round products too."""
    with jax.default_matmul_precision("highest"):
        found = Clip(config).apply(params, inputs, method=method)
    return found / jnp.linalg.norm(found, axis=-1, keepdims=True)


def embedding_reader(
    config: ClipConfig, params: Any, prepare: Callable[[Picture, int], Float[np.ndarray, "h w 3"]], *,
    name: str, batch: int,
) -> FeatureReader:  # fmt: skip
    """The reader of a CLIP's picture embeddings, of length 1.

    Args:
        params: of ``Clip``, on the device.
        prepare: (picture, side) -> what the network takes.
        name: of all of it.
    """
    return FeatureReader(
        name=name,
        width=config.embedding,
        prepare=lambda picture: prepare(picture, config.side),
        read=lambda pictures: embed(config, "embed_pictures", params, pictures),
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
    """The CLIP score: the plain cosine of picture and prompt, about 0.2 to 0.4 for good ones.

    It is what LlamaGen, LANTERN and Cool-SD print. Others multiply it, negatives set to 0: by 2.5 (arXiv 2104.08718) or
    by 100 (torchmetrics).

    Args:
        weights: file or folder; see ``read_clip``.
        tokenizer: file or folder, see ``load_clip_tokenizer``; None is the folder of the weights.
        activation: see ``read_clip``.
        prefix: put before every prompt, such as ``LANTERN_PREFIX``.
        batch: pictures read at once.

    Raises:
        ValueError: one line: a file cannot be read, is not CLIP's, or weights and tokenizer do not belong together.
        ImportError: a package that reads them is not installed.
    """
    config, *parts = _load(weights, tokenizer, activation)
    name = f"{config.name}, plain cosine" + (f", prompts after {prefix.strip()!r}" if prefix else "")
    return _cosine(name, config, *parts, clip_input, prefix, batch)


def hps_scores(
    weights: str | Path,
    tokenizer: str | Path | None = None,
    *,
    version: str | None = None,
    antialias: bool = True,
    batch: int = 16,
) -> Score:
    """The human preference score v2 (arXiv 2306.09341): the raw cosine, about 0.2 to 0.35.

    The tables of its authors show it times 100. Versions 2.0 and 2.1 are other weights and not comparable.

    Args:
        weights: ``HPS_v2_compressed.pt`` (2.0) or ``HPS_v2.1_compressed.pt``, or the same tensors in another file.
        tokenizer: as in ``clip_scores``.
        version: "2.0" or "2.1", for a file whose name does not say it.
        antialias: see ``padded_input``.
        batch: pictures read at once.

    Raises:
        ValueError, ImportError: as ``clip_scores``.
    """
    version = version or _version_named(Path(weights))
    if version not in HPS_VERSIONS:
        raise errors.unknown("version of HPSv2", version, HPS_VERSIONS)
    name = f"HPSv{version}, raw cosine" + ("" if antialias else ", resized without antialiasing")
    prepare = partial(padded_input, antialias=antialias)
    return _cosine(name, *_load(weights, tokenizer, "gelu"), prepare, "", batch)


def _version_named(weights: Path) -> str:
    named = re.match(r"HPS_v2(\.\d+)?(?=[_.])", weights.name)
    if not named:
        raise LanternError(
            f"whether {weights} is HPSv2.0 or 2.1 cannot be told from its name: give the version"
        )
    return f"2{named[1] or '.0'}"


def _load(
    weights: str | Path, tokenizer: str | Path | None, activation: str | None
) -> tuple[ClipConfig, Any, ClipTokenizer]:
    """(config, parameters on the device, tokenizer); the tokenizer first, because it is quickly read."""
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

    def of(pictures: Sequence[Picture], prompts: Sequence[str]) -> Float[np.ndarray, " n"]:
        if len(pictures) != len(prompts):
            raise LanternError(
                f"{len(pictures)} pictures for {len(prompts)} prompts: give one prompt a picture"
            )
        ids = tokenizer.encode(prompts, config.context, prefix)
        cosines = np.sum(reader.features(pictures) * _text_embeddings(config, params, ids, batch), axis=-1)
        if not np.isfinite(cosines).all():
            raise LanternError(f"{name}: cosines are not finite: the weights are damaged, fetch them again")
        return cosines

    return Score(name, of)


def _text_embeddings(
    config: ClipConfig, params: Any, ids: Int[np.ndarray, "n P"], batch: int
) -> Float[np.ndarray, "n F"]:
    """float64 [n, F], read in batches of one size."""
    parts = [np.zeros((0, config.embedding))]
    for start in range(0, len(ids), batch):
        some = ids[start : start + batch]
        filled = np.concatenate([some, np.zeros((batch - len(some), config.context), np.int32)])
        parts.append(np.asarray(embed(config, "embed_texts", params, filled), np.float64)[: len(some)])
    return np.concatenate(parts)
