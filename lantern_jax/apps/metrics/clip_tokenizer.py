"""CLIP's tokenizer: texts are cleaned, lower-cased and split into byte pairs between a start and an end token.

Axes: n texts, P positions.
"""

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
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
        before = self.tokenizer.encode(clean(prefix))
        found = [before + self.tokenizer.encode(clean(text)) for text in texts]
        warn_of_cut("CLIP", found, context - 2)
        return padded_rows([[self.start, *ids[: context - 2], self.end] for ids in found], context)[0]


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
    return ClipTokenizer(tokenizer, *mark_ids(tokenizer, (START, END), path, "CLIP", _GIVE))


def mark_ids(
    tokenizer: TextTokenizer, marks: tuple[str, str], path: Path, model: str, advice: str
) -> tuple[int, int]:
    """Returns the ids of a model's two marks; raises LanternError if its tokenizer does not know them."""
    ids = [tokenizer.encode(mark) for mark in marks]
    if any(len(found) != 1 for found in ids) or ids[0] == ids[1]:
        raise LanternError(f"{path} is not {model}'s tokenizer (it has no {' or '.join(marks)}): {advice}")
    return ids[0][0], ids[1][0]


def clean(text: str) -> str:
    """Returns a text as CLIP's tokenizer takes it: characters mended, entities resolved, single spaces, lower case.

    The original mends with the package ftfy, which is used here if installed. Without it, quotes, ligatures and wide
    characters get their plain form, as with ftfy, but text decoded with the wrong encoding stays as it is.
    """
    text = html.unescape(html.unescape(_mend()(text)))
    return re.sub(r"\s+", " ", text).strip().lower()


def warn_of_cut(model: str, ids: Iterable[Sequence[int]], most: int) -> None:
    """Warns, always in the same words, if a text's ids are more than a score's model reads."""
    if any(len(row) > most for row in ids):
        errors.warn_of_ignored([f"ignored by {model}: what prompts say after {most} tokens"])


@cache
def _mend() -> Callable[[str], str]:
    try:
        import ftfy
    except ImportError:
        return plain_characters
    return ftfy.fix_text
