"""Files of a shard: written so that equal pictures give equal bytes, and checked against the plan when read.

Axes: n pictures of a shard, H W height and width, T codes of a picture.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from lantern_jax.apps.display.picture_files import open_picture
from lantern_jax.apps.sets.set_plan import SetPlan, shard_paths
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import fill_file, new_folder, read_arrays, write_file
from lantern_jax.pictures.images import encode_png


def write_shard(
    directory: Path,
    plan: SetPlan,
    shard: int,
    pictures: UInt8[np.ndarray, "n H W 3"],
    tokens: Int[np.ndarray, "n T"],
    rounds: Int[np.ndarray, " n"],
) -> None:
    """Writes a shard's arrays, then its pictures, each whole or not at all; with the pictures the shard is complete.

    Args:
        pictures, tokens, rounds: in the order of the shard's numbers.

    Raises:
        OSError: one line: a file cannot be written.
    """
    numbers = plan.numbers(shard)
    files = {
        _name(number): encode_png(picture, {"prompt": plan.prompt(number), "number": str(number)})
        for number, picture in zip(numbers.tolist(), pictures, strict=True)
    }
    arrays = {"numbers": numbers, "tokens": tokens, "rounds": rounds}
    arrays = {name: np.asarray(values, np.int32) for name, values in arrays.items()}
    arrays_file, place = shard_paths(directory, shard)
    # NumPy dates everything that it stores to the first day of 1980.
    write_file(arrays_file, lambda file: np.savez(file, **arrays), synced=True)
    with new_folder(place) as folder:
        for name, data in files.items():
            fill_file(folder / name, data, synced=True)


def open_pictures(directory: Path, plan: SetPlan, shard: int) -> Iterator[tuple[int, Image.Image]]:
    """Yields (number, picture) of a shard.

    Raises:
        LanternError: a damaged shard, or a picture whose prompt or number is not the plan's.
    """
    _, folder = shard_paths(directory, shard)
    for number in plan.numbers(shard).tolist():
        file, prompt = folder / _name(number), plan.prompt(number)
        image = open_picture(file)
        found = tuple(getattr(image, "text", {}).get(name) for name in ("prompt", "number"))
        if found != (prompt, str(number)):
            says, wanted = (errors.short(repr(text)) for text in (found[0], prompt))
            raise LanternError(
                f"{file} says that it is number {errors.short(found[1])} of prompt {says}, not {number} of {wanted}: "
                "the shard is of another set"
            )
        yield number, image


def read_shard_arrays(directory: Path, plan: SetPlan, shard: int) -> dict[str, np.ndarray]:
    """Reads a shard's numbers [n], tokens [n, T] and rounds [n], all int32.

    Raises:
        LanternError: a damaged shard, or one of other pictures.
    """
    path, _ = shard_paths(directory, shard)
    try:
        arrays = read_arrays(path)
        if not np.array_equal(arrays["numbers"], plan.numbers(shard)):
            raise LanternError("other pictures")
        if {len(arrays[name]) for name in ("tokens", "rounds")} != {len(arrays["numbers"])}:
            raise LanternError("not one row for a picture")
    except (LanternError, KeyError) as error:
        raise LanternError(f"{path} is damaged: remove it and run the set's command again") from error
    return arrays


def _name(number: int) -> str:
    return f"{number:08d}.png"
