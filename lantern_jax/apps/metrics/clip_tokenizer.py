"""CLIP's tokenizer: texts are cleaned, lower-cased and split into byte pairs between a start and an end token.

Axes: n texts, P positions.
"""

import gzip
import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Int

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_bounded
from lantern_jax.text.captions import plain_characters
from lantern_jax.text.packed import padded_rows
from lantern_jax.text.tokenizers import TextTokenizer, hugging_face, load_tokenizer, mark_ids, reading

START, END = "<|startoftext|>", "<|endoftext|>"
# The published list of merges is longer than CLIP's.
_MERGES = 49152 - 256 - 2
# Unpacked, the list has 3 MB; nothing beyond this is read.
_MOST_BYTES = 16 * 2**20
_BPE_NAMES = ("bpe_simple_vocab_16e6.txt.gz", "bpe_simple_vocab_16e6.txt")
_GIVE = f"give CLIP's tokenizer.json or {_BPE_NAMES[0]}"
_PIECES = (
    rf"{re.escape(START)}|{re.escape(END)}|'s|'t|'re|'ve|'m|'ll|'d|\p{{L}}+|\p{{N}}|[^\s\p{{L}}\p{{N}}]+"
)


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
        errors.warn_of_cut("CLIP", found, context - 2)
        return padded_rows([[self.start, *ids[: context - 2], self.end] for ids in found], context)[0]


def load_clip_tokenizer(path: str | Path) -> ClipTokenizer:
    """Reads the tokenizer of a ``tokenizer.json`` or ``bpe_simple_vocab_16e6.txt.gz``, or of a folder with either.

    Raises:
        LanternError: there is no such file, it is damaged, or it is not CLIP's.
        ImportError: the package tokenizers is not installed.
    """
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in ("tokenizer.json", *_BPE_NAMES) if (path / name).is_file()]
        if not found:
            raise LanternError(f"{path} holds no tokenizer: {_GIVE}")
        path = found[0]
    tokenizer = _from_merges(path) if path.suffix in (".gz", ".txt") else load_tokenizer(path)
    return ClipTokenizer(tokenizer, *mark_ids(tokenizer, (START, END), path, "CLIP", _GIVE))


def clean(text: str) -> str:
    """Returns a text as CLIP's tokenizer takes it: characters mended, entities resolved, single spaces, lower case.

    The original mends with the package ftfy, which is used here if installed. Without it, quotes, ligatures and wide
    characters get their plain form, as with ftfy, but text decoded with the wrong encoding stays as it is.
    """
    text = html.unescape(html.unescape(_mend()(text)))
    return re.sub(r"\s+", " ", text).strip().lower()


@cache
def _mend() -> Callable[[str], str]:
    try:
        import ftfy
    except ImportError:
        return plain_characters
    return ftfy.fix_text


def _from_merges(path: Path) -> TextTokenizer:
    """Builds the tokenizer of a list of merges: a title, then a pair of tokens per line, the most frequent first."""
    if not path.is_file():
        raise LanternError(f"{path} is not a file: {_GIVE}")
    with reading(path, "tokenizers", "CLIP's list of merges"):
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers

        content = read_bounded(path, _MOST_BYTES)
        if path.suffix == ".gz":
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_MOST_BYTES)
        lines = content.decode("utf-8").split("\n")[1 : 1 + _MERGES]
        merges = [tuple(line.split()) for line in lines if line]
        if not merges:
            raise LanternError("it holds no merges")
        letters = _byte_letters()
        tokens = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges), START, END]
        model = models.BPE(
            {token: i for i, token in enumerate(tokens)}, merges, unk_token=END, end_of_word_suffix="</w>"
        )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([START, END])
    pieces = pre_tokenizers.Split(Regex(_PIECES), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return hugging_face(tokenizer)


def _byte_letters() -> list[str]:
    """Returns a printable character per byte, in the vocabulary's order: first the printable bytes, as themselves."""
    printing = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(code) for code in (*printing, *range(0x100, 0x200 - len(printing)))]
