"""Janus-Pro and similar models: every published layout through the command, then decoded."""

from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.apps.measuring.random_models import RandomModel
from lantern_jax.decoding.protocols import TokenConditioning
from lantern_jax.devices.partition import parameter_spec
from lantern_jax.drafters.registry import usual_drafters
from lantern_jax.engine.engine import Engine
from lantern_jax.families import token_weights
from lantern_jax.families.janus.model import Janus
from lantern_jax.families.registry import FAMILIES, family_of
from lantern_jax.models.heads import head_logits
from lantern_jax.models.tokens import TokenModel, unconditional_tokens
from lantern_jax.pipeline.pipeline import load
from tests.cases import exhaustive
from tests.command import assert_refused, must_not_run
from tests.fixtures import guided_layouts as layouts
from tests.fixtures.guided_conversions import OPTIONS, PROMPTS, write_model

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

MODELS = ("janus, original", "janus, hugging_face", "emu3, original", "emu3, older", "emu3, hugging_face",
          "liquid, hugging_face", "lumina2, hugging_face")  # fmt: skip
# One layout of each family is decoded.
DECODED = ("janus, original", "emu3, original", "liquid, hugging_face", "lumina2, hugging_face")
TOKENS = {"janus": 16, "emu3": 22, "liquid": 16, "lumina2": 21}


def decoded(*few: str):
    """Returns the families as a parameter; those not named run only in exhaustive runs."""
    marks = {name: () if name.startswith(few) else pytest.mark.exhaustive for name in DECODED}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in DECODED])


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Returns a function from a layout to the folder that its conversion wrote."""

    @cache
    def convert(name: str) -> Path:
        folder = tmp_path_factory.mktemp("guided")
        assert main(["convert", *write_model(name, folder), "--out", str(folder / "out")]) == 0
        return folder / "out"

    return convert


@pytest.fixture(scope="module")
def loaded(converted):
    """Returns a function from a layout to its pipeline on one device."""
    return cache(lambda name: load(converted(name), mesh="data=1"))


# Golden cases cover the transformers layouts too.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.exhaustive if "hugging_face" in name and name not in DECODED else ()
        )
        for name in MODELS
    ],
)
def test_every_layout_gives_the_whole_model(name, loaded):
    checkpoint = loaded(name).checkpoint
    config = checkpoint.target_config
    assert config.grid == layouts.GRID and config.num_codes == layouts.CODES
    assert config.num_tokens == TOKENS[name.partition(",")[0]]
    shapes = family_of(config).shapes(config)
    assert jax.tree.map(np.shape, checkpoint.target_params) == jax.tree.map(np.shape, shapes)
    assert checkpoint.tokenizer_config.codebook_size == config.num_codes and checkpoint.codebook is not None


def assert_pictures(made, pipeline) -> None:
    """Asserts that there are two pictures and that their codes vary."""
    side = layouts.GRID * pipeline.checkpoint.tokenizer_config.downsampling
    assert made.pictures.shape == (2, side, side, 3)
    codes = made.tokens[made.tokens < layouts.CODES]
    assert len(codes) == 2 * layouts.GRID**2 and len(np.unique(codes)) > 4


@pytest.fixture(scope="module")
def split(converted):
    """Returns a function from a layout to its pipeline on a mesh."""
    return cache(lambda name: load(converted(name), mesh="data=2,model=4"))


def tokens_of(pipeline, encoded=None, **options) -> np.ndarray:
    """Decodes the prompts without drawing pictures, which would take another program."""
    encoded, options = encoded or pipeline.encode(PROMPTS), OPTIONS | options
    _, job = pipeline.prepare(encoded, **options)
    run = pipeline.engine.start(job, pipeline._encoder.from_encoded(encoded), seed=options["seed"])
    return pipeline.engine.finish(pipeline.engine.advance(run)).tokens


@decoded("lumina2")
def test_a_mesh_changes_no_token(name, split, loaded):
    """Heads, columns and codes are split over as many devices as divide them evenly."""
    made, plain = tokens_of(split(name), method="jacobi"), tokens_of(loaded(name), method="ar")
    np.testing.assert_array_equal(made, plain)


@decoded("liquid")
def test_eight_bits(name, converted, tmp_path):
    out = tmp_path / "int8"
    assert main(["quantize", str(converted(name)), "--out", str(out)]) == 0
    pipeline = load(out, mesh="data=1")
    np.testing.assert_array_equal(*(tokens_of(pipeline, method=method) for method in ("jacobi", "ar")))


@decoded("janus")
def test_a_negative_prompt_is_the_unconditional_row(name, loaded):
    """Teacher-forced, each row alone: tokens maximise u + s (c - u), where u are the negative prompt's logits."""
    pipeline, scale = loaded(name), 3.0
    made = pipeline.generate(
        PROMPTS, negative_prompt="a lake", method="ar", guidance=scale, temperature=0.0, top_k=0, top_p=1.0
    )
    assert_pictures(made, pipeline)
    given, own = (pipeline._encoder.encode(PROMPTS, negative=negative) for negative in (["a lake"] * 2, None))
    np.testing.assert_array_equal(given.tokens[given.mask], own.tokens[own.mask])
    target, model = pipeline.recipe.target(), Janus if name.startswith("janus") else TokenModel
    free = target.forced < 0
    stream = np.tile(target.forced, (2, 1))
    stream[:, free] = made.tokens
    apply, logits = jax.jit(model(pipeline.checkpoint.target_config).apply), []
    for row in (TokenConditioning(given.tokens, given.mask), unconditional_tokens(given)):
        tokens = np.hstack([row.tokens, stream[:, :-1]])
        mask = np.hstack([row.mask, np.ones((2, len(free) - 1), bool)])
        _, found = apply(pipeline.engine.parameters.target, TokenConditioning(tokens, mask))
        logits.append(found[:, -len(free) :][:, free])
    wanted, against = logits
    np.testing.assert_array_equal(made.tokens, np.argmax(against + scale * (wanted - against), axis=-1))


