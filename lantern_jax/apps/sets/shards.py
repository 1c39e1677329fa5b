"""Files of a shard: written so that equal pictures give equal bytes, and checked against the plan when read.

Pictures are files in a folder, with their sizes among the arrays, or files in a tar.

Axes: n pictures of a shard, H W height and width, T codes of a picture.
"""

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from lantern_jax.apps.metrics.moments import Moments
from lantern_jax.apps.sets.plan import SetPlan, shard_paths
from lantern_jax.io import errors
from lantern_jax.io.archives import read_arrays as read_archive
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import fill_file, new_folder, open_file, parse_json, read_bounded, write_file
from lantern_jax.pictures.images import encode_png, read_image

# The EXIF tag that describes a picture in words.
_DESCRIPTION = 270
# The most bytes of a picture's file.
_LARGEST = 2**28


def write_shard(
    directory: Path,
    plan: SetPlan,
    shard: int,
    pictures: UInt8[np.ndarray, "n H W 3"],
    tokens: Int[np.ndarray, "n T"],
    rounds: Int[np.ndarray, " n"],
    sums: Moments | None = None,
) -> None:
    """Writes a shard's arrays, then its pictures, each whole or not at all; with the pictures the shard is complete.

    Args:
        pictures, tokens, rounds: in the order of the shard's numbers.
        sums: of the features of ``plan.sums``.

    Raises:
        OSError: one line: a file cannot be written.
    """
    numbers = plan.numbers(shard)
    arrays = {
        "numbers": numbers.astype(np.int32), "tokens": tokens.astype(np.int32), "rounds": rounds.astype(np.int32)
    }  # fmt: skip
    if sums is not None:
        arrays |= sums.to_arrays(sums_start(plan))
    encoded = {
        _name(plan, number): _encoded(plan.format, picture, plan.prompt(number), number)
        for number, picture in zip(numbers.tolist(), pictures, strict=True)
    }
    if not plan.tar:
        arrays["sizes"] = np.array(list(map(len, encoded.values())), np.int64)
    arrays_file, place = shard_paths(directory, plan, shard)
    # NumPy dates everything that it stores to the first day of 1980.
    write_file(arrays_file, lambda file: np.savez(file, **arrays), synced=True)
    if plan.tar:
        write_file(place, _tarred(encoded), synced=True)
        return
    with new_folder(place) as folder:
        for name, data in encoded.items():
            fill_file(folder / name, data, synced=True)


