"""A folder of pictures with captions as training data.

Two layouts: ``name.jpg`` next to ``name.txt`` with its caption, anywhere under the folder; or one subfolder per class,
whose name is the caption. A picture with a ``.txt`` uses that, also inside a class folder.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_text
from lantern_jax.pictures.images import PICTURE_SUFFIXES, open_picture, square
from lantern_jax.text.vocabulary import Vocabulary

MAX_CAPTIONS = 1000
# Bytes of a caption's file.
_LONGEST_CAPTION = 2**20


class PictureFolder:
    """Pictures of a folder in sorted order, centre-cropped to squares and resized.

    Attributes:
        texts: the caption of every picture as it was written, with single spaces.
        captions: the same as words in lower case, without punctuation.

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
        self.captions = tuple(" ".join(Vocabulary.tokens(text)) for text in self.texts)

    def __len__(self) -> int:
        return len(self.files)

    def load(self, indices: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """Returns pictures uint8 [n, size, size, 3] and captions; raises LanternError for an unreadable picture."""
        images = np.empty((len(indices), self.size, self.size, 3), np.uint8)
        for row, index in enumerate(indices):
            images[row] = square(open_picture(self.files[index]), self.size)
        return images, [self.captions[index] for index in indices]

    def attributes(self, indices: Sequence[int]) -> np.ndarray:
        """Returns the value index of each caption in ``vocabulary()``, int32 [n, 1]."""
        values = {value: row for row, value in enumerate(sorted(set(self.captions)))}
        return np.array([[values[self.captions[index]]] for index in indices], dtype=np.int32).reshape(-1, 1)

    def vocabulary(self) -> Vocabulary:
        """Returns a vocabulary of one attribute, "caption", whose values are the distinct captions.

        Raises LanternError for more than ``MAX_CAPTIONS`` of them: free text needs a text encoder.
        """
        values = tuple(sorted(set(self.captions)))
        if len(values) > MAX_CAPTIONS:
            raise LanternError(
                f"{self.path}: {len(values)} different captions; expected at most {MAX_CAPTIONS}, "
                "each of many pictures"
            )
        return Vocabulary(
            attributes={"caption": values}, words={value: ("caption", value) for value in values}
        )

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
