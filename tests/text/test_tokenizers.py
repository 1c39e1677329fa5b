"""Tokenizers from files made here: the two libraries, and a one-line error for a wrong file."""

import io
import sys

import pytest

from lantern_jax.models.t5 import T5Config
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.tokenizers import load_tokenizer
from tests.refused import refused

CORPUS = ["a lake at dusk with green hills", "the sea under clouds", "a river in the forest at noon"] * 4


def write_json(path):
    """Writes a word-level tokenizer whose template adds special tokens and that asks for padding and truncation."""
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {"<s>": 0, "[UNK]": 1, "a": 2, "lake": 3, "dusk": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))


def write_sentencepiece(path):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=40, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    path.write_bytes(model.getvalue())


WRITERS = {"tokenizer.json": write_json, "spiece.model": write_sentencepiece}


def test_texts_are_encoded_and_nothing_is_added_or_cut(tmp_path):
    write_json(tmp_path / "text_tokenizer.json")
    assert load_tokenizer(tmp_path / "text_tokenizer.json").encode("a lake a sea dusk") == [2, 3, 2, 1, 4]
    write_sentencepiece(tmp_path / "spiece.model")
    ids = load_tokenizer(str(tmp_path / "spiece.model")).encode("a lake at dusk")
    assert ids and min(ids) > 2 and all(type(number) is int for number in ids)


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_files(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(ValueError, match="is not a file"):
        load_tokenizer(path)
    WRITERS[name](path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\x80\x02junk"):
        path.write_bytes(content)
        with refused("is damaged or not a"):
            load_tokenizer(path)
    with refused("is not a tokenizer"):
        load_tokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("name", "package"), [("tokenizer.json", "tokenizers"), ("spiece.model", "sentencepiece")]
)
def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch, name, package):
    (tmp_path / name).write_bytes(b"{}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install {package}"):
        load_tokenizer(tmp_path / name)


@pytest.mark.parametrize("spare", [512, -1, 513])
def test_only_the_text_encoders_own_tokenizer_is_used(tmp_path, spare):
    """It fits with a few more embeddings than pieces, as published; with fewer, or many more, it is another model's."""
    file = tmp_path / "spiece.model"
    write_sentencepiece(file)
    pieces = load_tokenizer(file).pieces
    parts = PromptParts(None, text_tokenizer=file, text_encoder=T5Config(vocab_size=pieces + spare))
    if 0 <= spare <= 512:
        assert parts.tokenizer.encode("a lake")
        return
    with refused(f"it has {pieces} pieces, the text encoder {pieces + spare} embeddings"):
        parts.tokenizer.encode("a lake")


def test_a_tokenizer_without_t5s_ids_is_refused(tmp_path):
    """Its ids are still rows of the table, and would give pictures of other prompts."""
    write_json(tmp_path / "tokenizer.json")
    parts = PromptParts(None, text_tokenizer=tmp_path / "tokenizer.json", text_encoder=T5Config(vocab_size=8))
    with refused(r"tokenizer\.json .*<pad> is its id None, T5's 0; </s> is its id None, T5's 1"):
        parts.tokenizer.encode("a lake")
