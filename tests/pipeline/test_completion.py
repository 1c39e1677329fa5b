"""Pictures continued from given ones: from pictures, codes and files, in Python and by the command."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from PIL import Image

import lantern_jax.engine.engine
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.display.acceptance import draw_acceptance
from lantern_jax.models.vq import VQModel
from tests.command import assert_refused, must_not_run
from tests.refused import refused
from tests.tiny_checkpoint import (
    CODES,
    GRID,
    SIDE,
    TOKENS,
    VQ,
    altered_pipeline,
    pipeline_on,
    tiny_pipeline,
    vq_parameters,
)

PROMPTS = ["a lake", "a foggy forest"]


@pytest.fixture(scope="module")
def made():
    return tiny_pipeline().generate(PROMPTS, seed=3)


@pytest.fixture(scope="module")
def completed(made):
    """Pictures of another seed that begin like ``made``."""
    return tiny_pipeline().generate(PROMPTS, seed=4, start=made.tokens, keep_rows=2, compare=True)


def test_pictures_to_codes_and_back(made):
    pipeline = tiny_pipeline()
    np.testing.assert_array_equal(pipeline.draw(made.tokens), made.pictures)
    np.testing.assert_array_equal(pipeline.draw(made.tokens[0]), made.pictures[:1])
    codes = jax.jit(
        partial(VQModel(VQ).apply, method=lambda model, given: model.quantize(model.encode(given)))
    )
    expected = codes(vq_parameters(), made.pictures / np.float32(127.5) - 1)
    np.testing.assert_array_equal(pipeline.encode_pictures(made.pictures), expected)
    np.testing.assert_array_equal(pipeline.encode_pictures(made.images), expected)
    wide = np.pad(made.pictures[1], ((0, 0), (5, 5), (0, 0)))
    np.testing.assert_array_equal(pipeline.encode_pictures(Image.fromarray(wide)), expected[1:])


def test_given_rows_stay_and_the_rest_is_plain_decodings(made, completed):
    given = 2 * GRID
    np.testing.assert_array_equal(completed.tokens[:, :given], made.tokens[:, :given])
    np.testing.assert_array_equal(completed.tokens, completed.plain.tokens)
    other = tiny_pipeline().generate(PROMPTS, seed=4).tokens
    assert (completed.tokens[:, given:] != made.tokens[:, given:]).any()
    assert (completed.tokens[:, given:] != other[:, given:]).any()
    own = tiny_pipeline().generate(PROMPTS, seed=3, start=made.tokens, keep_rows=2)
    np.testing.assert_array_equal(own.tokens, made.tokens)


def test_given_tokens_are_not_counted(completed):
    assert completed.statistics.tokens == 2 * (TOKENS - 2 * GRID)
    run = completed.plain.statistics
    assert run.rounds == run.tokens and run.step_compression == 1
    rounds = completed.round_of_token
    assert (rounds[:, : 2 * GRID] == 0).all() and (rounds[:, 2 * GRID :] > 0).all()
    assert len(draw_acceptance(completed)) == 2


def test_one_start_serves_all_prompts(made, monkeypatch):
    """Given as a picture, whose codes are the tokenizer's. Half of them are kept by default."""
    pipeline, encoded = tiny_pipeline(), []
    encode = pipeline.engine.encode
    codes = pipeline.encode_pictures(made.images[0])
    monkeypatch.setattr(
        pipeline.engine, "encode", lambda pictures: encoded.append(pictures) or encode(pictures)
    )
    pictures = pipeline.generate(PROMPTS, seed=4, start=made.images[0]).tokens
    assert len(encoded) == 1
    np.testing.assert_array_equal(pictures[:, : TOKENS // 2], np.repeat(codes, 2, axis=0)[:, : TOKENS // 2])
    both = pipeline.generate(PROMPTS, seed=4, start=[made.pictures[0], codes[0]]).tokens
    np.testing.assert_array_equal(both, pictures)


@pytest.mark.slow
def test_devices_and_batches_change_nothing(made, completed):
    pipeline = pipeline_on(2)
    again = pipeline.generate(PROMPTS, seed=4, start=made.tokens, keep_rows=2, method="ar")
    np.testing.assert_array_equal(again.tokens, completed.tokens)
    before = set(pipeline.engine.programs)
    pipeline.generate(PROMPTS, seed=4, start=made.tokens, keep_rows=3, method="ar")
    more = [key.kind for key in set(pipeline.engine.programs) - before]
    assert more == ["start"], "only how a batch begins depends on how much is given"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_rows": 2}, "give it as start"),
        ({"start": np.zeros(TOKENS, int), "keep_rows": 0}, "keep_rows 0 is not valid"),
        ({"start": np.zeros(TOKENS, int), "keep_rows": GRID}, f"1 to {GRID - 1}: a picture has {GRID} rows"),
        ({"start": np.zeros(TOKENS - 1, int)}, f"whole numbers, {TOKENS} per picture"),
        ({"start": np.zeros(TOKENS)}, f"whole numbers, {TOKENS} per picture"),
        ({"start": np.full(TOKENS, CODES)}, f"give those from 0 to {CODES - 1}"),
        ({"start": np.zeros((SIDE, SIDE, 3))}, "of float64: give a PIL image, uint8"),
        ({"start": np.zeros((3, TOKENS), int)}, "start holds 3 pictures for 1 prompts"),
        ({"start": np.zeros(TOKENS, int), "method": "zipar"}, "zipar:guesses=0 cannot go on"),
    ],
)  # fmt: skip
def test_bad_starts_are_refused_before_computing(options, message, monkeypatch):
    monkeypatch.setattr(lantern_jax.engine.engine.Engine, "start", must_not_run)
    with refused(message):
        tiny_pipeline().generate("a lake", **options)


def test_without_a_tokenizer_codes_may_be_given(made):
    pipeline = altered_pipeline(tokenizer_params=None)
    tokens = pipeline.generate(PROMPTS, seed=3, start=made.tokens, keep_rows=2).tokens
    np.testing.assert_array_equal(tokens, made.tokens)
    for take, given in ((pipeline.encode_pictures, made.images), (pipeline.draw, made.tokens)):
        with refused("no VQ tokenizer"):
            take(given)


def test_the_command_continues_a_file(made, tmp_path, tiny_demo, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made.images[0].save("begin.png")
    begin = ["generate", PROMPTS[0], "--out"]
    options = ["--seed", "4", "--method", "ar", "--start", "begin.png", "--keep", "0.3", "--stats", "a.json"]
    assert main([*begin, "a.png", *options]) == 0
    expected = tiny_pipeline().generate(PROMPTS[0], seed=4, method="ar", start=made.images[0], keep_rows=1)
    with Image.open("a.png") as image:
        np.testing.assert_array_equal(np.asarray(image), expected.pictures[0])
    assert json.loads((tmp_path / "a.json").read_text())["tokens"] == TOKENS - GRID
    capsys.readouterr()
    (tmp_path / "text.png").write_text("no picture")
    for more, message in (
        (["--keep", "0.5"], "give --start IMAGE"),
        (["--start", "begin.png", "--keep", "1"], "--keep 1.0 is not valid"),
        (["--start", "text.png"], "text.png: not a readable picture"),
        (["--start", "none.png"], "none.png: not a readable picture"),
    ):
        assert message in assert_refused([*begin, "b.png", *more], capsys)
