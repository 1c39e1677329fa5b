"""Chameleon's two numberings of tokens, and the prompt rows built from them."""

import json

import numpy as np
import pytest

from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.chameleon.prompts import (
    SPECIAL_IDS,
    SPECIAL_NAMES,
    ChameleonEncoder,
    ChameleonVocabulary,
    code_tokens,
)
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.packed import BUCKETS
from lantern_jax.text.tokenizers import TextTokenizer
from tests.refused import refused

LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")
# Published ids of a made-up codebook of 12 entries, not in the codebook's order.
CODES = [20, 7, 19, 8, 18, 9, 17, 10, 16, 11, 15, 12]


def image_name(entry):
    return f"IMGIMG{str(entry).translate(LETTERS)}Z"


def names(codes=CODES, special=True):
    table = {image_name(entry): number for entry, number in enumerate(codes)}
    if special:
        table |= dict(zip(SPECIAL_NAMES.values(), (0, 1, 4, 3, 40, 5, 41), strict=True))
    return table


def write(path, vocab, added=()):
    added = [{"id": number, "content": name} for name, number in added]
    path.write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab}, "added_tokens": added}))
    return path


@pytest.fixture
def vocabulary(tmp_path):
    return ChameleonVocabulary.from_file(write(tmp_path / "text_tokenizer.json", names()), 64)


def words(text):
    """Encodes a text like a tokenizer, one id per word."""
    return [50 + len(word) for word in text.split()]


def test_names_give_the_codebook_order():
    np.testing.assert_array_equal(code_tokens(names() | {"the": 50, "IMGIMGZ": 51, "IMGIMGKZ": 52}), CODES)
    assert code_tokens({image_name(i): 4 + i for i in range(8192)}).tolist() == list(range(4, 8196))
    assert image_name(8032) == "IMGIMGIADCZ"


def test_stream_ids(vocabulary):
    """Codes, row end, image end, then all other published ids in ascending order."""
    assert len(vocabulary.codes) == 12 and vocabulary.vocab_size == 64
    rest = [i for i in range(64) if i not in (*CODES, 40, 3)]
    assert vocabulary.order.tolist() == [*CODES, 40, 3, *rest]
    assert vocabulary.order.dtype == vocabulary.to_stream([1]).dtype == np.int32
    np.testing.assert_array_equal(vocabulary.to_stream(vocabulary.order), np.arange(64))
    published = np.array([[0, 20, 63], [12, 40, 3]])
    stream = vocabulary.to_stream(published)
    assert stream.tolist()[1] == [11, 12, 13] and stream[0, 1] == 0
    config = ChameleonConfig(vocab_size=64, num_codes=12, grid=4, layout="lumina")
    assert vocabulary.order[[config.row_end, config.image_end]].tolist() == [40, 3]


def test_published_numbers_stand_in_for_names(tmp_path):
    """They are those of the 7B models, for structuring tokens that the file does not name."""
    path = write(tmp_path / "text_tokenizer.json", names(special=False))
    vocabulary = ChameleonVocabulary.from_file(path)
    assert vocabulary.special == SPECIAL_IDS and vocabulary.vocab_size == 65536
    assert vocabulary.order[12:14].tolist() == [8803, 8196]
    with pytest.raises(ValueError, match="does not fit an embedding table of 64 rows"):
        ChameleonVocabulary.from_file(path, 64)


def test_added_tokens_are_read_too(tmp_path):
    table = names()
    added = [(SPECIAL_NAMES["row_end"], 44), *((name, table.pop(name)) for name in list(table)[:3])]
    vocabulary = ChameleonVocabulary.from_file(write(tmp_path / "tokenizer.json", table, added), 64)
    assert vocabulary.codes == tuple(CODES) and vocabulary.special["row_end"] == 44


