"""Medusa's released heads: names, what they compute, and how they are added to a checkpoint."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.checkpoints.checkpoint import describe
from lantern_jax.checkpoints.convert import add_drafter
from lantern_jax.checkpoints.store import load, save
from lantern_jax.families.medusa_weights import convert_medusa
from lantern_jax.models.medusa import MedusaConfig, MedusaModel, medusa_shapes
from tests.tiny_checkpoint import CODES, DRAFTER, TARGET, tiny_checkpoint

HEADS = 3


def published_heads(dim: int = TARGET.dim, vocab: int = CODES, heads: int = HEADS, layers: int = 2):
    """Returns tensors as released: a weight and a bias for each block, then a matrix."""
    generator = np.random.default_rng(0)

    def draw(*shape):
        return generator.normal(0, 0.3, shape).astype(np.float32)

    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = draw(dim, dim)
            tensors[f"{head}.{layer}.linear.bias"] = draw(dim)
        tensors[f"{head}.{layers}.weight"] = draw(vocab, dim)
    return tensors


def published_logits(tensors, feature, layers: int = 2):
    """Returns the logits [K, V] of one feature, as the published heads compute them."""
    rows = []
    for head in range(HEADS):
        x = feature
        for layer in range(layers):
            name = f"{head}.{layer}.linear"
            inner = tensors[f"{name}.weight"] @ x + tensors[f"{name}.bias"]
            x = x + inner / (1 + np.exp(-inner))
        rows.append(tensors[f"{head}.{layers}.weight"] @ x)
    return np.stack(rows)


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_heads_compute_what_the_published_ones_do(prefix):
    tensors = published_heads()
    named = {prefix + name: value for name, value in tensors.items()}
    if prefix:
        named["lm_head.weight"] = np.zeros((CODES, TARGET.dim), np.float32)
    config, params = convert_medusa(named, target=TARGET)
    assert config == MedusaConfig(TARGET.dim, CODES, CODES, HEADS, 2)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, medusa_shapes(config))
    feature = np.random.default_rng(1).normal(size=TARGET.dim).astype(np.float32)
    head = jnp.zeros((TARGET.dim, CODES))
    made = MedusaModel(config).apply(params, jnp.asarray(feature), head)
    np.testing.assert_allclose(made, published_logits(tensors, feature), rtol=2e-5, atol=2e-5)


def test_rows_of_codes_are_taken_from_a_larger_vocabulary():
    tensors, order = published_heads(vocab=40), np.random.default_rng(2).permutation(40)
    _, params = convert_medusa(tensors, target=TARGET, order=order)
    np.testing.assert_array_equal(params["params"]["heads"][1], tensors["1.2.weight"][order[:CODES]].T)


def test_heads_are_added_beside_a_drafter_and_can_be_replaced(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    old, heads = save(tmp_path / "old", tiny_checkpoint()), tmp_path / "heads.safetensors"
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    safetensors.save_file(published_heads(), heads)
    both = add_drafter(old, heads, kind="medusa", out=tmp_path / "both", dtype="float32")
    back, given = load(both), convert_medusa(published_heads(), target=TARGET)
    assert {kind: config for kind, (config, _) in back.drafters.items()} == {
        "eagle": DRAFTER,
        "medusa": given[0],
    }
    expected = {"eagle": load(old).drafters["eagle"][1], "medusa": given[1]}
    made = {kind: params for kind, (_, params) in back.drafters.items()}
    jax.tree.map(np.testing.assert_array_equal, made, expected)
    assert back.metadata["converted_from"] == {"medusa": "heads.safetensors"}
    described = describe(back)["drafters"]
    assert described["medusa"]["parameters"] == HEADS * (2 * (16 * 16 + 16) + 16 * CODES)
    assert sorted(path.name for path in both.iterdir()) == ["config.json", "model.safetensors"]
    safetensors.save_file(published_heads(heads=1), heads)
    again = load(add_drafter(both, heads, kind="medusa", out=tmp_path / "again"), drafters=("medusa",))
    assert again.drafters["medusa"][0].heads == 1
    with pytest.raises(ValueError, match="drafter of the kind 'owl': choose one of eagle, medusa"):
        add_drafter(old, heads, kind="owl", out=tmp_path / "owl")
