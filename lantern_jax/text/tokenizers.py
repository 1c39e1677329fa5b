"""Text tokenizers from a model's own files, through the ``tokenizers`` and ``sentencepiece`` libraries."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError, MissingExtra
from lantern_jax.io.files import read_bounded, read_text

# Twice the size of the largest known ones, of a quarter of a million pieces.
MOST_BYTES = 64 * 2**20


class TextTokenizer(Protocol):
    """A text tokenizer, as prompts need it."""

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without special tokens."""
        ...

    @property
    def pieces(self) -> int:
        """Number of ids."""
        ...

    def id_of(self, piece: str) -> int | None:
        """Returns the id of a piece; None, or another piece's, if there is none of that name."""
        ...


class HuggingFaceTokenizer:
    """A tokenizer of the ``tokenizers`` library."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        # A file may ask for either; models here cut and pad by their own rules.
        tokenizer.no_truncation()
        tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    @property
    def pieces(self) -> int:
        """Number of ids."""
        return self._tokenizer.get_vocab_size()

    def id_of(self, piece: str) -> int | None:
        return self._tokenizer.token_to_id(piece)


class _SentencePieceTokenizer:
    def __init__(self, processor):
        self._processor = processor

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text, add_bos=False, add_eos=False)

    @property
    def pieces(self) -> int:
        return self._processor.get_piece_size()

    def id_of(self, piece: str) -> int | None:
        return self._processor.piece_to_id(piece)


def load_tokenizer(path: str | Path) -> TextTokenizer:
    """Reads a tokenizer from its file: ``*.json`` (``tokenizer.json``, ``text_tokenizer.json``) or ``*.model``.

    Raises:
        LanternError: the file is missing, damaged or of another kind.
        MissingExtra: the library that reads it is not installed.
    """
    path = Path(path)
    if path.suffix not in _KINDS or not path.is_file():
        what = "a file" if path.suffix in _KINDS else "a tokenizer"
        raise LanternError(f"{path} is not {what}: give a tokenizer.json or a SentencePiece .model file")
    package, what, read = _KINDS[path.suffix]
    with reading(path, package, what):
        return read(path)


@contextlib.contextmanager
def reading(path: Path, package: str, what: str) -> Iterator[None]:
    """Makes one line of what a package raises as a block reads ``what`` from a tokenizer's file."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"reading {path.name} needs {package}: pip install lantern-jax[text]") from error
    # The packages raise bare Exceptions.
    except Exception as error:
        raise LanternError(
            f"{path} is damaged or not {what} ({errors.short(error, 160)}): fetch it again or name another"
        ) from error


def mark_ids(
    tokenizer: TextTokenizer, marks: tuple[str, str], path: Path, model: str, advice: str
) -> tuple[int, int]:
    """Returns the ids of a model's two marks; raises LanternError where its tokenizer does not know them."""
    ids = [tokenizer.encode(mark) for mark in marks]
    if any(len(found) != 1 for found in ids) or ids[0] == ids[1]:
        raise LanternError(f"{path} is not {model}'s tokenizer (it has no {' or '.join(marks)}): {advice}")
    return ids[0][0], ids[1][0]


def _read_json(path: Path) -> TextTokenizer:
    from tokenizers import Tokenizer

    return HuggingFaceTokenizer(Tokenizer.from_str(read_text(path, MOST_BYTES)))


def _read_sentencepiece(path: Path) -> TextTokenizer:
    from sentencepiece import SentencePieceProcessor

    tokenizer = _SentencePieceTokenizer(SentencePieceProcessor(model_proto=read_bounded(path, MOST_BYTES)))
    # An empty file is a model without pieces, which fails only when used.
    tokenizer.encode("a")
    return tokenizer


# Ending -> package, what the file is, how it is read.
_KINDS: dict[str, tuple[str, str, Callable[[Path], TextTokenizer]]] = {
    ".json": ("tokenizers", "a tokenizers JSON", _read_json),
    ".model": ("sentencepiece", "a SentencePiece model", _read_sentencepiece),
}
