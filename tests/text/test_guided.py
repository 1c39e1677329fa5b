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


def test_janus_prompts_match_the_published_processor(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from tokenizers.processors import TemplateProcessing

    path = layouts.write_byte_level(tmp_path / "tokenizer.json", layouts.JANUS_SPECIAL)
    begin, _, padding, start, *_ = layouts.JANUS_SPECIAL
    names = {"image_token": "<image_placeholder>", "boi_token": start, "eoi_token": "<end_of_image>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path), bos_token=begin, pad_token=padding, extra_special_tokens=names
    )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, 0)]
    )
    processor = transformers.JanusProcessor(transformers.JanusImageProcessorPil(), tokenizer)
    encoder = JanusEncoder(PromptParts(layouts.TINY_JANUS, text_tokenizer=path))
    rows = published_rows(encoder.encode(PROMPTS), layouts.TINY_JANUS)
    for prompt, (row, unconditional) in zip(PROMPTS, rows, strict=True):
        chat = f"<|User|>: {prompt.strip()}\n\n<|Assistant|>:"
        expected = processor(text=[chat], generation_mode="image")["input_ids"][0].tolist()
        assert row == expected
        # As in deepseek-ai/Janus: all but the first and the last id are padding.
        assert unconditional == [expected[0], *[2] * (len(expected) - 2), expected[-1]]


def test_emu3_prompts_match_the_published_processor(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    path = layouts.write_emu3_tokenizer(tmp_path / "tokenizer.json")
    names = {
        "image_token": "<image>", "boi_token": "<|image start|>", "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>", "eof_token": "<|extra_201|>",
    }  # fmt: skip
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        bos_token="<|extra_203|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=names,
    )
    processor = transformers.Emu3Processor(transformers.Emu3ImageProcessor(), tokenizer)
    shapes = {"1:1": (90, None), "4:3": (78, 104), "3:4": (104, 78), "16:9": (68, 120)}
    for ratio, (grid, columns) in shapes.items():
        config = dataclasses.replace(layouts.TINY_EMU3, grid=grid, columns=columns)
        encoder = Emu3Encoder(PromptParts(config, text_tokenizer=path))
        prompts = PROMPTS if columns is None else PROMPTS[:2]
        rows = published_rows(encoder.encode(prompts), config)
        given = {"return_for_image_generation": True, "ratio": ratio, "image_area": 518400}
        negative = processor(text=EMU3_NEGATIVE, **given)["input_ids"][0]
        for prompt, (row, unconditional) in zip(prompts, rows, strict=True):
            assert row == list(processor(text=prompt + EMU3_WISH, **given)["input_ids"][0])
            assert unconditional == list(negative)


def test_liquid_prompts_match_its_tokenizer(tmp_path):
    """As ``inference_t2i.py`` calls it: a Gemma tokenizer puts the beginning-of-text token in front."""
    transformers = pytest.importorskip("transformers")
    from tokenizers.processors import TemplateProcessing

    path = layouts.write_byte_level(tmp_path / "tokenizer.json", layouts.LIQUID_SPECIAL)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path), bos_token="<bos>", pad_token="<pad>", padding_side="left"
    )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    encoder = LiquidEncoder(PromptParts(layouts.TINY_LIQUID, text_tokenizer=path))
    rows = published_rows(encoder.encode(PROMPTS), layouts.TINY_LIQUID)
    texts = [prompt + " Generate an image based on this description.<boi>" for prompt in PROMPTS]
    expected = tokenizer([*texts, "<unconditional><boi>"], padding=True)
    seen = [
        [number for number, kept in zip(ids, mask, strict=True) if kept]
        for ids, mask in zip(expected["input_ids"], expected["attention_mask"], strict=True)
    ]
    assert rows == [[row, seen[-1]] for row in seen[:-1]]


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