def _tarred(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    # Entries of this format have no date, owner or mode other than what is set here.
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def open_pictures(directory: Path, plan: SetPlan, shard: int) -> Iterator[tuple[int, Image.Image]]:
    """Yields (number, picture) of a shard.

    Raises:
        LanternError: a damaged shard, or a picture whose prompt or number is not the plan's.
    """
    _, path = shard_paths(directory, plan, shard)
    with _opened(directory, plan, shard) as read:
        for number in plan.numbers(shard).tolist():
            name = _name(plan, number)
            content = io.BytesIO(read(name))
            try:
                image = read_image(content)
            except ValueError as error:
                raise damaged(path, name) from error
            _check(f"{path}, {name}", image, plan.prompt(number), number)
            yield number, image


def read_arrays(directory: Path, plan: SetPlan, shard: int) -> dict[str, np.ndarray]:
    """Reads a shard's numbers int32 [n], tokens int32 [n, T], rounds int32 [n], sums under names that begin with
    ``sums_start``, and, if pictures are files in a folder, their sizes in bytes, int64 [n].

    Raises:
        LanternError: a damaged shard, or one of other pictures.
    """
    path, _ = shard_paths(directory, plan, shard)
    try:
        arrays = read_archive(path)
        numbers, tokens, rounds = (arrays[name] for name in ("numbers", "tokens", "rounds"))
        whole = all(array.dtype.kind == "i" for array in (numbers, tokens, rounds)) and tokens.ndim == 2
        if not whole or not np.array_equal(numbers, plan.numbers(shard)):
            raise LanternError("other pictures")
        if rounds.shape != numbers.shape or len(tokens) != len(numbers):
            raise LanternError("not one row for a picture")
        if not plan.tar and (arrays["sizes"].shape != numbers.shape or arrays["sizes"].dtype.kind != "i"):
            raise LanternError("not one size for a picture")
        if not plan.tar and (arrays["sizes"] > _LARGEST).any():
            raise LanternError("a picture of more bytes than any has")
        if plan.sums and Moments.from_arrays(arrays, sums_start(plan)).count != len(numbers):
            raise LanternError("sums of other pictures")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
    return arrays


def is_whole(directory: Path, plan: SetPlan, shard: int) -> bool:
    """Tells whether an existing shard holds its arrays and all its pictures, without looking into the pictures."""
    try:
        read_arrays(directory, plan, shard)
        with _opened(directory, plan, shard):
            return True
    except ValueError:
        # A shard that may not be read may still be whole.
        return not all(os.access(path, os.R_OK) for path in shard_paths(directory, plan, shard))


def damaged(path: Path, picture: str = "") -> LanternError:
    """Returns the error for a file or folder of a shard that is not whole, or for one of its pictures."""
    where = f" ({picture} is not a readable picture)" if picture else ""
    return LanternError(f"{path} is damaged{where}: remove it and run the set's command again")


def sums_start(plan: SetPlan) -> str:
    """Returns what the names of a set's arrays of sums begin with, for ``Moments``."""
    return f"moments/{plan.sums}/"


def _name(plan: SetPlan, number: int) -> str:
    return f"{number:08d}.{plan.format}"


def _encoded(picture_format: str, picture: UInt8[np.ndarray, "H W 3"], prompt: str, number: int) -> bytes:
    """Encodes a picture, keeping every pixel, with prompt and number as PNG texts, or as JSON in WebP's description."""
    if picture_format == "png":
        return encode_png(picture, {"prompt": prompt, "number": str(number)})
    content, exif = io.BytesIO(), Image.Exif()
    exif[_DESCRIPTION] = json.dumps({"prompt": prompt, "number": number})
    Image.fromarray(picture).save(content, "WEBP", lossless=True, exif=exif)
    return content.getvalue()


@contextlib.contextmanager
def _opened(directory: Path, plan: SetPlan, shard: int) -> Iterator[Callable[[str], bytes]]:
    """Opens a shard's pictures if all are there and of the right length; yields a function that reads one by name."""
    _, path = shard_paths(directory, plan, shard)
    names = [_name(plan, number) for number in plan.numbers(shard).tolist()]
    if not plan.tar:
        sizes = dict(zip(names, read_arrays(directory, plan, shard)["sizes"].tolist(), strict=True))
        for name, size in sizes.items():
            file = path / name
            if not file.is_file() or file.stat().st_size != size:
                raise damaged(file)
        yield lambda name: read_bounded(path / name, sizes[name])
        return
    try:
        file = open_file(path)
    except ValueError as error:
        raise damaged(path) from error
    try:
        with file, tarfile.open(fileobj=file, mode="r:") as tar:
            # A link may lead in a circle, and a sparse file may be larger than any memory.
            members = tar.getmembers()
            if tar.getnames() != names or not all(one.isreg() and not one.issparse() for one in members):
                raise tarfile.TarError("other pictures")
            yield lambda name: tar.extractfile(name).read()
    except (tarfile.TarError, OSError, EOFError, SyntaxError) as error:
        raise damaged(path) from error


def _check(place: str, image: Image.Image, prompt: str, number: int) -> None:
    """Raises LanternError unless a picture carries this prompt and number."""
    if image.format == "PNG":
        found = image.text.get("prompt"), image.text.get("number")
    else:
        try:
            description = parse_json(image.getexif().get(_DESCRIPTION, "{}"), "its description")
            found = description.get("prompt"), str(description.get("number"))
        except (ValueError, AttributeError):
            found = None, None
    if found != (prompt, str(number)):
        says, wanted = (errors.short(repr(text)) for text in (found[0], prompt))
        raise LanternError(
            f"{place} says that it is number {errors.short(found[1])} of prompt {says}, not {number} of {wanted}: "
            "the shard is of another set"
        )
