"""Text tokenizers from a model's own files, through the ``tokenizers`` and ``sentencepiece`` libraries."""

from collections.abc import Callable
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
    kinds: dict[str, Callable[[Path], TextTokenizer]] = {".json": _load_json, ".model": _load_sentencepiece}
    if path.suffix not in kinds or not path.is_file():
        what = "a file" if path.suffix in kinds else "a tokenizer"
        raise LanternError(f"{path} is not {what}: give a tokenizer.json or a SentencePiece .model file")
    return kinds[path.suffix](path)


def _load_json(path: Path) -> TextTokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra(_install("tokenizers", path)) from error
    try:
        return HuggingFaceTokenizer(Tokenizer.from_str(read_text(path, MOST_BYTES)))
    # The library raises bare Exceptions.
    except Exception as error:
        raise LanternError(_damaged(path, "tokenizers JSON", error)) from error


def _load_sentencepiece(path: Path) -> TextTokenizer:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise MissingExtra(_install("sentencepiece", path)) from error
    try:
        tokenizer = _SentencePieceTokenizer(
            SentencePieceProcessor(model_proto=read_bounded(path, MOST_BYTES))
        )
        # An empty file is a model without pieces, which fails only when used.
        tokenizer.encode("a")
        return tokenizer
    except (RuntimeError, OSError, ValueError) as error:
        raise LanternError(_damaged(path, "SentencePiece model", error)) from error


def _damaged(path: Path, kind: str, error: Exception) -> str:
    return f"{path} is damaged or not a {kind} ({errors.short(error, 160)}): fetch it again or name another"


def _install(package: str, path: Path) -> str:
    return f"reading {path.name} needs {package}: pip install lantern-jax[text]"
