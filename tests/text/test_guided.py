"""Prompts of Janus-Pro and similar models: token ids are the published processors', with made-up tokenizers."""

import dataclasses
import json

import numpy as np
import pytest

from lantern_jax.families.emu3.prompts import EMU3_NEGATIVE, EMU3_WISH, Emu3Encoder
from lantern_jax.families.janus.model import JanusConfig
from lantern_jax.families.janus.prompts import JanusEncoder
from lantern_jax.families.liquid.prompts import LiquidEncoder
from lantern_jax.families.lumina2.prompts import Lumina2Encoder, structuring_ids
from lantern_jax.text.encoders import PromptParts
from lantern_jax.text.packed import BUCKETS
from tests.fixtures import guided_layouts as layouts
from tests.golden_cases import DEFAULT_DIRECTORY
from tests.refused import refused

pytest.importorskip("tokenizers")

PROMPTS = [
    "a lake", "a lake at dusk", "A", "Ein Zürcher See", "湖のほとり", "🦊 in the snow", "two  spaces",
    "tabs\tand\nlines",
    "'quoted'", '"double"', "1234567890", "a" * 120, "<|User|>: me too", "<begin_of_image>", "é", "naïve café", "…",
    "\u200bzero width", "don't", "an oil painting of a lake, by a master, 4k -- high detail", "  spaces around \n",
]  # fmt: skip


def published_rows(encoded, config) -> list[list[list[int]]]:
    """Returns both rows of each prompt without padding, as published ids."""
    rows = []
    for ids, mask in ((encoded.tokens, encoded.mask), (encoded.unconditional, encoded.unconditional_mask)):
        np.testing.assert_array_equal(np.sort(mask, axis=-1), mask)
        rows.append([(row[seen] - config.num_codes).tolist() for row, seen in zip(ids, mask, strict=True)])
    return [list(pair) for pair in zip(*rows, strict=True)]


def test_janus_prompts_are_the_published_processors(tmp_path):
    """Of the unconditional row, all but the first and the last id are padding."""
    path = layouts.write_byte_level(tmp_path / "tokenizer.json", layouts.JANUS_SPECIAL)
    encoder = JanusEncoder(PromptParts(layouts.TINY_JANUS, text_tokenizer=path))
    begin, _, padding, start, *_ = layouts.JANUS_SPECIAL
    rows = published_rows(encoder.encode(PROMPTS), layouts.TINY_JANUS)
    for prompt, (row, unconditional) in zip(PROMPTS, rows, strict=True):
        chat = f"{begin}<|User|>: {prompt.strip()}\n\n<|Assistant|>:{start}"
        assert row == encoder.parts.tokenizer.encode(chat)
        expected = [layouts.JANUS_SPECIAL.index(name) for name in (begin, padding, start)]
        assert unconditional == [expected[0], *expected[1:2] * (len(row) - 2), expected[2]]


@pytest.mark.parametrize("shape", [(90, 90), (78, 104)])
def test_emu3_prompts_are_the_published_processors(tmp_path, shape):
    path = layouts.write_emu3_tokenizer(tmp_path / "tokenizer.json")
    config = dataclasses.replace(layouts.TINY_EMU3, grid=shape[0], columns=shape[1])
    encoder = Emu3Encoder(PromptParts(config, text_tokenizer=path))
    texts = [
        f"<|extra_203|>{text}<|image start|>{shape[0]}*{shape[1]}<|image token|>"
        for text in (*(prompt + EMU3_WISH for prompt in PROMPTS), EMU3_NEGATIVE)
    ]
    *expected, negative = map(encoder.parts.tokenizer.encode, texts)
    assert published_rows(encoder.encode(PROMPTS), config) == [[row, negative] for row in expected]


def test_liquid_prompts_are_the_published_ones(tmp_path):
    """As ``inference_t2i.py`` writes them: a Gemma tokenizer puts the beginning-of-text token in front."""
    path = layouts.write_byte_level(tmp_path / "tokenizer.json", layouts.LIQUID_SPECIAL)
    encoder = LiquidEncoder(PromptParts(layouts.TINY_LIQUID, text_tokenizer=path))
    encode = encoder.parts.tokenizer.encode
    rows = published_rows(encoder.encode(PROMPTS), layouts.TINY_LIQUID)
    texts = [prompt + " Generate an image based on this description.<boi>" for prompt in PROMPTS]
    assert rows == [[encode(f"<bos>{text}"), encode("<bos><unconditional><boi>")] for text in texts]


def test_lumina2_prompts_match_the_published_processor(tmp_path):
    """Its own processor, recorded by ``tests.golden_record``; the unconditional row is the header, height first."""
    path = layouts.write_lumina2_tokenizer(tmp_path / "tokenizer.json")
    config = dataclasses.replace(layouts.TINY_LUMINA2, grid=4, columns=8)
    with np.load(DEFAULT_DIRECTORY / "lumina2.npz") as recorded:
        expected, header = recorded["wide_prompts"], recorded["wide_header"].tolist()
    rows = published_rows(Lumina2Encoder(PromptParts(config, text_tokenizer=path)).encode(PROMPTS), config)
    assert rows == [[row[row >= 0].tolist(), header] for row in expected]


