"""CLIP score and HPSv2 of pictures with prompts, and CMMD of two sets, against slower computations."""

import itertools
import math
from functools import partial

import jax
import numpy as np
import pytest

from lantern_jax.apps.metrics import clip_scores as module
from lantern_jax.apps.metrics.clip import Clip, ClipConfig, Tower
from lantern_jax.apps.metrics.clip_files import read_clip
from lantern_jax.apps.metrics.clip_scores import clip_scores, cmmd_features, hps_scores, lantern_clip_scores
from lantern_jax.apps.metrics.clip_tokenizer import load_clip_tokenizer
from lantern_jax.apps.metrics.distances import cmmd
from lantern_jax.apps.metrics.preprocessing import clip_input, padded_input, square_input
from tests.fixtures.tensor_writing import write_safetensors
from tests.metrics import tiny_clip
from tests.refused import refused_each

# The tiny CLIP reads 14 tokens.
pytestmark = pytest.mark.filterwarnings("ignore::lantern_jax.IgnoredWords")
PROMPTS = ("the lake", "a lab by the lake", "it's dark", "A LAKE", "the " * 30)
SIZES = ((20, 20), (30, 25), (12, 40), (64, 64), (25, 30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("tokenizers")
    folder = tiny_clip.write_folder(tmp_path_factory.mktemp("clip") / "tiny")
    tiny_clip.write_tokenizer(folder / "tokenizer.json")
    return folder


def one_by_one(folder, prepare, activation=None, prefix=""):
    config, params = read_clip(folder, activation)
    tokenizer = load_clip_tokenizer(folder)
    apply = jax.jit(Clip(config).apply)
    cosines = []
    for picture, prompt in zip(tiny_clip.random_pictures(SIZES), PROMPTS, strict=True):
        ids = tokenizer.encode([prompt], config.context, prefix)
        left, right = (np.asarray(part[0], float) for part in apply(params, prepare(picture)[None], ids))
        cosines.append(left @ right / math.sqrt(left @ left * (right @ right)))
    return np.array(cosines)


def test_scores_are_plain_cosines(folder, monkeypatch):
    """Batches give what each pair gives alone; HPSv2 pads its pictures, and its GELU is exact despite a config."""
    monkeypatch.setattr(module, "usual_batch", lambda: 2)
    plain, weights = "CLIP ViT-64/4@12 (quick_gelu), plain cosine", folder / "HPS_v2.1.safetensors"
    weights.write_bytes((folder / "model.safetensors").read_bytes())
    for made, prepare, options, name in (
        (
            lantern_clip_scores(folder), clip_input, {"prefix": "a photo depicts"},
            f"{plain}, prompts after 'A photo depicts'",
        ),
        (hps_scores(weights), padded_input, {"activation": "gelu"}, "HPSv2.1, raw cosine"),
    ):  # fmt: skip
        found = made.of(tiny_clip.random_pictures(SIZES), PROMPTS)
        assert found.dtype == np.float64 and found.shape == (5,) and made.name == name
        expected = one_by_one(folder, partial(prepare, side=tiny_clip.CONFIG.side), **options)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        # Random weights: the cosines differ, and some are negative; nothing is clipped or multiplied.
        assert np.ptp(found) > 0.05 and np.abs(found).max() < 1
    assert clip_scores(folder).name == plain
    refused_each({
        "5 pictures for 4 prompts: give one prompt per picture": (
            lambda: made.of(tiny_clip.random_pictures(SIZES), PROMPTS[:4])
        ),
        r"a picture is float64 \[4, 4, 3\]": lambda: made.of([np.zeros((4, 4, 3))], ["a"]),
    })  # fmt: skip


def test_hpsv2s_version_is_in_the_files_name(tmp_path, folder):
    tensors = tiny_clip.to_openai(tiny_clip.hugging_face_tensors())
    path, unnamed = tmp_path / "HPS_v2_compressed.safetensors", tmp_path / "weights.safetensors"
    write_safetensors(path, {name: tensor.shape for name, tensor in tensors.items()}, np.float16)
    assert hps_scores(path, folder).name == "HPSv2.0, raw cosine"
    refused_each({r"does not tell HPSv2\.0 from 2\.1": lambda: hps_scores(path.rename(unnamed), folder)})


def test_weights_and_tokenizer_belong_together(tmp_path, folder):
    towers = Tower(64, 1, 1, 8), Tower(64, 1, 1, 8)
    other = ClipConfig(*towers, "gelu", 4, 8, 6, tiny_clip.CONFIG.vocab_size + 1, 16)
    weights = tiny_clip.write_folder(tmp_path / "other", other)
    refused_each({
        "give the tokenizer of these weights": lambda: clip_scores(weights, folder),
        "holds no tokenizer": lambda: clip_scores(weights),
    })  # fmt: skip


def slow_cmmd(left, right):
    def mean(first, second):
        pairs = itertools.product(first, second)
        return np.mean([math.exp(-np.sum((x - y) ** 2) / (2 * 10**2)) for x, y in pairs])

    return 1000 * (mean(left, left) + mean(right, right) - 2 * mean(left, right))


def test_cmmd_matches_loops(monkeypatch):
    monkeypatch.setattr("lantern_jax.apps.metrics.distances._BLOCK", 40)
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(9, 5)), 0.5 + 2 * rng.normal(size=(6, 5))
    found = cmmd(left, right)
    np.testing.assert_allclose([found, cmmd(right, left)], slow_cmmd(left, right), rtol=1e-10)
    assert found > 1 and abs(cmmd(left, left)) < 1e-9


def test_cmmds_features_are_normalised_embeddings(folder):
    reader, side = cmmd_features(folder), tiny_clip.CONFIG.side
    found = reader.features(tiny_clip.random_pictures(SIZES))
    config, params = read_clip(folder)
    inputs = np.stack([square_input(picture, side) for picture in tiny_clip.random_pictures(SIZES)])
    raw = np.asarray(jax.jit(partial(Clip(config).apply, method="embed_pictures"))(params, inputs))
    np.testing.assert_allclose(found, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)
    assert reader.name == "CLIP ViT-64/4@12 (quick_gelu) picture embedding, middle square, bicubic"
    assert found.shape == (5, reader.width) == (5, tiny_clip.CONFIG.embedding)
