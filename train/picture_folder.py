"""A folder of pictures with captions as training data.

Two layouts: ``name.jpg`` next to ``name.txt`` with its caption, anywhere under the folder; or one subfolder per class,
whose name is the caption. A picture with a ``.txt`` uses that, also inside a class folder.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from lantern_jax.apps.display.picture_files import PICTURE_SUFFIXES, open_picture
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_text
from lantern_jax.pictures.images import fitted
from lantern_jax.text.vocabulary import Vocabulary

# The most bytes of a caption's file.
_LONGEST_CAPTION = 2**20


class PictureFolder:
    """Pictures of a folder in sorted order, centre-cropped to squares and resized.

    Attributes:
        texts: every picture's caption as written, with single spaces.

    Args:
        path: the folder.
        size: side of the pictures.

    Raises LanternError if it is not a folder or has no pictures, or if a caption is missing or empty.
    """

    def __init__(self, path: str | Path, size: int):
        self.path = Path(path)
        self.size = size
        if size < 1:
            raise LanternError(f"size {size}: expected a positive number of pixels")
        if not self.path.is_dir():
            raise LanternError(f"{self.path}: not a folder; expected a folder of pictures with captions")
        self.files = tuple(
            sorted(
                file
                for file in self.path.rglob("*")
                if file.suffix.lower() in PICTURE_SUFFIXES and file.is_file()
            )
        )
        if not self.files:
            raise LanternError(
                f"{self.path}: no pictures; expected files ending in {', '.join(PICTURE_SUFFIXES)}"
            )
        self.texts = tuple(self._text(file) for file in self.files)

    def __len__(self) -> int:
        return len(self.files)

    def load(self, indices: Sequence[int]) -> UInt8[np.ndarray, "n H W 3"]:
        """Returns pictures. Raises LanternError for an unreadable one."""
        images = np.empty((len(indices), self.size, self.size, 3), np.uint8)
        for row, index in enumerate(indices):
            images[row] = fitted(open_picture(self.files[index]), self.size, self.size)
        return images

    def _text(self, file: Path) -> str:
        text = file.with_suffix(".txt")
        if text.is_file():
            caption = read_text(text, _LONGEST_CAPTION)
        elif file.parent != self.path:
            caption = file.parent.name.replace("_", " ")
        else:
            raise LanternError(
                f"{file}: no caption; expected {text.name} beside it or a class folder around it"
            )
        if not Vocabulary.tokens(caption):
            raise LanternError(f"{file}: empty caption; expected at least one word in {text.name}")
        return " ".join(caption.split())
