"""CLIP's tokenizer: tiny merges against ids by hand and transformers, cleaning, cutting, LANTERN's prefix."""

import sys

import numpy as np
import pytest

from lantern_jax.apps.metrics.clip_tokenizer import END, START, clean, load_clip_tokenizer
from lantern_jax.io.errors import IgnoredWords
from tests.metrics.tiny_clip import MERGES, VOCAB, byte_letters, write_tokenizer
from tests.refused import refused_each

pytest.importorskip("tokenizers")

TEXTS = (
    "The lake, the LAKES & the lab", "it's rock'n'roll, they'll say 'tis 12:30!?", "a  wide\n\tword", "",
    "café naïve 日本 😀😀 x²", "!!!'''s---", "they'Re I'M <b>bold</b>", "a<|endoftext|>b", "num3er5 in w0rds",
)  # fmt: skip


@pytest.fixture
def tokenizer(tmp_path):
    return load_clip_tokenizer(write_tokenizer(tmp_path / "tokenizer.json"))


def ids_of(tokenizer, text):
    row = tokenizer.encode([text])[0].tolist()
    assert row[0] == tokenizer.start == VOCAB - 2
    end = len(row) - 1 - row[::-1].index(VOCAB - 1)
    assert tokenizer.end == VOCAB - 1 and not any(row[end + 1 :])
    return row[1:end]


@pytest.mark.parametrize(("text", "ids"), [
    # "a" at the end of a word has the id that it has in the published vocabulary.
    ("A", [320]),
    ("the lake", [516, 514]),
    # No merge for "lab": "la" and "b" at the end.
    ("lab", [512, 256 + ord("b") - ord("!")]),
    ("12", [256 + ord("1") - ord("!"), 256 + ord("2") - ord("!")]),
    ("a's", [320, ord("'") - ord("!"), 256 + ord("s") - ord("!")]),
    # The bytes C3 A9, in the second and the third range of printable ones.
    ("é", [94 + 12 + 0xC3 - 0xAE, 256 + 94 + 0xA9 - 0xA1]),
    # F0 9F 98 80; three of them come after the 188 printable ones: 33 from 0, 127, then from 128 on.
    (
        "😀",
        [94 + 12 + 0xF0 - 0xAE, 188 + 34 + 0x9F - 0x80, 188 + 34 + 0x98 - 0x80, 256 + 188 + 34],
    ),
    ("", []),
])  # fmt: skip
def test_ids_match_those_by_hand(tokenizer, text, ids):
    assert ids_of(tokenizer, text) == ids


def test_ids_match_transformers(tmp_path, tokenizer):
    """On texts that need no mending; its tokenizer.json gives the same ids here too."""
    transformers = pytest.importorskip("transformers")
    letters = byte_letters()
    assert len(set(letters)) == 256
    tokens = [*letters, *(letter + "</w>" for letter in letters)]
    tokens += [merge.replace(" ", "") for merge in MERGES] + [START, END]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    theirs = transformers.CLIPTokenizer(vocabulary, [tuple(merge.split()) for merge in MERGES])
    theirs.save_pretrained(tmp_path / "theirs")
    read = load_clip_tokenizer(tmp_path / "theirs")
    for text in TEXTS:
        expected = theirs(text).input_ids
        assert [VOCAB - 2, *ids_of(tokenizer, text), VOCAB - 1] == expected, text
        assert [VOCAB - 2, *ids_of(read, text), VOCAB - 1] == expected, text


def test_long_texts_are_cut_before_the_end_token(tokenizer):
    words = "the lake a " * 40
    with pytest.warns(IgnoredWords, match="^ignored by CLIP: what prompts say after 75 tokens"):
        row = tokenizer.encode([words])[0]
    assert row.dtype == np.int32 and row.tolist() == [VOCAB - 2, *([516, 514, 320] * 25), VOCAB - 1]
    rows = [[VOCAB - 2, 516, 514, VOCAB - 1], [VOCAB - 2, 320, VOCAB - 1, 0]]
    with pytest.warns(IgnoredWords, match="after 2 tokens"):
        assert tokenizer.encode([words, "a"], context=4).tolist() == rows
    assert tokenizer.encode(["a " * 75])[0, -2:].tolist() == [320, VOCAB - 1], "nothing is cut"
    assert tokenizer.encode([]).shape == (0, 77)


@pytest.mark.filterwarnings("ignore::lantern_jax.IgnoredWords")
@pytest.mark.parametrize("length", [0, 1, 71, 72, 73, 90])
def test_lanterns_prefix(tokenizer, length):
    """A few ids put in after the start token of finished rows, which are cut, the last place made an end token."""
    prefix = tokenizer.encode(["A photo depicts "])[0]
    prefix = prefix[1 : int(np.argmax(prefix))]
    finished = tokenizer.encode(["the " * length])[0]
    expected = np.concatenate([finished[:1], prefix, finished[1:]])[:77]
    if expected[-1]:
        expected[-1] = VOCAB - 1
    found = tokenizer.encode(["the " * length], prefix="A photo depicts ")[0]
    assert found.tolist() == expected.tolist() and len(prefix) > 3


@pytest.mark.parametrize(("text", "cleaned"), [
    ("  A\n\t Lake  ", "a lake"),
    ("a &amp;lt;b&amp;gt; c", "a <b> c"),
    ("\u201cfine\u201d isn\u2019t", '"fine" isn\'t'),
    ("\ufb01ne \uff21\u0301", "fine á"),
])  # fmt: skip
def test_texts_are_cleaned(text, cleaned):
    assert clean(text) == cleaned


def test_wrong_files_are_refused(tmp_path, monkeypatch):
    import tokenizers

    other = tmp_path / "other"
    other.mkdir()
    refused_each({
        "is not a file": lambda: load_clip_tokenizer(tmp_path / "other.json"),
        r"holds no tokenizer: give CLIP's tokenizer\.json": lambda: load_clip_tokenizer(other),
    })  # fmt: skip
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.save(str(other / "tokenizer.json"))
    refused_each({"is not CLIP's tokenizer": lambda: load_clip_tokenizer(other)})
    path = write_tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"needs tokenizers: pip install tokenizers"):
        load_clip_tokenizer(path)
