"""Reading a picture set back, picture by picture, each checked against what the set says it is.

Axes: n pictures of a shard, H W height and width, T codes of a picture, F features.
"""

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from lantern_jax.io import errors
from lantern_jax.io.archives import read_arrays as read_archive
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file, parse_json
from lantern_jax.metrics.moments import Moments
from lantern_jax.pictures.images import open_image
from lantern_jax.sets.plan import SetPlan, is_set, read_plan, shard_paths
from lantern_jax.sets.writing import DESCRIPTION

__all__ = [
    "SetPicture",
    "damaged",
    "is_set",
    "is_whole",
    "missing_shards",
    "open_pictures",
    "read_arrays",
    "read_set",
    "unpacked",
]
# Of moments, in the order of ``Moments``'s fields.
_PARTS = ("count", "total", "outer")


@dataclass(frozen=True)
class SetPicture:
    """A picture of a set.

    Attributes:
        number: in the set, from 0.
        prompt: what it was made from.
        picture: uint8 [H, W, 3].
        tokens: int32 [T], its codes.
    """

    number: int
    prompt: str
    picture: UInt8[np.ndarray, "H W 3"]
    tokens: Int[np.ndarray, " T"] | None


def read_set(directory: Path) -> Iterator[SetPicture]:
    """The pictures of a whole set, in the order of their numbers; before the first it is checked that all are there.

    Raises:
        ValueError: no set, one that lacks shards, a damaged shard, or a picture whose prompt or number is another.
    """
    directory = Path(directory)
    plan = read_plan(directory)
    missing = plan.missing(directory)
    if missing:
        raise LanternError(missing_shards(directory, plan, missing))
    return _pictures(directory, plan)


def _pictures(directory: Path, plan: SetPlan) -> Iterator[SetPicture]:
    for shard in range(plan.shards):
        tokens = read_arrays(directory, plan, shard)["tokens"]
        for (number, image), row in zip(open_pictures(directory, plan, shard), tokens, strict=True):
            yield SetPicture(number, plan.prompt(number), np.array(image.convert("RGB")), row)


def open_pictures(directory: Path, plan: SetPlan, shard: int) -> Iterator[tuple[int, Image.Image]]:
    """(number, picture, its pixels not decoded yet) of a shard.

    Raises:
        ValueError: damaged, or a picture whose prompt or number is not the plan's.
    """
    _, path = shard_paths(directory, shard)
    with _opened(path, plan, shard) as tar:
        for number, member in zip(plan.numbers(shard).tolist(), tar.getmembers(), strict=True):
            image = open_image(io.BytesIO(tar.extractfile(member).read()))
            _check(f"{path}, {member.name}", image, plan.prompt(number), number)
            yield number, image


@contextlib.contextmanager
def _opened(path: Path, plan: SetPlan, shard: int) -> Iterator[tarfile.TarFile]:
    """The file of a shard's pictures, which holds as many as it should, each as long as it should be."""
    try:
        file = open_file(path)
    except ValueError as error:
        raise damaged(path) from error
    try:
        with file, tarfile.open(fileobj=file, mode="r:") as tar:
            names = [f"{number:08d}.{plan.format}" for number in plan.numbers(shard).tolist()]
            # A link may lead in a circle, a sparse file be larger than any memory.
            members = tar.getmembers()
            if tar.getnames() != names or not all(one.isreg() and not one.issparse() for one in members):
                raise tarfile.TarError("other pictures")
            yield tar
    except (tarfile.TarError, OSError, EOFError, SyntaxError) as error:
        raise damaged(path) from error


def is_whole(directory: Path, plan: SetPlan, shard: int) -> bool:
    """Whether a shard that is there holds its arrays and all its pictures, which are not looked into."""
    arrays, pictures = shard_paths(directory, shard)
    try:
        read_arrays(directory, plan, shard)
        with _opened(pictures, plan, shard):
            return True
    except ValueError:
        # What may not be read may be whole.
        return not all(os.access(path, os.R_OK) for path in (arrays, pictures))


def read_arrays(directory: Path, plan: SetPlan, shard: int) -> dict[str, np.ndarray]:
    """A shard's numbers int32 [n], tokens int32 [n, T], rounds int32 [n], and sums for ``unpacked``.

    Raises:
        ValueError: damaged, or of other pictures.
    """
    path, _ = shard_paths(directory, shard)
    try:
        arrays = read_archive(path)
        numbers, tokens, rounds = (arrays[name] for name in ("numbers", "tokens", "rounds"))
        whole = all(array.dtype.kind == "i" for array in (numbers, tokens, rounds)) and tokens.ndim == 2
        if not whole or not np.array_equal(numbers, plan.numbers(shard)):
            raise LanternError("other pictures")
        if rounds.shape != numbers.shape or len(tokens) != len(numbers):
            raise LanternError("not one row for a picture")
        if plan.sums is not None and unpacked(arrays)[plan.sums].count != len(numbers):
            raise LanternError("sums of other pictures")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
    return arrays


def unpacked(arrays: Mapping[str, np.ndarray]) -> dict[str, Moments]:
    """The moments in a shard's arrays, by the name of their features.

    Raises:
        ValueError: sums that are not finite, or do not fit each other.
        KeyError: some are missing.
    """
    names = [
        name.removeprefix("moments/").removesuffix("/count") for name in arrays if name.endswith("/count")
    ]
    return {name: _moments(*(arrays[f"moments/{name}/{part}"] for part in _PARTS)) for name in names}


def _moments(count: np.ndarray, total: np.ndarray, outer: np.ndarray) -> Moments:
    numbers = count.dtype.kind == "i" and total.dtype.kind == outer.dtype.kind == "f"
    if not numbers or count.shape != () or total.ndim != 1 or outer.shape != total.shape * 2:
        raise LanternError("sums that do not fit")
    if not (np.isfinite(total).all() and np.isfinite(outer).all()):
        raise LanternError("sums that are not finite")
    return Moments(int(count), total, outer)


def missing_shards(directory: Path, plan: SetPlan, missing: list[int]) -> str:
    """The line for a set that is not complete."""
    shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    return (
        f"{directory} lacks {len(missing)} of {plan.shards} shards (number {shown}): "
        "run its lantern set commands again to make them"
    )


def _check(place: str, image: Image.Image, prompt: str, number: int) -> None:
    if image.format == "PNG":
        found = image.text.get("prompt"), image.text.get("number")
    else:
        try:
            description = parse_json(image.getexif().get(DESCRIPTION, "{}"), "its description")
            found = description.get("prompt"), str(description.get("number"))
        except (ValueError, AttributeError):
            found = None, None
    if found != (prompt, str(number)):
        says, wanted = (errors.short(repr(text)) for text in (found[0], prompt))
        raise LanternError(
            f"{place} says that it is number {errors.short(found[1])} of prompt {says}, not {number} of {wanted}: "
            "the shard is of another set"
        )


def damaged(path: Path) -> LanternError:
    """The line for a file of a shard that is not whole."""
    return LanternError(f"{path} is damaged: remove it and run the set's command again")
