"""Random checkpoints in published layouts: the converters take them, and they are what they claim to be."""

import dataclasses
import json
import math

import jax
import ml_dtypes
import numpy as np
import pytest

from eval import published_layouts as layouts
from eval.published_shapes import t5_shapes
from eval.tensor_writing import random_tensor
from lantern_jax.checkpoints.chameleon import convert_chameleon
from lantern_jax.checkpoints.chameleon_vq import convert_vqgan
from lantern_jax.checkpoints.drafter import convert_drafter
from lantern_jax.checkpoints.llamagen import convert_gpt
from lantern_jax.checkpoints.llamagen_vq import convert_vq
from lantern_jax.checkpoints.tensor_files import open_tensors
from lantern_jax.models.chameleon import ChameleonConfig
from lantern_jax.models.vq import CHAMELEON_VQ
from lantern_jax.text.tokenizers import load_tokenizer

torch = pytest.importorskip("torch")
GPT_SETTINGS = {"num_heads": 2, "grid": 4}
ORDER = np.random.default_rng(0).permutation(layouts.TINY_CHAMELEON.vocab_size)


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def settings_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("config", [layouts.TINY_CLASS, layouts.TINY_CAPTION], ids=["class", "caption"])
def test_llamagen(config, tmp_path):
    original = layouts.write_llamagen(tmp_path / "gpt.pt", config)
    assert ("model" in torch.load(original)) == bool(config.num_labels)
    found, params = convert_gpt(open_tensors(original), GPT_SETTINGS)
    assert found == config
    tokens = random_tensor("tok_embeddings.weight", (64, 32))
    same(params["params"]["tokens"]["embedding"], tokens)
    folder = layouts.write_llamagen(tmp_path / "hub", config, "hugging_face", dtype=ml_dtypes.bfloat16)
    found, _ = convert_gpt(open_tensors(folder), settings_of(folder))
    assert found == config


def test_tokenizers(tmp_path):
    path = layouts.write_vq(tmp_path / "vq.pt", layouts.TINY_VQ)
    assert convert_vq(open_tensors(path))[0] == layouts.TINY_VQ
    path = layouts.write_vqgan(tmp_path / "vqgan.ckpt", layouts.TINY_VQGAN)
    assert any(name.startswith("loss.") for name in open_tensors(path))
    config, params = convert_vqgan(open_tensors(path))
    assert config == layouts.TINY_VQGAN
    kernel = random_tensor("decoder.up.1.upsample.conv.weight", (32, 32, 3, 3)).transpose(2, 3, 1, 0)
    same(params["decoder"]["level_0"]["upsample"]["kernel"], kernel)


def test_chameleon_in_shards(tmp_path):
    config = layouts.TINY_CHAMELEON
    folder = layouts.write_chameleon(tmp_path / "hub", config, layouts.TINY_VQGAN, shard_bytes=100_000)
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    tensors = open_tensors(folder)
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert any(name.startswith("model.vqmodel.encoder.") for name in tensors)
    found, params = convert_chameleon(
        tensors, settings_of(folder) | {"grid": 4}, order=ORDER, num_codes=64, dtype=ml_dtypes.bfloat16
    )
    assert found == config
    table = random_tensor("model.embed_tokens.weight", (9216, 32)).astype(ml_dtypes.bfloat16)
    same(params["params"]["tokens"]["embedding"], table[ORDER])


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
@pytest.mark.parametrize("target", [layouts.TINY_CAPTION, layouts.TINY_CHAMELEON], ids=["llamagen", "anole"])
def test_drafters(target, kind, tmp_path):
    config = layouts.drafter_of(target)
    folder = layouts.write_drafter(tmp_path / "drafter", config, kind=kind)
    assert (folder / {"bin": "pytorch_model.bin", "safetensors": "model.safetensors"}[kind]).is_file()
    assert convert_drafter(open_tensors(folder), settings_of(folder), target=target)[0] == config


