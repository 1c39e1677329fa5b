"""Reading a picture set back, picture by picture, each checked against what the set says it is.

Axes: n pictures of a shard, H W height and width, T codes of a picture, F features.
"""

import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from lantern_jax.archives import read_arrays as read_archive
from lantern_jax.files import open_file, parse_json
from lantern_jax.metrics.moments import Moments
from lantern_jax.pictures import open_image
from lantern_jax.sets.plan import SetPlan, is_set, read_plan, shard_paths
from lantern_jax.sets.writing import DESCRIPTION

__all__ = ["SetPicture", "is_set", "missing_shards", "open_pictures", "read_arrays", "read_set", "unpacked"]


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
        raise ValueError(missing_shards(directory, plan, missing))
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
    expected = plan.numbers(shard).tolist()
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            names = [f"{number:08d}.{plan.format}" for number in expected]
            members = tar.getmembers()
            # A link may lead in a circle, a sparse file be larger than any memory.
            if tar.getnames() != names or not all(one.isreg() and not one.issparse() for one in members):
                raise _damaged(path)
            for number, name in zip(expected, names, strict=True):
                image = open_image(io.BytesIO(tar.extractfile(name).read()))
                _check(f"{path}, {name}", image, plan.prompt(number), number)
                yield number, image
    except (tarfile.TarError, OSError, EOFError, SyntaxError) as error:
        raise _damaged(path) from error


def read_arrays(directory: Path, plan: SetPlan, shard: int) -> dict[str, np.ndarray]:
    """A shard's numbers int32 [n], tokens int32 [n, T], rounds int32 [n], and sums for ``unpacked``.

    Raises:
        ValueError: damaged, or of other pictures.
    """
    path, _ = shard_paths(directory, shard)
    try:
        arrays = read_archive(path)
        same = np.array_equal(arrays["numbers"], plan.numbers(shard))
        if not same or {len(arrays["tokens"]), len(arrays["rounds"])} != {len(arrays["numbers"])}:
            raise ValueError("other pictures")
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error
    return arrays


def unpacked(arrays: Mapping[str, np.ndarray]) -> dict[str, Moments]:
    """The moments in a shard's arrays, by the name of their features."""
    names = [
        name.removeprefix("moments/").removesuffix("/count") for name in arrays if name.endswith("/count")
    ]
    parts = ("total", "outer")
    return {
        name: Moments(
            int(arrays[f"moments/{name}/count"]), *(arrays[f"moments/{name}/{part}"] for part in parts)
        )
        for name in names
    }


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
        raise ValueError(
            f"{place} says that it is number {found[1]} of prompt {found[0]!r}, not {number} of {prompt!r}: "
            "the shard is of another set"
        )


def _damaged(path: Path) -> ValueError:
    return ValueError(f"{path} is damaged: remove it and run the set's command again")
