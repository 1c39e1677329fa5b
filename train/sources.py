"""Where the drafter's training pictures come from: prompts, and codes where the target does not draw them itself.

What is costly is computed once and kept in the working folder, shard by shard, each whole or absent:

    codes/codes_00000.npy         int32 [n, C], pictures through the VQ tokenizer
    captions/captions_00000.npz   captions through the text encoder (`lantern_jax.text.encoded`)

Each folder notes all that determines its files (`claim`), weights included, so nothing is reused for another model.

Axes: n pictures, P prefix, C codes of a picture.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import load_text_encoder
from lantern_jax.families.llamagen.imagenet import IMAGENET_CLASSES
from lantern_jax.families.llamagen.prompts import CaptionEncoder
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_text
from lantern_jax.pipeline.inputs import prompt_encoder
from lantern_jax.text.encoded import load_encoded, save_encoded
from lantern_jax.text.encoders import Conditioning
from lantern_jax.text.vocabulary import UNSPECIFIED, Vocabulary
from train.claims import claim, parameters_digest
from train.encode import encode_pictures
from train.feature_store import map_array, write_array
from train.painter.scenes import check_vocabulary, sample_scene
from train.picture_folder import PictureFolder
from train.reports import Reporter

# Pictures or captions per cached file.
CACHED = 64
# The most bytes of a list of prompts.
_LARGEST = 128 * 2**20
# Pictures through the VQ tokenizer at a time.
ENCODED = 8

Rows = Int[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class Source:
    """Pictures from which features are extracted.

    Attributes:
        name: what they are, for messages.
        count: how many.
        conditioning: rows -> what the target is conditioned on, leaves [n, P, ...].
        codes: rows -> int32 [n, C]; None where the target draws the pictures.
        digest: of what determines them, to recognise them.
    """

    name: str
    count: int
    conditioning: Callable[[Rows], Conditioning]
    codes: Callable[[Rows], Int[np.ndarray, "n C"]] | None = None
    digest: str = ""


def random_labels(
    vocabulary: Vocabulary | None, rng: np.random.Generator, count: int, drop_one: float = 0.15
) -> Int[np.ndarray, "n P"]:
    """Draws label ids of random landscapes like the painter's, attributes left out as in the target's training.

    Raises LanternError if a checkpoint's vocabulary is not of landscapes.
    """
    check_vocabulary(vocabulary)
    seed = int(rng.integers(2**32))
    scenes = [sample_scene(seed, index).indices() for index in range(count)]
    drawn = np.array(scenes, np.int32).reshape(count, vocabulary.num_attributes)
    return vocabulary.label_ids(np.where(rng.random(drawn.shape) < drop_one, UNSPECIFIED, drawn))


def landscapes(
    checkpoint: Checkpoint, tokens: np.ndarray, attributes: np.ndarray, samples: int, seed: int
) -> list[Source]:
    """Returns encoded landscapes (`train.encode`), then samples of random landscape prompts.

    Both are in the words of the checkpoint's vocabulary. Raises LanternError if that is not of landscapes.
    """
    random = random_labels(checkpoint.vocabulary, np.random.default_rng(seed), samples)
    drawn = checkpoint.vocabulary.label_ids(attributes)
    return [
        Source(
            "pictures", len(tokens), lambda rows: drawn[rows],
            lambda rows: tokens[rows].astype(np.int32), _digest(tokens, drawn),
        ),
        Source(
            "samples", samples, lambda rows: random[rows], digest=_digest(random, seed)
        ),
    ]  # fmt: skip


def prompted(
    checkpoint: Checkpoint,
    workdir: str | Path,
    folder: str | Path | None = None,
    prompts: Sequence[str] = (),
    *,
    pictures: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    dtype: Any = np.float32,
) -> list[Source]:
    """Returns pictures of a folder with captions, and samples of prompts; both optional, for any checkpoint.

    Args:
        folder: as in `PictureFolder`; the checkpoint decides what a caption may be, as in `Pipeline.generate`.
        prompts: of the samples, starting over after the last.
        pictures: the most to take from the folder, evenly spread over it; None for all.
        samples: how many; None for one per prompt.
        seed: of the samples.
        dtype: of the text encoder.

    Raises:
        LanternError: nothing to extract features from, a caption or prompt that the checkpoint cannot take, or pictures
            for a checkpoint without a VQ tokenizer.
    """
    config, vq = checkpoint.target_config, checkpoint.tokenizer_config
    if folder is not None and vq is None:
        raise LanternError("this checkpoint has no VQ tokenizer to encode pictures with: convert it with one")
    opened = None if folder is None else PictureFolder(folder, config.grid * vq.downsampling)
    count = 0 if opened is None else len(opened) if pictures is None else min(pictures, len(opened))
    samples = (len(prompts) if samples is None else samples) if prompts else 0
    if not count + samples:
        raise LanternError("no pictures and no prompts: give --folder, --prompts or both")
    chosen = np.arange(count) * (len(opened) if count else 0) // max(count, 1)
    captions = class_numbers(opened.texts) if count else ()
    texts = [*(captions[row] for row in chosen), *prompts]
    # Encoded together: token rows of one store are padded to one length.
    conditioning = encode_prompts(checkpoint, texts, Path(workdir) / "captions", dtype)
    sources = []
    if count:
        names = [str(opened.files[row].relative_to(opened.path)) for row in chosen]
        weights = parameters_digest(checkpoint.tokenizer_params)
        claim(Path(workdir) / "codes", {"pictures": _digest(names), "tokenizer": weights})
        codes = encode_folder(checkpoint, opened, chosen, Path(workdir) / "codes")
        sources.append(Source("pictures", count, conditioning, codes, _digest(names, texts[:count])))
    if samples:
        sources.append(
            Source(
                "samples", samples, lambda rows: conditioning(count + rows % len(prompts)),
                digest=_digest(list(prompts), seed, samples),
            )
        )  # fmt: skip
    return sources


def encode_prompts(
    checkpoint: Checkpoint, prompts: Sequence[str], folder: Path, dtype: Any = np.float32
) -> Callable[[Rows], Conditioning]:
    """Returns a function from rows of `prompts` to their conditioning.

    Labels and tokens are made immediately; captions go through the text encoder once and are then read from `folder`.
    The text encoder is in memory only while they do.
    """
    encoder = prompt_encoder(checkpoint)
    encode, _ = encoder.prepare(prompts, dtype)
    if encoder.kind != "captions":
        whole = encode()
        return lambda rows: jax.tree.map(lambda leaf: leaf[rows], whole)
    unique = {prompt: row for row, prompt in enumerate(dict.fromkeys(prompts))}
    where = np.array([unique[prompt] for prompt in prompts])
    parts = [list(unique)[start : start + CACHED] for start in range(0, len(unique), CACHED)]
    files = [folder / f"captions_{i:05d}.npz" for i in range(len(parts))]
    weights = parameters_digest(load_text_encoder(checkpoint, dtype))
    claim(folder, {"text encoder": weights, "dtype": jnp.dtype(dtype).name})
    _encode_captions(encoder, parts, files, dtype)

    @lru_cache(maxsize=2)
    def read(i: int) -> Conditioning:
        return encoder.from_encoded(load_encoded(files[i]))

    def conditioning(rows: Rows) -> Conditioning:
        picked = [
            jax.tree.map(lambda leaf, row=row: leaf[[row % CACHED]], read(row // CACHED))
            for row in where[rows]
        ]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *picked)

    return conditioning


def _encode_captions(encoder: CaptionEncoder, parts: list[list[str]], files: list[Path], dtype: Any) -> None:
    """Writes the missing files; the text encoder is in memory for only that long."""
    missing = [i for i, file in enumerate(files) if not file.is_file()]
    for part, file in zip(parts, files, strict=True):
        if file.is_file() and load_encoded(file).prompts != tuple(part):
            raise LanternError(f"{file} holds other captions: name another --workdir, or remove it")
    if not missing:
        return
    reporter = Reporter(len(files), len(files) - len(missing), "captions, file")
    with encoder.kept():
        for done, i in enumerate(missing, len(files) - len(missing) + 1):
            encoded = encoder.to_encoded(parts[i], encoder.encode(parts[i], dtype))
            save_encoded(files[i], encoded.kind, encoded.prompts, encoded.arrays)
            reporter.show({"step": done})
    reporter.close()


def encode_folder(
    checkpoint: Checkpoint, pictures: PictureFolder, chosen: Rows, folder: Path
) -> Callable[[Rows], Int[np.ndarray, "n C"]]:
    """Encodes the `chosen` pictures into `folder`; returns a function from rows of `chosen` to their codes."""
    starts = range(0, len(chosen), CACHED)
    files = [folder / f"codes_{i:05d}.npy" for i in range(len(starts))]
    missing = [i for i, file in enumerate(files) if not file.is_file()]
    reporter = Reporter(len(files), len(files) - len(missing), "codes, file")
    for done, i in enumerate(missing, len(files) - len(missing) + 1):
        stop, parts = min(starts[i] + CACHED, len(chosen)), []
        for start in range(starts[i], stop, ENCODED):
            # The last chunk is padded, so that one program does for all.
            rows = chosen[np.minimum(np.arange(start, start + ENCODED), stop - 1)]
            codes = encode_pictures(
                checkpoint.tokenizer_config, checkpoint.tokenizer_params, pictures.load(rows)
            )
            parts.append(np.asarray(codes)[: stop - start])
        write_array(files[i], np.concatenate(parts).astype(np.int32))
        reporter.show({"step": done})
    reporter.close()
    stored = [map_array(file) for file in files]
    return lambda rows: np.stack([stored[row // CACHED][row % CACHED] for row in rows])


def class_numbers(captions: Sequence[str]) -> Sequence[str]:
    """Turns ImageNet's folder names, WordNet ids, into class numbers, in the ids' order; keeps other captions."""
    names = sorted(set(captions))
    if len(names) != IMAGENET_CLASSES or not all(re.fullmatch(r"n\d{8}", name) for name in names):
        return captions
    numbers = {name: str(number) for number, name in enumerate(names)}
    return [numbers[caption] for caption in captions]


def read_prompts(file: str | Path) -> list[str]:
    """Reads the prompts of a text file, one per line. Raises LanternError if there are none."""
    file = Path(file)
    if not file.is_file():
        raise LanternError(f"{file} is not a file: give a text file of prompts, one per line")
    prompts = [line.strip() for line in read_text(file, _LARGEST).splitlines() if line.strip()]
    if not prompts:
        raise LanternError(f"{file} is empty: give prompts, one per line")
    return prompts


def _digest(*values: Any) -> str:
    """Returns a short digest of arrays and lists of text."""
    digest = hashlib.sha256()
    for value in values:
        array = value if isinstance(value, np.ndarray) else np.array(repr(value).encode())
        digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