def test_lumina2s_tokenizer_tells_the_structuring_ids(tmp_path):
    """Prompts begin with the beginning-of-text token if the tokenizer has one, otherwise with the end-of-text token."""
    path = layouts.write_lumina2_tokenizer(tmp_path / "tokenizer.json")
    beside = tmp_path / "tokenizer_config.json"
    for settings, begin in (
        ({"eos_token": "<|im_end|>", "bos_token": "<eoss>"}, "<eoss>"), ({"eos_token": "<|im_end|>"}, "<|im_end|>"),
        ({"bos_token": None, "eos_token": {"content": "<|im_end|>"}}, "<|im_end|>"), ({}, "<|endoftext|>"),
    ):  # fmt: skip
        beside.write_text(json.dumps(settings))
        ids = {"begin": layouts.LUMINA2_SPECIAL.index(begin), "row_end": 5, "image_end": 3}
        assert structuring_ids(path) == ids
    beside.unlink()
    assert structuring_ids(path)["begin"] == 0
    layouts.write_byte_level(path, layouts.LIQUID_SPECIAL)
    with refused("not this model's tokenizer"):
        structuring_ids(path)


def test_wrong_prompts_and_tokenizers_are_refused(tmp_path):
    path = layouts.write_byte_level(tmp_path / "tokenizer.json", layouts.JANUS_SPECIAL)
    encoder = JanusEncoder(PromptParts(layouts.TINY_JANUS, text_tokenizer=path))
    for prompts, said in (
        ([], "no prompts"), (["  "], "empty prompt"), ([3], "is not text"), (["x" * 2000], "more than 1024: shorten it")
    ):  # fmt: skip
        with refused(said):
            encoder.encode(prompts)
    with refused("negative_prompt: prompt 'xx"):
        encoder.encode(["a lake"], negative=["x" * 2000])
    small = JanusConfig(32, 2, 2, 48, vocab_size=80, num_codes=64, grid=4)
    with refused("has ids up to .*, the model 16: convert it with its own tokenizer"):
        JanusEncoder(PromptParts(small, text_tokenizer=path)).encode(["a"])


def test_rows_have_one_length_and_come_back_from_a_file(tmp_path):
    path = layouts.write_byte_level(tmp_path / "tokenizer.json", layouts.JANUS_SPECIAL)
    encoder = JanusEncoder(PromptParts(layouts.TINY_JANUS, text_tokenizer=path))
    made = encoder.encode(["a lake", "b" * 100])
    assert made.tokens.shape == made.unconditional.shape == (2, BUCKETS[1])
    again = encoder.from_encoded(encoder.to_encoded(["a lake", "b"], made))
    for name in encoder.fields:
        np.testing.assert_array_equal(getattr(again, name), getattr(made, name))
    broken = encoder.to_encoded(["a lake", "b"], made.replace(tokens=made.tokens + 10**6))
    with refused("ids of prompts are"):
        encoder.from_encoded(broken)


def test_a_negative_prompt_takes_the_place_of_the_published_row(tmp_path):
    """Janus: in its chat; Emu3: instead of the published text, without the wish; the others: with the task."""
    path = layouts.write_byte_level(tmp_path / "bytes.json", layouts.JANUS_SPECIAL + layouts.LIQUID_SPECIAL)
    emu3 = layouts.write_emu3_tokenizer(tmp_path / "emu3.json")
    lumina2 = layouts.write_lumina2_tokenizer(tmp_path / "lumina2.json")
    task = "Generate an image of 32x32 according to the following prompt:\n{}"
    wanted, against = ["a lake", "b" * 80], ["snow " * 30, "fog"]
    for encoder, config, row in (
        (JanusEncoder, layouts.TINY_JANUS, "<|User|>: {}\n\n<|Assistant|>:<begin_of_image>"),
        (LiquidEncoder, layouts.TINY_LIQUID, "{} Generate an image based on this description.<boi>"),
        (Emu3Encoder, layouts.TINY_EMU3, "{}<|image start|>4*4<|image token|>"),
        (
            Lumina2Encoder,
            layouts.TINY_LUMINA2,
            task + "<reserved08706><racm3:break><reserved08801><reserved08801>",
        ),
    ):
        tokenizer = {Emu3Encoder: emu3, Lumina2Encoder: lumina2}.get(encoder, path)
        encoder = encoder(PromptParts(config, text_tokenizer=tokenizer))
        made, own = encoder.encode(wanted, negative=against), encoder.encode(wanted)
        assert made.tokens.shape == made.unconditional.shape
        for number, text in enumerate(against):
            (here, row_ids), (there, own_ids) = (published_rows(some, config)[number] for some in (made, own))
            assert here == there and row_ids != own_ids
            ids = encoder.parts.tokenizer.encode(
                row.format(text.strip() if config is layouts.TINY_JANUS else text)
            )
            assert row_ids[-len(ids) :] == ids and len(row_ids) - len(ids) in (0, 1)
