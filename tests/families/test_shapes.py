"""Pictures that are not square: the same stream with other rows, through every part that knows of rows and columns."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.commands.main import main
from lantern_jax.apps.display.acceptance import draw_acceptance
from lantern_jax.apps.display.race import Race
from lantern_jax.apps.serve.answers import model_entry
from lantern_jax.apps.serve.batch import Tools
from lantern_jax.apps.serve.counters import Counters
from lantern_jax.apps.serve.limits import Limits
from lantern_jax.apps.serve.picture_request import read_request
from lantern_jax.apps.sets.reading import read_set
from lantern_jax.apps.sets.set_plan import read_plan
from lantern_jax.checkpoints.checkpoint import picture_size, size_text
from lantern_jax.families.registry import FAMILIES
from lantern_jax.models.sizes import shape_of
from lantern_jax.pipeline.pipeline import load
from tests.cases import exhaustive
from tests.command import assert_refused
from tests.fixtures.guided_conversions import OPTIONS, PROMPTS, write_model
from tests.refused import refused

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

# Rows and columns; those of Lumina-mGPT 2.0 form cells of four.
WIDE = {"emu3": (3, 4), "lumina2": (12, 16)}
# Code that confuses rows with columns fails on either shape.
wide_and_tall = pytest.mark.parametrize("name", ["wide", exhaustive("tall")])


@pytest.fixture(
    scope="module",
    params=["emu3, original", exhaustive("lumina2, hugging_face")],
)
def model(request):
    return request.param


@pytest.fixture(scope="module")
def shapes(model):
    """Rows and columns of each shape, 4:3 and 3:4."""
    wide = WIDE[model.partition(",")[0]]
    return {"wide": wide, "tall": wide[::-1]}


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    assert main(["convert", *write_model(model, folder), "--out", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def loaded(folder, shapes):
    """Returns a function from a shape's name to its pipeline on one device."""
    cell = load(folder).checkpoint.tokenizer_config.downsampling
    sizes = {name: f"{columns * cell}x{rows * cell}" for name, (rows, columns) in shapes.items()}
    return cache(lambda name: load(folder, mesh="data=1", size=sizes[name]))


@pytest.fixture(scope="module")
def plain(loaded):
    return cache(lambda name: loaded(name).generate(PROMPTS, method="ar", **OPTIONS))


@wide_and_tall
def test_windows_give_plain_decodings_tokens(name, loaded, plain, shapes):
    pipeline, (rows, columns) = loaded(name), shapes[name]
    made = pipeline.generate(PROMPTS, method="jacobi:window=7", **OPTIONS)
    np.testing.assert_array_equal(made.tokens, plain(name).tokens)
    cell = pipeline.checkpoint.tokenizer_config.downsampling
    assert made.tokens.shape == (2, rows * columns) and made.pictures.shape == (
        2,
        rows * cell,
        columns * cell,
        3,
    )
    assert made.statistics.rounds < plain(name).statistics.rounds


@wide_and_tall
def test_rows_in_parallel(name, loaded, plain, shapes):
    """With each row one code behind the last, a pass decodes a diagonal of codes; the first row sees no other row."""
    rows, columns = shapes[name]
    near = loaded(name).generate(PROMPTS, method="zipar:ahead=1", **OPTIONS)
    np.testing.assert_array_equal(near.tokens[:, :columns], plain(name).tokens[:, :columns])
    assert near.statistics.rounds == 2 * (columns + rows - 2) < plain(name).statistics.rounds


