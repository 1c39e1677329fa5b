"""Pictures for metrics: from folders, picture sets and arrays in a file, with the prompts that they carry.

Axes: n pictures, H W height and width.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from lantern_jax.apps.display.picture_files import PICTURE_SUFFIXES, open_picture
from lantern_jax.apps.foreign.archives import open_archive, read_header
from lantern_jax.apps.sets.reading import SetPicture, is_set, read_set
from lantern_jax.io.errors import LanternError
from lantern_jax.pictures.images import in_colour

# The key of pictures in an .npz file, as in ADM's samples and references.
ARRAY = "arr_0"
# What `lantern generate` writes beside pictures.
_BESIDE = re.compile(r"grid\.png|.*-(compare|accepted)\.png")


def read_pictures(path: str | Path) -> Iterator[SetPicture]:
    """Yields the pictures of a folder, a picture set or an .npz file, one by one.

    Pictures of a folder, and of the folders in it, come in the order of their names, with numbers in names ordered by
    value; ``grid.png`` and names that end in ``-compare.png`` or ``-accepted.png`` are left out. Number and prompt are
    the texts "number" and "prompt" of a PNG file. Pictures are read as stored, not turned as a camera's note says.

    Args:
        path: a folder of PNG, JPEG and WebP files, or one of these; a picture set; or an .npz file with
            uint8 [n, H, W, 3] as "arr_0".

    Raises:
        LanternError: anything else, no pictures, or one that cannot be read.
    """
    path = Path(path)
    if path.suffix == ".npz" and path.is_file():
        return (SetPicture(None, None, picture) for picture in _array_pictures(path))
    if path.suffix.lower() in PICTURE_SUFFIXES and path.is_file():
        return iter([_file_picture(path)])
    if not path.is_dir():
        raise LanternError(
            f"{path} is not a folder of pictures: name one, a picture, a picture set or an .npz file"
        )
    if is_set(path):
        return read_set(path)
    return _folder_pictures(path)


def _folder_pictures(folder: Path) -> Iterator[SetPicture]:
    files = [
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in PICTURE_SUFFIXES
        and not _BESIDE.fullmatch(file.name)
        and not file.name.startswith(".")
    ]
    if not files:
        raise LanternError(
            f"{folder} holds no pictures: name a folder with files ending in {', '.join(PICTURE_SUFFIXES)}"
        )
    return (_file_picture(file) for file in sorted(files, key=_natural))


def _natural(file: Path) -> list[tuple[int, str]]:
    """Returns a key that sorts numbers by value, before other text, so that 10 comes after 9."""
    parts = re.split(r"(\d+)", file.as_posix())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _file_picture(file: Path) -> SetPicture:
    image = open_picture(file)
    texts = getattr(image, "text", {})
    number = texts.get("number", "")
    # Other programs may mean something else by it.
    number = int(number) if number.isdecimal() and len(number) < 19 else None
    return SetPicture(number, texts.get("prompt"), np.asarray(in_colour(image)))


def _array_pictures(path: Path) -> Iterator[UInt8[np.ndarray, "H W 3"]]:
    """Yields the pictures of "arr_0", read one by one: 50,000 do not fit into memory."""
    try:
        with open_archive(path) as archive, archive.open(f"{ARRAY}.npy") as file:
            shape, columns_first, dtype = read_header(file)
            if len(shape) != 4 or shape[-1] != 3 or dtype != np.uint8 or columns_first or not shape[0]:
                raise LanternError(
                    f"{path}: {ARRAY} is {dtype} {list(shape)}: give at least one picture, as uint8 [n, H, W, 3]"
                )
            size = math.prod(shape[1:])
            for _ in range(shape[0]):
                values = file.read(size)
                if len(values) != size or not size:
                    raise LanternError(f"{path} is truncated: fetch it again")
                yield np.frombuffer(values, np.uint8).reshape(shape[1:])
    except KeyError as error:
        raise LanternError(f"{path} holds no pictures as {ARRAY} ({error}): name another file") from error


def with_prompts(
    pictures: Iterable[SetPicture], prompts: Sequence[str] | None = None
) -> Iterator[SetPicture]:
    """Yields the same pictures, each with its number and its prompt.

    A picture with number j has prompt j of ``prompts``; pictures without numbers take prompts in order, one each.
    Without ``prompts`` numbers may repeat: pictures of several calls may be in one folder.

    Args:
        prompts: None where every picture carries its own.

    Raises:
        LanternError: a picture carries another prompt, has none, or pictures and prompts differ in number.
    """
    count, numbered = 0, True
    for count, picture in enumerate(pictures, 1):
        numbered = picture.number is not None
        number = picture.number if numbered else count - 1
        prompt = picture.prompt if prompts is None else prompts[number] if number < len(prompts) else None
        if prompt is None:
            raise LanternError(f"picture {number} has no prompt: give --prompts FILE, one per picture")
        if picture.prompt not in (None, prompt):
            raise LanternError(
                f"picture {number} is of {picture.prompt!r}, the prompts say {prompt!r}: give the prompts that the "
                "pictures were made from"
            )
        yield SetPicture(number, prompt, picture.picture)
    if prompts is not None and not numbered and count != len(prompts):
        raise LanternError(f"{count} pictures for {len(prompts)} prompts: give one prompt per picture")
