"""Shards of a picture set: the same pictures are the same bytes, whenever and by whomever they are written.

Axes: n pictures of a shard, H W height and width, T codes of a picture.
"""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lantern_jax.io.files import write_file
from lantern_jax.metrics.moments import Moments
from lantern_jax.sets.plan import SetPlan, shard_paths, synced

# The tag of EXIF that describes a picture in words.
DESCRIPTION = 270


def write_shard(
    directory: Path,
    plan: SetPlan,
    shard: int,
    pictures: UInt8[np.ndarray, "n H W 3"],
    tokens: Int[np.ndarray, "n T"],
    rounds: Int[np.ndarray, " n"],
    sums: Moments | None = None,
) -> None:
    """Writes a shard's two files, each whole or not at all; with the second the shard is there.

    Args:
        pictures, tokens, rounds: of the shard's numbers, in their order.
        sums: of the features of ``plan.sums``.

    Raises:
        OSError: one line: a file cannot be written.
    """
    numbers = plan.numbers(shard)
    arrays = {
        "numbers": numbers.astype(np.int32), "tokens": tokens.astype(np.int32), "rounds": rounds.astype(np.int32)
    }  # fmt: skip
    if sums is not None:
        arrays |= packed(plan.sums, sums)
    arrays_file, pictures_file = shard_paths(directory, shard)
    # NumPy dates what it stores to the first day of 1980.
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_file(arrays_file, synced(content.getvalue()))
    content = io.BytesIO()
    # Entries of this format have no date, owner or mode but what is set here.
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, picture in zip(numbers.tolist(), pictures, strict=True):
            data = encoded(plan.format, picture, plan.prompt(number), number)
            entry = tarfile.TarInfo(f"{number:08d}.{plan.format}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    write_file(pictures_file, synced(content.getvalue()))


def encoded(picture_format: str, picture: UInt8[np.ndarray, "H W 3"], prompt: str, number: int) -> bytes:
    """A picture's file, every pixel kept, its prompt and number in it: PNG texts, or JSON as WebP's description."""
    image, content = Image.fromarray(picture), io.BytesIO()
    if picture_format == "png":
        texts = PngInfo()
        texts.add_itxt("prompt", prompt)
        texts.add_itxt("number", str(number))
        image.save(content, "PNG", pnginfo=texts)
    else:
        exif = Image.Exif()
        exif[DESCRIPTION] = json.dumps({"prompt": prompt, "number": number})
        image.save(content, "WEBP", lossless=True, exif=exif)
    return content.getvalue()


def packed(name: str, sums: Moments) -> dict[str, np.ndarray]:
    """Moments as arrays for a .npz, under the name of their features; ``reading.unpacked`` is the inverse."""
    return {
        f"moments/{name}/count": np.int64(sums.count),
        f"moments/{name}/total": sums.total,
        f"moments/{name}/outer": sums.outer,
    }
