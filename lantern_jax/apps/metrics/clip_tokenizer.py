"""CLIP's tokenizer: texts are cleaned, lower-cased and split into byte pairs between a start and an end token.

Axes: n texts, P positions.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.text.captions import plain_characters
from lantern_jax.text.packed import padded_rows
from lantern_jax.text.tokenizers import TextTokenizer, load_tokenizer

START, END = "<|startoftext|>", "<|endoftext|>"
_GIVE = "give CLIP's tokenizer.json"


@dataclass(frozen=True)
class ClipTokenizer:
    """Turns texts into ids.

    Attributes:
        tokenizer: gives a cleaned text's ids, without start and end.
        start, end: ids of the start and the end token; CLIP finds ``end`` as the greatest id.
    """

    tokenizer: TextTokenizer
    start: int
    end: int

    def encode(self, texts: Sequence[str], context: int = 77, prefix: str = "") -> Int[np.ndarray, "n P"]:
        """Returns int32 [n, context]: start, ids, end, zeros; a text that is too long is cut before the end token.

        Args:
            context: P.
            prefix: a text whose ids come before each text's, such as "A photo depicts " in LANTERN's evaluation.
        """
        before, most = self.tokenizer.encode(clean(prefix)), context - 2
        found = [before + self.tokenizer.encode(clean(text)) for text in texts]
        if any(len(row) > most for row in found):
            errors.warn_of_ignored([f"ignored by CLIP: what prompts say after {most} tokens"])
        return padded_rows([[self.start, *row[:most], self.end] for row in found], context)[0]


def load_clip_tokenizer(path: str | Path) -> ClipTokenizer:
    """Reads the tokenizer of a ``tokenizer.json``, or of a folder with one.

    Raises:
        LanternError: there is no such file, it is damaged, or it is not CLIP's.
        ImportError: the package tokenizers is not installed.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
        if not path.is_file():
            raise LanternError(f"{path.parent} holds no tokenizer: {_GIVE}")
    tokenizer = load_tokenizer(path)
    marks = [tokenizer.encode(mark) for mark in (START, END)]
    if [len(ids) for ids in marks] != [1, 1] or marks[0] == marks[1]:
        raise LanternError(f"{path} is not CLIP's tokenizer (it has no {START} or {END}): {_GIVE}")
    return ClipTokenizer(tokenizer, marks[0][0], marks[1][0])


def clean(text: str) -> str:
    """Returns a text as CLIP's tokenizer takes it: entities resolved, single spaces, lower case.

    Quotes, ligatures and wide characters get their plain form, as the original does it with the package ftfy; only text
    that was decoded with the wrong encoding, which ftfy mends too, stays as it is.
    """
    text = html.unescape(html.unescape(plain_characters(text)))
    return re.sub(r"\s+", " ", text).strip().lower()
