"""Negative prompts change a generation's unconditional row, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import lantern_jax.pipeline.pipeline
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.apps.sets.reading import read_set
from lantern_jax.apps.sets.set_plan import read_plan
from lantern_jax.families.llamagen.model import LlamaGen
from lantern_jax.text.encoded import load_encoded, save_encoded
from tests.command import assert_refused
from tests.refused import refused
from tests.tiny_checkpoint import TARGET, altered_pipeline, tiny_pipeline

PROMPTS, NEGATIVES, SCALE = ["a lake", "a foggy forest"], ["snow at night", "a desert"], 3.0
GREEDY = {"guidance": SCALE, "temperature": 0.0}


def labels_of(texts) -> np.ndarray:
    return LANDSCAPES.label_ids([LANDSCAPES.parse(text) for text in texts])


def labels_of_prompts(texts) -> np.ndarray:
    return LANDSCAPES.label_ids([LANDSCAPES.completed(LANDSCAPES.parse(text)) for text in texts])


@pytest.fixture(scope="module")
def made():
    return tiny_pipeline().generate(PROMPTS, negative_prompt=NEGATIVES, method="ar", **GREEDY)


def test_tokens_are_the_best_of_recomputed_rows(made):
    """Teacher-forced, each row alone: u + s (c - u), where u is the negative prompt's."""
    apply, params = jax.jit(LlamaGen(TARGET).apply), tiny_pipeline().checkpoint.target_params
    (_, wanted), (_, against) = (
        apply(params, jnp.asarray(labels), jnp.asarray(made.tokens))
        for labels in (labels_of_prompts(PROMPTS), labels_of(NEGATIVES))
    )
    best = np.argmax(against + SCALE * (wanted - against), axis=-1)
    np.testing.assert_array_equal(made.tokens, best)
    own = tiny_pipeline().generate(PROMPTS, method="ar", **GREEDY)
    assert (made.tokens != own.tokens).any(axis=1).all()


def test_a_blank_negative_prompt_is_the_models_own_row_and_one_serves_all_prompts():
    pipeline = tiny_pipeline()
    blank, own = (
        pipeline.generate(PROMPTS, method="ar", **GREEDY, **more) for more in ({"negative_prompt": " "}, {})
    )
    np.testing.assert_array_equal(blank.tokens, own.tokens)
    rows = [pipeline.encode(PROMPTS, text).arrays["labels"] for text in (NEGATIVES[0], NEGATIVES[:1] * 2)]
    np.testing.assert_array_equal(*rows)
    assert rows[0].shape == (2, 2, TARGET.label_slots)


def test_encoded_prompts_hold_their_negative_prompts(made, tmp_path):
    pipeline, path = tiny_pipeline(), tmp_path / "prompts.npz"
    encoded = pipeline.encode(PROMPTS, NEGATIVES)
    save_encoded(path, encoded.kind, encoded.prompts, encoded.arrays)
    again = pipeline.generate(load_encoded(path), method="ar", **GREEDY)
    np.testing.assert_array_equal(again.tokens, made.tokens)
    with refused("encoded prompts hold their negative prompts"):
        pipeline.plan(encoded, negative_prompt="snow")


def test_guesses_change_no_token(made):
    drafted = tiny_pipeline().generate(PROMPTS, negative_prompt=NEGATIVES, method="gumbel:tree=0", **GREEDY)
    np.testing.assert_array_equal(drafted.tokens, made.tokens)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["snow"] * 3, "negative_prompt holds 3 texts for 2 prompts"),
        ("zebra", "unknown word 'zebra'"),
        (["snow", ""], "empty prompt"),
        (207, "is not text"),
    ],
)
def test_invalid_negative_prompts_are_refused(given, said):
    with refused(said):
        tiny_pipeline().plan(PROMPTS, negative_prompt=given)


def test_models_without_negative_prompts_and_calls_without_guidance_say_so():
    classes = altered_pipeline(vocabulary=None)
    with refused("negative_prompt: this model takes none: leave it out"):
        classes.plan(["1"], negative_prompt="snow")
    plan = tiny_pipeline().plan(PROMPTS, negative_prompt="snow", guidance=1.0)
    assert "negative_prompt has no effect with guidance 1" in plan.call.notes


def test_commands_take_negative_prompts(tmp_path, monkeypatch, capsys, made):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", lambda *words, **options: tiny_pipeline())
    options = ["--guidance", str(SCALE), "--temperature", "0", "--method", "ar"]
    assert main(["generate", PROMPTS[0], "--negative", NEGATIVES[0], "--out", "one.png", *options]) == 0
    assert '"negative_prompt": "snow at night"' in Image.open("one.png").text["settings"]
    rows = zip(PROMPTS, NEGATIVES, strict=True)
    (tmp_path / "table.tsv").write_text("text\tnot\n" + "".join(f"{'	'.join(row)}\n" for row in rows))
    words = ["set", "--prompts", "table.tsv", "--column", "text", "--out", "set", *options]
    assert main([*words, "--negative-column", "not"]) == 0
    for number, picture in enumerate(read_set(tmp_path / "set")):
        assert np.abs(picture.picture.astype(int) - made.pictures[number]).max() <= 1
    assert read_plan(tmp_path / "set").negatives == tuple(NEGATIVES)
    capsys.readouterr()
    assert "holds another set" in assert_refused([*words, "--negative", "snow"], capsys)
    both = [*words, "--negative", "snow", "--negative-column", "not"]
    assert "one of the two" in assert_refused(both, capsys)