@pytest.mark.parametrize(("change", "match"), [
    (lambda table: table.pop(image_name(3)), "11 codebook entries with an image token"),
    (lambda table: table.update(IMGIMGADZ=30), "12 codebook entries with an image token .* some perhaps with two"),
    (lambda table: table.update({image_name(3): 7}), "some perhaps for two tokens"),
    (lambda table: table.update({image_name(3): 64}), "does not fit an embedding table of 64 rows"),
    (lambda table: [table.pop(image_name(i)) for i in range(12)], "0 codebook entries"),
])  # fmt: skip
def test_broken_vocabularies(tmp_path, change, match):
    table = names()
    change(table)
    path = write(tmp_path / "text_tokenizer.json", table)
    with refused(match) as error:
        ChameleonVocabulary.from_file(path, 64)
    assert str(path) in str(error.value)


def test_files_that_are_not_vocabularies(tmp_path):
    path = tmp_path / "text_tokenizer.json"
    with refused("cannot read"):
        ChameleonVocabulary.from_file(path)
    whole = write(path, names()).read_text()
    for content in (whole[:50], "{}", "[1]", '{"model": {"vocab": ["a"]}}', "\x00"):
        path.write_text(content)
        with refused("truncated or not a tokenizer"):
            ChameleonVocabulary.from_file(path)


def test_ids_outside_the_table(vocabulary):
    for ids in ([64], [-1, 3]):
        with pytest.raises(ValueError, match=r"not all in 0\.\.63"):
            vocabulary.to_stream(ids)


def encoder(vocabulary, tokenize, **config):
    """Returns an encoder with a vocabulary and a tokenizer that are in no file."""
    parts = PromptParts(ChameleonConfig(vocab_size=vocabulary.vocab_size, num_codes=12, **config))
    parts.__dict__["tokenizer"] = TextTokenizer(tokenize, 0, {}.get)
    made = ChameleonEncoder(parts)
    made.__dict__["vocabulary"] = vocabulary
    return made


def published_rows(vocabulary, tokens, mask):
    """Returns rows without padding, as published ids."""
    assert tokens.shape == mask.shape and tokens.dtype == np.int32 and mask.dtype == bool
    np.testing.assert_array_equal(np.sort(mask, axis=-1), mask)
    return [vocabulary.order[row[valid]].tolist() for row, valid in zip(tokens, mask, strict=True)]


def test_anole_rows(vocabulary):
    made = encoder(vocabulary, words, grid=4).encode(["a red house", "sea"])
    assert made.tokens.shape == (2, BUCKETS[0])
    assert published_rows(vocabulary, made.tokens, made.mask) == [[0, 51, 53, 55, 5, 4], [0, 53, 5, 4]]
    assert published_rows(vocabulary, made.unconditional, made.unconditional_mask) == [[0, 4], [0, 4]]
    negative = encoder(vocabulary, words, grid=4).encode(["sea"], negative=["fog"])
    assert published_rows(vocabulary, negative.unconditional, negative.unconditional_mask) == [[0, 53, 5, 4]]


def test_published_lumina_prompt():
    vocabulary, seen = ChameleonVocabulary(tuple(range(4, 8196))), []

    def tokenize(text):
        seen.append(text)
        return [9000, 9001]

    made = encoder(vocabulary, tokenize, grid=48, layout="lumina").encode(["a red house"])
    assert seen == ["Generate an image of 768x768 according to the following prompt:\na red house"]
    assert published_rows(vocabulary, made.tokens, made.mask) == [[0, 9000, 9001, 8710, 8197, 8828, 8828]]
    assert published_rows(vocabulary, made.unconditional, made.unconditional_mask) == [[8197, 8828, 8828]]


def test_prompts_of_one_bucket_have_one_shape(vocabulary):
    encode = encoder(vocabulary, words, grid=4).encode

    def length(number):
        return encode(["short", " ".join(["word"] * number)]).tokens.shape[-1]

    assert [length(n) for n in (1, 61, 62, 125, 126, 1021)] == [64, 64, 128, 128, 256, 1024]
    with refused(r"1025 tokens.*more than 1024: shorten it") as error:
        length(1022)
    assert len(str(error.value)) < 160


def test_grids_without_a_name(vocabulary):
    for grid, match in ((5, "even number"), (100, "cannot be named")):
        with refused(match):
            encoder(vocabulary, words, grid=grid, layout="lumina").encode(["a"])