@pytest.mark.parametrize(
    "kind",
    [
        "eagle",
        *map(exhaustive, ("medusa", "eagle3", "parallel")),
    ],
)
def test_a_drafter_shares_a_two_layer_head(kind):
    """Trees of a random drafter give plain decoding's tokens, and the shared head computes the target's logits."""
    config, dtype = layouts.TINY_JANUS, np.dtype(np.float32)
    model = RandomModel("janus", config, {kind: usual_drafters(config)[kind]})
    recipe, found = model.recipe(dtype), {}
    engine = Engine(
        partial(model.read, dtype), devices="data=1", read_drafter=partial(model.read_drafter, dtype)
    )
    options = {"drafting": f"tree:drafter={kind},tree=0.0+1", "temperature": 4.0, "guidance": 2.0}
    for name, plain in (("plain", True), ("drafted", False)):
        run = engine.start(recipe.job(recipe.settings(options), plain=plain), model.conditioning(2), seed=1)
        found[name] = engine.finish(engine.advance(run)).tokens
    np.testing.assert_array_equal(found["drafted"], found["plain"])
    head = engine.parameters.target["params"]["head"]
    features = np.random.default_rng(0).standard_normal((3, config.dim)).astype(np.float32)
    expected = Janus(config).apply(engine.parameters.target, features, method="logits")
    np.testing.assert_allclose(head_logits(features, head), expected, rtol=1e-5, atol=1e-5)


def test_every_family_says_what_the_model_axis_splits():
    """No parameter of a layer or a head is left whole on two devices by mistake."""
    for name in ("janus", "emu3", "liquid", "lumina2"):
        config = FAMILIES[name].config()
        for path, leaf in jax.tree_util.tree_leaves_with_path(FAMILIES[name].shapes(config)):
            keys = ["target", *(key.key for key in path)]
            if leaf.ndim > 1:
                assert any(parameter_spec(keys, leaf.shape, 2)), keys


def test_files_of_other_models_are_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = write_model("janus, original", tmp_path)
    changes = {"gen_embed.weight": None, "gen_head.vision_head.weight": None}
    other = [
        *words[:2],
        str(layouts.write_janus(tmp_path / "broken", "original", changes=changes)),
        *words[3:],
    ]
    out = ["--out", str(tmp_path / "out")]
    assert "are not a Janus-Pro model" in assert_refused(["convert", *other, *out], capsys)
    layouts.write_byte_level(tmp_path / "tokenizer.json", ("<s>",))
    monkeypatch.setattr(token_weights, "read_tensors", must_not_run)
    assert "is not this model's tokenizer (it has no " in assert_refused(["convert", *words, *out], capsys)