@wide_and_tall
def test_completion_keeps_rows(name, loaded, plain, shapes):
    """With its own seed a picture's codes are completed to the same; a given picture of any shape keeps its rows."""
    pipeline, (rows, columns) = loaded(name), shapes[name]
    codes = list(plain(name).tokens)
    made = pipeline.generate(PROMPTS, method="ar", start=codes, **OPTIONS)
    np.testing.assert_array_equal(made.tokens, plain(name).tokens)
    given = Image.fromarray(plain(name).pictures[0])
    begun = pipeline.generate(PROMPTS, method="ar", start=given, **OPTIONS)
    kept = columns * (rows // 2)
    encoded = pipeline.encode_pictures(given)[0, :kept]
    np.testing.assert_array_equal(begun.tokens[:, :kept], [encoded, encoded])
    with refused(f"1 to {rows - 1}: a picture has {rows} rows of codes"):
        pipeline.plan(PROMPTS, start=codes, keep_rows=rows)
    with refused(f"give whole numbers, {rows * columns} per picture"):
        pipeline.plan(PROMPTS, start=[0] * 16)


@wide_and_tall
def test_race_overlay_and_sketch_have_the_pictures_shape(name, loaded, shapes):
    pipeline, (rows, columns) = loaded(name), shapes[name]
    made = pipeline.generate(PROMPTS, method="jacobi:window=7", compare=True, **OPTIONS)
    height, width = made.pictures.shape[1:3]
    frames, _ = Race(made).frames()
    scale = round(256 / width)
    assert frames.shape[1] >= height * scale and frames.shape[2] == 2 * width * scale + 4
    last = frames[-1, : height * scale, : width * scale].astype(int)
    small = np.asarray(Image.fromarray(last.astype(np.uint8)).resize((width, height)), int)
    assert np.abs(small - made.plain.pictures[0]).mean() < 16
    tinted = draw_acceptance(made)[0]
    assert tinted.shape[1] * rows == (tinted.shape[0] - 24) * columns
    codes = made.tokens[0].copy()
    codes[columns + 1 :] = -1
    sketch = Tools(pipeline.engine, Counters(), None, 1, columns).sketch(codes)
    cell = height // rows
    assert sketch.shape == (height, width, 4)
    known = sketch[::cell, ::cell, 3] > 0
    np.testing.assert_array_equal(known.ravel(), codes >= 0)


def test_the_prompt_names_height_and_width(model, loaded, shapes):
    """As the published processors do, which is why encoded prompts fit only one size."""
    for name, (rows, columns) in shapes.items():
        encoder = loaded(name)._encoder
        cells = (f"<reserved{8800 + side // 4:05d}>" for side in (rows, columns))
        named = f"{rows}*{columns}<|image token|>" if model.startswith("emu3") else "".join(cells)
        ids = encoder.parts.tokenizer.encode(named)
        assert encoder.rows("a lake", None)[0][-len(ids) :] == ids
    encoded = loaded("wide").encode(PROMPTS)
    said = "encoded as guided tokens of {} x {} codes, this checkpoint takes guided tokens of {} x {} codes"
    with refused(said.format(*shapes["wide"], *shapes["tall"])):
        loaded("tall").plan(encoded)


def test_published_shapes():
    config = FAMILIES["emu3"].config()
    assert shape_of(config) == (90, 90) and config.num_tokens == 8192
    made = FAMILIES["emu3"].shaped(config, 78, 104)
    assert shape_of(made) == (78, 104) and made.num_tokens == 78 * 105 + 2
    assert FAMILIES["emu3"].shaped(made, 90, 90) == config
    # 21:9, as the published program counts it.
    assert shape_of(FAMILIES["emu3"].shaped(config, 59, 137)) == (59, 137)
    for rows, columns in ((91, 91), (193, 10)):
        with refused("codes of a picture are too many"):
            FAMILIES["emu3"].shaped(config, rows, columns)
    with refused("columns"):
        replace(config, columns=0)
    config = FAMILIES["lumina2"].config()
    wide = FAMILIES["lumina2"].shaped(config, 72, 128)
    assert shape_of(wide) == (72, 128) and wide.num_tokens == 72 * 129 + 1
    for rows, columns, said in (
        (96, 100, "9216, and 192 per side"),
        (75, 100, "grid 75 is not valid: give a multiple of 4"),
    ):
        with refused(said):
            FAMILIES["lumina2"].shaped(config, rows, columns)


def test_the_commands_take_a_size(folder, loaded, shapes, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wide = loaded("wide")

    def shared(*given, **more):
        pipeline = load(*given, **more)
        pipeline.engine.programs = wide.engine.programs
        return pipeline

    monkeypatch.setattr("lantern_jax.pipeline.pipeline.load", shared)
    size = size_text(picture_size(wide.checkpoint))
    width, height = map(int, size.split("x"))
    options = ["--model", str(folder), "--size", size, "--mesh", "data=1", "--num", "2"]
    options += ["--method", "ar", "--guidance", "2"]
    assert main(["generate", PROMPTS[0], *options, "--out", "made/"]) == 0
    for path in Path("made").glob("0*.png"):
        with Image.open(path) as image:
            assert image.size == (width, height)
    (tmp_path / "prompts.txt").write_text("a lake\n")
    words = ["set", "--prompts", "prompts.txt", "--out", "set", "--shard-size", "2", *options]
    assert main(words) == 0
    assert [picture.picture.shape for picture in read_set(tmp_path / "set")] == 2 * [(height, width, 3)]
    assert read_plan(tmp_path / "set").size == size
    capsys.readouterr()
    words[words.index("--size") + 1] = f"{height}x{width}"
    assert f'holds another set (size "{size}", not "{height}x{width}")' in assert_refused(words, capsys)
    entry = model_entry(wide, "emu3")["lantern"]
    assert [entry[name] for name in ("width", "height", "rows", "columns")] == [
        width,
        height,
        *shapes["wide"],
    ]
    asked = {"prompt": "a lake", "size": "512x512"}
    assert read_request(asked, Limits(), "emu3", size).output.size == size


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("big", "width and height in pixels, such as 832x624"),
        ("33x32", "multiples of"),
        ("4096x4096", "codes of a picture are too many"),
    ],
)
def test_invalid_sizes_are_refused(size, said, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert said in assert_refused(["generate", "a lake", "--model", str(folder), "--size", size], capsys)


def test_models_of_one_size_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    refusal = assert_refused(["generate", "a lake", "--size", "256x128"], capsys)
    assert "draws pictures of its own size alone (256x256): leave it out" in refusal
    assert load("demo", size="256x256").checkpoint.size is None
