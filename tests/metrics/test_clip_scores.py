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
from lantern_jax.apps.metrics.clip_scores import LANTERN_PREFIX, clip_scores, hps_scores
from lantern_jax.apps.metrics.clip_tokenizer import load_clip_tokenizer
from lantern_jax.apps.metrics.cmmd import cmmd, cmmd_features
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


CLIP, HPS = clip_input, padded_input


@pytest.mark.parametrize(("score", "prepare", "options", "name"), [
    (clip_scores, CLIP, {}, "CLIP ViT-64/4@12 (quick_gelu), plain cosine"),
    (
        partial(clip_scores, prefix=LANTERN_PREFIX, batch=2), CLIP, {"prefix": "a photo depicts"},
        "CLIP ViT-64/4@12 (quick_gelu), plain cosine, prompts after 'A photo depicts'",
    ),
    (partial(hps_scores, version="2.1"), HPS, {"activation": "gelu"}, "HPSv2.1, raw cosine"),
], ids=["CLIP", "with a prefix", "HPSv2"])  # fmt: skip
def test_scores_are_plain_cosines(score, prepare, options, name, folder):
    """Batches give what each pair gives alone; HPSv2 pads its pictures, and its GELU is exact despite a config."""
    made = score(folder)
    found = made.of(tiny_clip.random_pictures(SIZES), PROMPTS)
    assert found.dtype == np.float64 and found.shape == (5,) and made.name == name
    expected = one_by_one(folder, partial(prepare, side=tiny_clip.CONFIG.side), **options)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Random weights: the cosines differ, and some are negative; nothing is clipped or multiplied.
    assert np.ptp(found) > 0.05 and np.abs(found).max() < 1


def test_each_picture_needs_one_prompt(folder):
    score = clip_scores(folder, batch=2)
    assert score.of([], []).shape == (0,)
    refused_each({
        "5 pictures for 4 prompts: give one prompt per picture": (
            lambda: score.of(tiny_clip.random_pictures(SIZES), PROMPTS[:4])
        ),
        r"a picture is float64 \[4, 4, 3\]": lambda: score.of([np.zeros((4, 4, 3))], ["a"]),
    })  # fmt: skip


@pytest.mark.parametrize(("name", "version"), [("HPS_v2_compressed", "2.0"), ("HPS_v2.1", "2.1")])
def test_hpsv2s_version_is_in_the_files_name(tmp_path, folder, name, version):
    tensors = tiny_clip.to_openai(tiny_clip.hugging_face_tensors())
    path, unnamed = tmp_path / f"{name}.safetensors", tmp_path / "weights.safetensors"
    write_safetensors(path, {name: tensor.shape for name, tensor in tensors.items()}, np.float16)
    assert hps_scores(path, folder).name == f"HPSv{version}, raw cosine"
    path.rename(unnamed)
    refused_each({
        r"does not tell HPSv2\.0 from 2\.1: give the version": lambda: hps_scores(unnamed, folder),
        r"unknown version of HPSv2 '3': choose one of 2\.0, 2\.1": lambda: hps_scores(unnamed, folder, version="3"),
    })  # fmt: skip


def test_weights_are_read_once_and_may_be_damaged(folder, monkeypatch):
    read, calls = module.read_clip, []

    def damaged(*args):
        calls.append(args)
        config, params = read(*args)
        params["params"]["text"]["projection"]["kernel"][0, 0] = np.nan
        return config, params

    monkeypatch.setattr(module, "read_clip", damaged)
    score = clip_scores(folder, batch=2)
    for _ in range(2):
        with pytest.raises(ValueError, match="cosines are not finite: the weights are damaged"):
            score.of(tiny_clip.random_pictures(SIZES), PROMPTS)
    assert len(calls) == 1


def test_weights_and_tokenizer_belong_together(tmp_path, folder):
    pytest.importorskip("tokenizers")
    towers = Tower(64, 1, 1, 8), Tower(64, 1, 1, 8)
    other = ClipConfig(*towers, "gelu", 4, 8, 6, tiny_clip.CONFIG.vocab_size + 1, 16)
    path = tmp_path / "other.safetensors"
    write_safetensors(path, tiny_clip.hugging_face_shapes(other), np.float32)
    belong = "give the tokenizer of these weights"
    refused_each({
        belong: lambda: clip_scores(path, folder, activation="gelu"),
        "holds no tokenizer": lambda: clip_scores(path, activation="gelu"),
    })  # fmt: skip
    tiny_clip.write_tokenizer(tmp_path / "tokenizer.json")
    refused_each({belong: lambda: clip_scores(path, activation="gelu")})


def slow_cmmd(left, right, unbiased):
    def kernel(x, y):
        return math.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / (2 * 10**2))

    def mean(first, second, skip):
        pairs = itertools.product(enumerate(first), enumerate(second))
        pairs = [kernel(x, y) for (i, x), (j, y) in pairs if not (skip and i == j)]
        return sum(pairs) / len(pairs)

    within = mean(left, left, unbiased) + mean(right, right, unbiased)
    return 1000 * (within - 2 * mean(left, right, False))


@pytest.mark.parametrize("unbiased", [False, True])
def test_cmmd_matches_loops(monkeypatch, unbiased):
    monkeypatch.setattr("lantern_jax.apps.metrics.distances._BLOCK", 40)
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(9, 5)), 0.5 + 2 * rng.normal(size=(6, 5))
    found = cmmd(left, right, unbiased=unbiased)
    np.testing.assert_allclose(found, slow_cmmd(left, right, unbiased), rtol=1e-10)
    np.testing.assert_allclose(cmmd(right, left, unbiased=unbiased), found, rtol=1e-10)
    assert found > 1
    if not unbiased:
        assert abs(cmmd(left, left)) < 1e-9


def test_cmmd_refuses_unusable_features():
    ones = np.ones((3, 4))
    refused_each({
        r"features are \[\[3, 4\], \[3, 5\]\]": lambda: cmmd(ones, np.ones((3, 5))),
        r"features are \[\[4\], \[3, 4\]\]": lambda: cmmd(ones[0], ones),
        "give at least 1": lambda: cmmd(ones[:0], ones),
        "give at least 2": lambda: cmmd(ones, ones[:1], unbiased=True),
        "features are not finite": lambda: cmmd(ones * np.nan, ones),
    })  # fmt: skip


def test_cmmds_features_are_normalised_embeddings(folder):
    reader = cmmd_features(folder, batch=2)
    found = reader.features(tiny_clip.random_pictures(SIZES))
    assert reader.width == tiny_clip.CONFIG.embedding and found.shape == (5, tiny_clip.CONFIG.embedding)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    config, params = read_clip(folder)
    inputs = np.stack(
        [square_input(picture, tiny_clip.CONFIG.side) for picture in tiny_clip.random_pictures(SIZES)]
    )
    raw = np.asarray(Clip(config).apply(params, inputs, method="embed_pictures"))
    np.testing.assert_allclose(found, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)
    assert reader.name == "CLIP ViT-64/4@12 (quick_gelu) picture embedding, middle square, bicubic"
