"""Text tokenizers from a model's own files, through the ``tokenizers`` and ``sentencepiece`` libraries."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError, MissingExtra
from lantern_jax.io.files import read_bounded, read_text

# Twice the size of the largest known files, which have a quarter of a million pieces.
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class TextTokenizer:
    """A text tokenizer, as prompts need it.

    Attributes:
        encode: text -> its ids, without special tokens.
        pieces: number of ids.
        id_of: a piece -> its id; None, or another piece's, if no piece has that name.
    """

    encode: Callable[[str], list[int]]
    pieces: int
    id_of: Callable[[str], int | None]


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
    try:
        return read(path)
    except ImportError as error:
        raise MissingExtra(f"reading {path.name} needs {package}: pip install {package}") from error
    # The packages raise bare Exceptions.
    except Exception as error:
        raise LanternError(
            f"{path} is damaged or not {what} ({errors.short(error, 160)}): fetch it again or name another"
        ) from error


def _read_json(path: Path) -> TextTokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(read_text(path, MOST_BYTES))
    # A file may ask for either; models here cut and pad by their own rules.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    return TextTokenizer(encode, tokenizer.get_vocab_size(), tokenizer.token_to_id)


def _read_sentencepiece(path: Path) -> TextTokenizer:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=read_bounded(path, MOST_BYTES))
    encode = partial(processor.encode, add_bos=False, add_eos=False)
    # An empty file is a model without pieces, which fails only when used.
    encode("a")
    return TextTokenizer(encode, processor.get_piece_size(), processor.piece_to_id)


# Ending -> package, what the file is, how it is read.
_KINDS: dict[str, tuple[str, str, Callable[[Path], TextTokenizer]]] = {
    ".json": ("tokenizers", "a tokenizers JSON", _read_json),
    ".model": ("sentencepiece", "a SentencePiece model", _read_sentencepiece),
}
