"""Chameleon's vocabulary as stream ids, and the prompts of Anole and Lumina-mGPT.

Published ids mix text and image tokens; only the name of an image token gives its codebook entry: ``IMGIMG``, the
entry's digits as letters A to J, ``Z``. *Stream ids* put the codes first, in the codebook's order, then the row end,
the image end, and all other published ids in ascending order.

Everything here is NumPy, on the host.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.text.guided import GuidedEncoder

# Chameleon's file has 5 MB.
_LARGEST_TOKENIZER = 64 * 2**20
CODE_NAME = re.compile(r"IMGIMG([A-J]+)Z")
DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")

# Lumina-mGPT's task sentence; the numbers are pixels.
LUMINA_TASK = "Generate an image of {width}x{height} according to the following prompt:\n"
# The VQ tokenizer's cells are 16 pixels wide, those of Lumina-mGPT's size tokens 32.
PIXELS_A_CELL, CELLS_A_SIZE = 16, 2


# Names, in the vocabulary file, of the tokens that structure a sequence: around it and a picture, after each row of a
# Lumina-mGPT picture, at the end of the user's turn; "size" is "0 cells" of 32 pixels, and "n cells" has n more.
SPECIAL_NAMES = {
    "begin": "<s>",
    "padding": "<pad>",
    "image_start": "<racm3:break>",
    "image_end": "<eoss>",
    "row_end": "<reserved08799>",
    "separator": "<reserved08706>",
    "size": "<reserved08800>",
}
# Their ids in the 7B models.
SPECIAL_IDS = dict(zip(SPECIAL_NAMES, (0, 1, 8197, 8196, 8803, 8710, 8804), strict=True))


@dataclass(frozen=True)
class ChameleonVocabulary:
    """The two numberings of a Chameleon model's tokens.

    Attributes:
        codes: published id of each codebook entry, in the codebook's order.
        vocab_size: rows of the model's embedding table. Ids without a name are legal.
        special: published ids of the structuring tokens.
    """

    codes: tuple[int, ...]
    vocab_size: int = 65536
    special: Mapping[str, int] = field(default_factory=SPECIAL_IDS.copy)

    def __post_init__(self):
        used = [*self.codes, *self.special.values()]
        if len(set(used)) < len(used) or min(used) < 0 or max(used) >= self.vocab_size:
            raise LanternError(
                f"a vocabulary with ids {min(used)} to {max(used)}, some perhaps for two tokens, does not fit an "
                f"embedding table of {self.vocab_size} rows: give the text_tokenizer.json of this model"
            )

    @classmethod
    def from_file(cls, path: str | Path, vocab_size: int = 65536) -> "ChameleonVocabulary":
        """Reads Chameleon's ``text_tokenizer.json``; structuring tokens without a name keep the published id.

        Raises:
            LanternError: the file is of another kind, codebook entries are missing or named twice, or ids are not rows
                of the model's table.
        """
        names = read_names(path)
        special = {token: names.get(name, SPECIAL_IDS[token]) for token, name in SPECIAL_NAMES.items()}
        try:
            return cls(tuple(code_tokens(names).tolist()), vocab_size, special)
        except LanternError as error:
            raise LanternError(f"{path}: {error}") from None

    @cached_property
    def order(self) -> Int[np.ndarray, " rows"]:
        """The published id of each stream id, int32 [vocab_size]; ``table[order]`` reorders an embedding table."""
        first = np.array([*self.codes, self.special["row_end"], self.special["image_end"]], np.int32)
        rest = np.setdiff1d(np.arange(self.vocab_size, dtype=np.int32), first)
        return np.concatenate([first, rest])

    @cached_property
    def _stream(self) -> Int[np.ndarray, " rows"]:
        """The stream id of each published id, int32 [vocab_size]."""
        return np.argsort(self.order).astype(np.int32)

    def to_stream(self, ids: Int[np.ndarray, "*shape"] | Sequence[int]) -> Int[np.ndarray, "*shape"]:
        """Converts published ids to stream ids (int32); raises LanternError for an id outside 0..vocab_size-1."""
        ids = np.asarray(ids)
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocab_size):
            raise LanternError(
                f"token ids {ids.min()} to {ids.max()} are not all in 0..{self.vocab_size - 1}: "
                "use the tokenizer file of this model"
            )
        return self._stream[ids]


def read_names(path: str | Path) -> dict[str, int]:
    """Reads {name: published id} from a ``tokenizers`` JSON file: its vocabulary and its added tokens.

    Raises LanternError if the file is missing or of another kind.
    """
    advice = "give Chameleon's text_tokenizer.json"
    if not Path(path).is_file():
        raise LanternError(f"cannot read {path}, which is not a file: {advice}")
    try:
        content = read_json(Path(path), _LARGEST_TOKENIZER)
        names = {str(name): int(number) for name, number in content["model"]["vocab"].items()}
        added = content.get("added_tokens") or []
        return names | {str(token["content"]): int(token["id"]) for token in added}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise LanternError(f"{path} is truncated or not a tokenizer with a vocabulary: {advice}") from None


def code_tokens(vocab: Mapping[str, int]) -> Int[np.ndarray, " codes"]:
    """Finds the published id (int32) of each codebook entry from the names in a vocabulary.

    Raises LanternError unless every entry has one image token.
    """
    named = [(CODE_NAME.fullmatch(name), number) for name, number in vocab.items()]
    found = {int(match[1].translate(DIGITS)): number for match, number in named if match}
    named_twice = len(found) < sum(match is not None for match, _ in named)
    if not found or named_twice or max(found) >= len(found):
        raise LanternError(
            f"{len(found)} codebook entries with an image token (IMGIMG...Z), some perhaps with two or others with "
            "none: give Chameleon's text_tokenizer.json unchanged"
        )
    return np.array([found[entry] for entry in range(len(found))], np.int32)


class ChameleonEncoder(GuidedEncoder):
    """Prompts as in the training of the layout's model; the unconditional row has no text, or is a negative prompt's.

    Anole's row without a text begins the sequence and the picture; Lumina-mGPT's begins the picture and names its size.
    """

    @cached_property
    def vocabulary(self) -> ChameleonVocabulary:
        """Published ids and stream ids; raises LanternError if the text tokenizer is missing or damaged."""
        return ChameleonVocabulary.from_file(self.parts.tokenizer_file, self.config.vocab_size)

    def to_stream(self, ids):
        return self.vocabulary.to_stream(ids)

    def rows(self, prompt, negative):
        special, grid = self.vocabulary.special, self.config.grid
        image, before = [special["image_start"]], ""
        nothing = [special["begin"], *image]
        if self.config.layout == "lumina":
            size = special["size"] + grid // CELLS_A_SIZE
            if grid % CELLS_A_SIZE or size >= self.config.vocab_size:
                raise LanternError(
                    f"a Lumina-mGPT picture of {grid} cells a side cannot be named: give an even number"
                )
            nothing = image = [*image, size, size]
            before = LUMINA_TASK.format(width=PIXELS_A_CELL * grid, height=PIXELS_A_CELL * grid)

        def row(text: str) -> list[int]:
            return [
                special["begin"],
                *self.parts.tokenizer.encode(before + text),
                special["separator"],
                *image,
            ]

        return row(prompt), nothing if negative is None else row(negative)
