"""Published files to a checkpoint directory."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest

from lantern_jax.checkpoints import convert
from lantern_jax.checkpoints.convert import convert_llamagen
from lantern_jax.checkpoints.store import load
from lantern_jax.families.drafter_weights import convert_drafter
from lantern_jax.families.llamagen_vq_weights import convert_vq
from lantern_jax.families.llamagen_weights import convert_gpt
from lantern_jax.tensors.tensor_files import open_tensors
from tests.command import must_not_run
from tests.published_files import DRAFTER, GPT, VQ
from tests.refused import refused


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def tensors_of(path):
    return {name: np.asarray(tensor) for name, tensor in open_tensors(path).items()}


def test_whole_conversion(published, tmp_path):
    back = load(convert_llamagen(**published, out=tmp_path / "new", dtype="float32", neighbours=9))
    assert (back.target_config, back.drafters["eagle"][0], back.tokenizer_config) == (GPT, DRAFTER, VQ)
    vq = tensors_of(published["vq"])
    same(back.target_params, convert_gpt(tensors_of(published["gpt"]), GPT)[1])
    same(back.drafters["eagle"][1], convert_drafter(tensors_of(published["drafter"]), DRAFTER)[1])
    same(back.tokenizer_params["params"], convert_vq(vq)[1])
    codes = vq["quantize.embedding.weight"]
    codes = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    np.testing.assert_allclose(back.codebook.codes, codes, rtol=1e-6)
    same(back.codebook.neighbours, nearest(codes, 9))
    assert back.defaults["guidance"] == 4.0 and back.defaults["top_k"] == GPT.vocab_size
    assert back.metadata["converted_from"] == {"gpt": "gpt.pt", "vq": "vq.pt", "drafter": "drafter"}


def nearest(codes, k):
    distance = ((codes[:, None] - codes[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k]


def test_raw_neighbour_space(published, tmp_path):
    back = load(convert_llamagen(**published, out=tmp_path / "new", neighbour_space="raw"))
    codes = tensors_of(published["vq"])["quantize.embedding.weight"]
    same(back.codebook.neighbours, nearest(codes, GPT.vocab_size - 1))
    np.testing.assert_allclose(np.linalg.norm(back.codebook.codes, axis=1), 1, rtol=1e-6)


def test_gpt_alone_is_stored_in_bfloat16(published, tmp_path):
    back = load(convert_llamagen(published["gpt"], config=published["config"], out=tmp_path / "new"))
    assert back.tokenizer_params is None and back.codebook is None and back.drafters == {}
    embedding = back.target_params["params"]["tokens"]["embedding"]
    given = tensors_of(published["gpt"])["tok_embeddings.weight"]
    np.testing.assert_array_equal(embedding, given.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"gpt": "vq"}, "not a LlamaGen GPT"),
        ({"drafter": "gpt"}, "not a LANTERN drafter"),
        ({"vq": "gpt"}, "not a LlamaGen VQ tokenizer"),
        ({"config": "gpt"}, "is not JSON"),
        ({"config": None}, "number of heads"),
        ({"config": '{"num_heads": 2'}, "is not JSON"),
        ({"config": "[2]"}, "holds no JSON object"),
        ({"config": '{"num_heads": 2, "grid": 4, "wings": 2}'}, "unknown setting wings"),
        ({"config": '{"target": {"num_heads": 2}, "wings": {}}'}, "unknown parts wings"),
        ({"config": '{"num_heads": 3, "grid": 4}'}, "dim 32 with 3 heads"),
        ({"config": '{"grid": 4}'}, "number of heads"),
        ({"config": '{"num_heads": 0, "grid": 4}'}, "num_heads 0"),
        ({"config": '{"num_heads": "two", "grid": 4}'}, "num_heads 'two'"),
        ({"config": '{"num_heads": 2, "grid": 4.5}'}, "grid 4.5"),
    ],
)
def test_wrong_files(published, change, match, tmp_path, monkeypatch):
    for name in ("make_codebook", "save"):
        monkeypatch.setattr(convert, name, must_not_run)
    files = dict(published)
    for part, other in change.items():
        files[part] = published.get(other)
        if other and other not in files:
            files[part] = tmp_path / "settings.json"
            files[part].write_text(other)
    (tmp_path / "out").mkdir()
    with refused(match):
        convert_llamagen(**files, out=tmp_path / "out" / "new")
    assert not list((tmp_path / "out").iterdir())


def test_settings_by_part(published, tmp_path):
    config = tmp_path / "parts.json"
    config.write_text(json.dumps({"target": {"num_heads": 2, "grid": 4}, "drafter": {"num_heads": 2}}))
    back = load(convert_llamagen(**published | {"config": config}, out=tmp_path / "new"))
    assert back.drafters["eagle"][0].num_heads == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [({"neighbour_space": "l1"}, "neighbour space"), ({"neighbours": -1}, "-1 neighbours")],
)
def test_wrong_options(published, options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        convert_llamagen(**published, out=tmp_path / "new", **options)
    with pytest.raises(ValueError, match="exists"):
        convert_llamagen(**published, out=tmp_path)
