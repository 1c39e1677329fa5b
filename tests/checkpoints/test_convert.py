"""Published files to a checkpoint directory."""

import json

import jax
import numpy as np
import pytest

from lantern_jax.checkpoints.convert import convert_llamagen
from lantern_jax.checkpoints.drafter import convert_drafter, drafter_table
from lantern_jax.checkpoints.llamagen import (
    ORIGINAL_NAMES,
    convert_gpt,
    gpt_table,
)
from lantern_jax.checkpoints.llamagen_vq import convert_vq, vq_table
from lantern_jax.checkpoints.store import load
from lantern_jax.models.drafter import DrafterConfig
from lantern_jax.models.llamagen import LlamaGenConfig
from lantern_jax.models.vq import VQConfig
from tests.golden_cases import golden_weight

torch = pytest.importorskip("torch")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

GPT = LlamaGenConfig(dim=32, num_layers=2, num_heads=2, vocab_size=24, grid=4, hidden_dim=48, num_labels=6)
DRAFTER = DrafterConfig(dim=32, num_heads=4, hidden_dim=40, vocab_size=24, grid=4, prefix_length=1)
VQ = VQConfig(
    ch=32, ch_mult=(1,), z_channels=8, codebook_size=24, codebook_dim=4, encoder_blocks=1, decoder_blocks=1
)


def tensors_of(table):
    return {name: golden_weight(name, entry.shape, 0) for name, entry in table.items()}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Files as released: GPT and tokenizer as .pt, the drafter with its config.json."""
    folder = tmp_path_factory.mktemp("published")
    weights = {
        "gpt": tensors_of(gpt_table(GPT, ORIGINAL_NAMES)),
        "vq": tensors_of(vq_table(VQ)) | {"quantize.codebook_used": np.zeros(24, np.float32)},
        "drafter": tensors_of(drafter_table(DRAFTER)),
    }
    for name in ("gpt", "vq"):
        content = {key: torch.from_numpy(value.copy()) for key, value in weights[name].items()}
        torch.save({"model": content}, folder / f"{name}.pt")
    safetensors_numpy.save_file(weights["drafter"], folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    (folder / "settings.json").write_text(json.dumps({"num_heads": 2, "grid": 4}))
    files = {
        "gpt": folder / "gpt.pt",
        "vq": folder / "vq.pt",
        "drafter": folder / "model.safetensors",
        "config": folder / "settings.json",
    }
    return files, weights


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_whole_conversion(published, tmp_path):
    files, weights = published
    back = load(convert_llamagen(**files, out=tmp_path / "new", dtype="float32", neighbours=9))
    assert (back.target_config, back.drafter_config, back.tokenizer_config) == (GPT, DRAFTER, VQ)
    same(back.target_params, convert_gpt(weights["gpt"], GPT)[1])
    same(back.drafter_params, convert_drafter(weights["drafter"], DRAFTER)[1])
    same(back.tokenizer_params["params"], convert_vq(weights["vq"])[1])
    codes = weights["vq"]["quantize.embedding.weight"]
    codes = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    np.testing.assert_allclose(back.codebook.codes, codes, rtol=1e-6)
    same(back.codebook.neighbours, nearest(codes, 9))
    assert back.defaults["guidance"] == 4.0 and back.defaults["top_k"] == 24
    assert back.metadata["converted_from"] == {"gpt": "gpt.pt", "vq": "vq.pt", "drafter": "model.safetensors"}


def nearest(codes, k):
    distance = ((codes[:, None] - codes[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k]


def test_raw_neighbour_space(published, tmp_path):
    files, weights = published
    back = load(convert_llamagen(**files, out=tmp_path / "new", neighbour_space="raw"))
    codes = weights["vq"]["quantize.embedding.weight"]
    same(back.codebook.neighbours, nearest(codes, 23))
    np.testing.assert_allclose(np.linalg.norm(back.codebook.codes, axis=1), 1, rtol=1e-6)


def test_gpt_alone_is_stored_in_bfloat16(published, tmp_path):
    files, weights = published
    out = convert_llamagen(files["gpt"], config=files["config"], out=tmp_path / "new")
    back = load(out)
    assert back.tokenizer_params is None and back.codebook is None and back.drafter_params is None
    embedding = back.target_params["params"]["tokens"]["embedding"]
    published_embedding = torch.from_numpy(weights["gpt"]["tok_embeddings.weight"]).bfloat16().float().numpy()
    np.testing.assert_array_equal(embedding, published_embedding)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"gpt": "vq"}, "not a LlamaGen GPT"),
        ({"drafter": "gpt"}, "not a LANTERN drafter"),
        ({"vq": "gpt"}, "not a LlamaGen VQ tokenizer"),
        ({"config": "gpt"}, "is not JSON"),
        ({"config": None}, "number of heads"),
    ],
)
def test_wrong_files(published, change, match, tmp_path):
    files, _ = published
    given = files | {part: None if other is None else files[other] for part, other in change.items()}
    with pytest.raises(ValueError, match=match) as error:
        convert_llamagen(**given, out=tmp_path / "new")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_settings_by_part(published, tmp_path):
    files, _ = published
    config = tmp_path / "parts.json"
    config.write_text(json.dumps({"target": {"num_heads": 2, "grid": 4}, "drafter": {"num_heads": 2}}))
    back = load(convert_llamagen(**files | {"config": config}, out=tmp_path / "new"))
    assert back.drafter_config.num_heads == 2
    config.write_text(json.dumps({"target": {"num_heads": 2}, "wings": {}}))
    with pytest.raises(ValueError, match="unknown parts wings"):
        convert_llamagen(**files | {"config": config}, out=tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "match"),
    [({"neighbour_space": "l1"}, "neighbour space"), ({"neighbours": -1}, "-1 neighbours")],
)
def test_wrong_options(published, options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        convert_llamagen(**published[0], out=tmp_path / "new", **options)
    with pytest.raises(ValueError, match="exists"):
        convert_llamagen(**published[0], out=tmp_path)
