"""Every published layout, with tiny random weights, through the command: converted, generated from, and broken.

Strict decoding must equal plain decoding, from the prompt to the picture; relaxed rules must stay in the codebook.
"""

import dataclasses
import gc
import json
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import lantern_jax
from lantern_jax.apps.commands.main import main
from lantern_jax.families import token_weights
from lantern_jax.pipeline.pipeline import Pipeline, load
from tests.cases import exhaustive
from tests.command import assert_refused, files, must_not_run
from tests.fixtures import published_layouts as layouts

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

# Compiles faster; the number of devices changes no tokens.
ONE_DEVICE = "data=1"
METHOD = "gumbel:tree=0.0+0.1+1.0"
# At a high temperature the shared noise decides, so an untrained drafter is often right.
TEMPERATURE = 4.0
DECODING = ("--method", METHOD, "--top-k", "0", "--guidance", "2", "--temperature", str(TEMPERATURE))
OPTIONS = {"method": METHOD, "top_k": 0, "guidance": 2.0, "temperature": TEMPERATURE}
RELAXED = {"rule": "lantern++:k=8,lam=8"}
VQ_8 = dataclasses.replace(layouts.TINY_VQ, ch_mult=(1,))
CAPTIONS = ["a snowy lake at dusk", "the mountains"]


LLAMAGEN, DRAFTER = layouts.write_llamagen, layouts.write_drafter
# File or folder -> how it is written.
SOURCES = {
    "t2i.pt": partial(LLAMAGEN, config=layouts.TINY_CAPTION),
    "vq-8.pt": partial(layouts.write_vq, config=VQ_8),
    "chameleon": partial(
        layouts.write_chameleon, config=layouts.TINY_CHAMELEON, vqgan=layouts.TINY_VQGAN, dtype=np.float32,
        shard_bytes=1 << 20,
    ),
    "vqgan.ckpt": partial(layouts.write_vqgan, config=layouts.TINY_VQGAN),
    "t5": partial(layouts.write_t5, settings=layouts.TINY_T5, shard_bytes=1 << 14),
    "drafter-llamagen": partial(DRAFTER, config=layouts.drafter_of(layouts.TINY_CAPTION)),
    "drafter-anole": partial(DRAFTER, config=layouts.drafter_of(layouts.TINY_CHAMELEON)),
}  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A folder with tiny models in all layouts."""
    folder, chameleon = tmp_path_factory.mktemp("published"), layouts.TINY_CHAMELEON
    for name, write in SOURCES.items():
        write(folder / name)
    layouts.write_text_tokenizer(
        folder / "text_tokenizer.json", chameleon.num_codes, chameleon.vocab_size, shuffle=1
    )
    layouts.write_t5_tokenizer(folder / "t5.json")
    (folder / "sizes.json").write_text(json.dumps({"num_heads": 2, "grid": 4}))
    (folder / "grid-8.json").write_text(json.dumps({"grid": 8}))
    return folder


def link(published: Path, monkeypatch, tmp_path: Path) -> None:
    """Enters a folder that links to all published files, so that single files can be replaced."""
    monkeypatch.chdir(tmp_path)
    for path in published.iterdir():
        Path(path.name).symlink_to(path)


@pytest.fixture(autouse=True)
def compiled_programs(tmp_path_factory):
    """Sets a persistent compilation cache, regardless of the one that the command would choose."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", before or str(tmp_path_factory.getbasetemp() / "xla"))
    yield
    jax.config.update("jax_compilation_cache_dir", before)