def test_t5(tmp_path):
    folder = layouts.write_t5(tmp_path / "t5", layouts.TINY_T5, kind="bin", shard_bytes=40_000)
    shapes = {name: tensor.shape for name, tensor in open_tensors(folder).items()}
    assert shapes == t5_shapes(layouts.TINY_T5, decoder=True)
    encoder = {name for name in shapes if name.startswith("encoder.")} | {"shared.weight"}
    folder = layouts.write_t5(tmp_path / "encoder", layouts.TINY_T5, decoder=False)
    assert set(open_tensors(folder)) == encoder
    # Flan-T5-XL's encoder and table.
    sizes = [math.prod(shape) for shape in t5_shapes(layouts.T5_XL, decoder=False).values()]
    assert sum(sizes) == 1_223_527_424


def test_t5_tokenizer(tmp_path):
    pytest.importorskip("tokenizers")
    tokenizer = load_tokenizer(layouts.write_t5_tokenizer(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("a snowy lake, at 9")
    assert max(ids) < layouts.TINY_T5["vocab_size"] and 2 not in ids
    assert len(ids) == len(["▁a", "▁snowy", "▁lake", ",", "▁at", "▁", "9"])


@pytest.mark.parametrize("shuffle", [None, 3])
def test_text_tokenizer(shuffle, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    path = layouts.write_text_tokenizer(tmp_path / "text_tokenizer.json", 64, 9216, shuffle=shuffle)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size() == 9216
    ids = tokenizer.encode("A cat, the lake: été\n").ids
    assert tokenizer.decode(ids) == "A cat, the lake: été\n" and min(ids) >= layouts.FIRST_TEXT_ID
    assert tokenizer.encode(" cat").tokens == ["Ġcat"]
    codes = [tokenizer.id_to_token(i) for i in range(4, 68)]
    assert sorted(codes) == sorted(
        f"IMGIMG{str(code).translate(str.maketrans('0123456789', 'ABCDEFGHIJ'))}Z" for code in range(64)
    )
    assert (codes[:3] == ["IMGIMGAZ", "IMGIMGBZ", "IMGIMGCZ"]) == (shuffle is None)
    for name, number in {"<s>": 0, "<pad>": 1, "</s>": 2, "<eoss>": 8196, "<racm3:break>": 8197}.items():
        assert tokenizer.token_to_id(name) == number
    assert tokenizer.encode("<reserved08706><reserved08799><reserved08824>").ids == [8710, 8803, 8828]
    with pytest.raises(ValueError, match="give at most 8192 codes"):
        layouts.write_text_tokenizer(tmp_path / "other.json", 64, 9000)


def test_changes_and_nothing_overwritten(tmp_path):
    changes = {"norm.weight": None, "more": (2,), "output.weight": (3, 4)}
    path = layouts.write_llamagen(tmp_path / "gpt.pt", layouts.TINY_CLASS, changes=changes)
    tensors = open_tensors(path)
    assert (
        "norm.weight" not in tensors
        and tensors["more"].shape == (2,)
        and tensors["output.weight"].shape == (3, 4)
    )
    with pytest.raises(ValueError, match="exists"):
        layouts.write_llamagen(path, layouts.TINY_CLASS)
    with pytest.raises(ValueError, match="unknown kind"):
        layouts.write_drafter(tmp_path / "drafter", layouts.drafter_of(layouts.TINY_CLASS), kind="onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["gpt.pt"]


def test_full_sizes_are_the_published_ones():
    shapes = layouts.chameleon_shapes(ChameleonConfig(), CHAMELEON_VQ)
    own = {name: shape for name, shape in shapes.items() if not name.startswith("model.vqmodel.")}
    assert round(sum(map(math.prod, own.values())) / 1e7) == 701
    config = dataclasses.replace(layouts.drafter_of(ChameleonConfig()), vocab_size=10)
    assert layouts.drafter_shapes(config)["layers.0.self_attn.q_norm.weight"] == (32, 128)