# Name -> the conversion's options, the format first.
CONVERSIONS = {
    "t2i": [
        "llamagen", "--gpt", "t2i.pt", "--vq", "vq-8.pt", "--drafter", "drafter-llamagen", "--t5", "t5",
        "--t5-tokenizer", "t5.json", "--config", "sizes.json",
    ],
    "lumina": [
        "lumina", "--model", "chameleon/model.safetensors.index.json", "--vqgan", "vqgan.ckpt", "--drafter",
        "drafter-anole/pytorch_model.bin", "--text-tokenizer", "text_tokenizer.json", "--config", "grid-8.json",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def converted(published, tmp_path_factory):
    """Returns a function from a name to the folder its conversion wrote."""
    made = {}

    def convert(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("converted") / name
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(published)
                assert main(["convert", *CONVERSIONS[name], "--out", str(made[name])]) == 0
        return made[name]

    return convert


@pytest.fixture(scope="module")
def loaded(converted):
    """Returns a function from a name to the one pipeline of its folder, so that compiled programs are shared."""
    return cache(lambda name: load(converted(name), mesh=ONE_DEVICE))


def sharing(model: str | Path, other: Pipeline) -> Pipeline:
    """Loads a pipeline that shares the compiled programs of another one with the same models."""
    pipeline = load(model, mesh=ONE_DEVICE)
    assert pipeline.checkpoint.target_config == other.checkpoint.target_config
    pipeline.engine.programs = other.engine.programs
    return pipeline


# The others are the same models: the hub's layout of t2i decodes as t2i does. Classes: test_convert.py.
@pytest.mark.parametrize("name", ["t2i", exhaustive("lumina")])
def test_strict_decoding_equals_plain_decoding(name, converted, loaded, tmp_path, monkeypatch):
    """From prompts to pictures, by the command and in Python."""
    monkeypatch.chdir(tmp_path)
    shared = lambda given, *others, **more: sharing(given, loaded(name))  # noqa: E731
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", shared)
    words = f"--model {converted(name)} --out pictures/ --stats s.json --compare".split()
    assert main(["generate", *CAPTIONS, *DECODING, *words]) == 0
    assert {"pictures/grid.png", "pictures/grid-compare.png", "s.json"} <= files(tmp_path)
    assert len(files(tmp_path)) == 6
    statistics = json.loads(Path("s.json").read_text())
    pipeline = loaded(name)
    config = pipeline.checkpoint.target_config
    assert statistics["same_tokens"] == 1 and statistics["step_compression"] > 1.1
    assert statistics["tokens"] == 2 * config.grid**2

    again = pipeline.generate(CAPTIONS, **OPTIONS, compare=True)
    np.testing.assert_array_equal(again.tokens, again.plain.tokens)
    assert again.statistics.rounds == statistics["rounds"]
    side = config.grid * pipeline.checkpoint.tokenizer_config.downsampling
    assert again.pictures.shape == (2, side, side, 3)
    np.testing.assert_array_equal(again.pictures, again.plain.pictures)
    first = next(Path("pictures").glob("00-*.png"))
    with Image.open(first) as image:
        assert image.size == (side, side), "the clean picture"
    assert again.pictures.std() > 1


def test_lumina_rows_are_closed(loaded):
    """Row ends and the image end are at the format's positions in the loop's own tokens, even under a relaxed rule."""
    pipeline = loaded("lumina")
    config, engine = pipeline.checkpoint.target_config, pipeline.engine
    job = pipeline.job(pipeline.check(CAPTIONS, **OPTIONS, **RELAXED))
    conditioning = pipeline._encoder.encode(CAPTIONS)
    decoded = engine.finish(engine.advance(engine.start(job, conditioning)))
    rows = decoded.tokens
    assert decoded.substituted.sum() > 0
    assert rows.shape == (2, 8 * 9 + 1)
    assert (rows[:, -1] == config.image_end).all()
    rows = rows[:, :-1].reshape(2, 8, 9)
    assert (rows[..., 8] == config.row_end).all() and (rows[..., :8] < config.num_codes).all()
    vocabulary = pipeline._encoder.vocabulary
    np.testing.assert_array_equal(vocabulary.order[[config.row_end, config.image_end]], [8803, 8196])


def test_the_text_encoder_is_freed_before_decoding_and_parameters_are_held_once(converted, loaded):
    def on_device(rows: int, columns: int) -> int:
        return sum(array.shape == (rows, columns) for array in jax.live_arrays())

    gc.collect()
    t5, gpt = layouts.TINY_T5, layouts.TINY_CAPTION
    embeddings = (t5["vocab_size"], t5["d_model"]), (gpt.dim, gpt.vocab_size)
    before = [on_device(*shape) for shape in embeddings]
    pipeline = sharing(converted("t2i"), loaded("t2i"))
    encoded = pipeline.encode(CAPTIONS)
    assert [on_device(*shape) for shape in embeddings] == before
    made = pipeline.generate(encoded, **OPTIONS | {"method": "ar"})
    assert [on_device(*shape) for shape in embeddings] == [before[0], before[1] + 1]
    assert made.tokens.shape == (2, gpt.num_tokens)
    # They are freed with the pipeline, not when Python next looks for cycles.
    del pipeline
    assert [on_device(*shape) for shape in embeddings] == before


def test_parts_can_be_added_to_a_checkpoint(converted, loaded, published, tmp_path, monkeypatch):
    """Adding a drafter and a text encoder later makes the same checkpoint."""
    monkeypatch.chdir(published)
    whole = converted("t2i")
    bare, drafted, full = (str(tmp_path / name) for name in ("bare", "drafted", "full"))
    for given in (
        ["llamagen", "--gpt", "t2i.pt", "--vq", "vq-8.pt", "--config", "sizes.json", "--out", bare],
        ["drafter", "--checkpoint", bare, "--drafter", "drafter-llamagen", "--out", drafted],
        ["t5", "--checkpoint", drafted, "--t5", "t5", "--t5-tokenizer", "t5.json", "--out", full],
    ):
        assert main(["convert", *given]) == 0
    left, right = (json.loads((Path(folder) / "config.json").read_text()) for folder in (whole, full))
    assert left | {"files": None} == right | {"files": None}
    whole = loaded("t2i")
    made = [pipeline.generate(CAPTIONS, **OPTIONS) for pipeline in (whole, sharing(full, whole))]
    np.testing.assert_array_equal(made[0].tokens, made[1].tokens)


def test_a_grid_that_prompts_cannot_name_is_refused_before_the_model_is_read(
    published, tmp_path, monkeypatch, capsys
):
    link(published, monkeypatch, tmp_path)
    Path("grid-5.json").write_text('{"grid": 5}')
    monkeypatch.setattr(token_weights, "read_tensors", must_not_run)
    line = assert_refused(["convert", *CONVERSIONS["lumina"][:-1], "grid-5.json", "--out", "new"], capsys)
    assert "5 cells a side cannot be named: give an even number" in line
