"""Weights in eight bits: what they hold, where they lie, and that strict decoding stays plain decoding."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval.ahead.arguments import Batch
from eval.ahead.fit import need_there
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.measuring.shapes import checkpoint_shapes
from lantern_jax.checkpoints.store import load, load_shapes, save
from lantern_jax.devices.partition import parameter_spec
from lantern_jax.families.llamagen.model import LlamaGen
from lantern_jax.models import quantization
from lantern_jax.models.quantization import is_quantized, quantize
from tests.command import assert_refused
from tests.tiny_checkpoint import tiny_checkpoint


def layers(params):
    """Lists (name, the module's arrays) of every product of a target's layers."""
    modules = [layer for key, layer in params["params"]["transformer"].items() if "layer" in key]
    return [(name, module) for layer in modules for name, module in layer.items() if "kernel" in module]


def bytes_of(tree) -> int:
    return sum(math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def quantized():
    checkpoint = tiny_checkpoint()
    return dataclasses.replace(checkpoint, target_params=quantize(checkpoint.target_params))


@pytest.fixture(scope="module")
def folder(quantized, tmp_path_factory):
    return save(tmp_path_factory.mktemp("eight") / "bits", quantized)


def test_every_channel_is_within_half_a_step(quantized):
    """And each uses its whole range; nothing but the layers' kernels is touched."""
    original = tiny_checkpoint().target_params
    pairs = list(zip(layers(original), layers(quantized.target_params), strict=True))
    assert {name for (name, _), _ in pairs} == {"qkv", "out", "gate_up", "down"}
    for (name, before), (_, after) in pairs:
        inputs = tuple(range(quantization.INPUT_AXES[name]))
        assert after["kernel"].dtype == np.int8 and after["kernel_scale"].dtype == np.float32
        assert (np.abs(after["kernel"]).max(axis=inputs) == 127).all()
        error = np.abs(after["kernel"] * after["kernel_scale"] - np.asarray(before["kernel"]))
        assert (error <= after["kernel_scale"] * 0.501).all() and error.any()
    for part in ("tokens", "head"):
        after = quantized.target_params["params"][part]
        assert jax.tree.all(jax.tree.map(np.array_equal, original["params"][part], after))


def test_logits_are_those_of_the_rounded_weights(quantized):
    """Integers and scales give the rounded kernels' logits, which are near the original ones."""
    rounded = quantization._map_layers(tiny_checkpoint().target_params, lambda name, leaf: (leaf, None))
    for (_, plain), (_, module) in zip(layers(rounded), layers(quantized.target_params), strict=True):
        plain["kernel"] = module["kernel"] * module["kernel_scale"]
        del plain["kernel_scale"]
    config = quantized.target_config
    tokens = np.arange(2 * config.num_tokens).reshape(2, -1).astype(np.int32) % config.vocab_size
    labels = np.zeros((2, config.label_slots), np.int32)
    exact, found, before = (
        np.asarray(jax.jit(LlamaGen(config).apply)(params, labels, tokens)[1])
        for params in (rounded, quantized.target_params, tiny_checkpoint().target_params)
    )
    np.testing.assert_allclose(found, exact, atol=2e-5 * np.abs(exact).max())
    distance = np.linalg.norm(found - before) / np.linalg.norm(before - before.mean())
    assert 1e-4 < distance < 0.03


def test_quantized_weights_are_stored_and_read_unchanged(folder, quantized):
    """The requested dtype changes neither integers nor scales; layers take half the bytes of bfloat16."""
    for dtype in (None, jnp.bfloat16):
        found = load(folder, dtype=dtype).target_params
        for (_, before), (_, after) in zip(layers(quantized.target_params), layers(found), strict=True):
            assert after["kernel"].dtype == np.int8 and after["kernel_scale"].dtype == np.float32
            np.testing.assert_array_equal(after["kernel"], before["kernel"])
    assert found["params"]["head"]["kernel"].dtype == jnp.bfloat16
    kernels = [module["kernel"] for _, module in layers(found)]
    assert bytes_of(kernels) == sum(kernel.size for kernel in kernels)
    abstract = load_shapes(folder)
    assert is_quantized(abstract.target_params)
    shapes = checkpoint_shapes(abstract, "float32")
    job, here = shapes.job({"method": "ar"}), np.array(jax.devices()[:1])[:, None]
    batches = [Batch(each, job, 1, here) for each in (dataclasses.replace(shapes, quantized=False), shapes)]
    saved = [need_there(batch, None, 10**9, ("advance",)).parameters for batch in batches]
    scales = sum(4 * module["kernel_scale"].size for _, module in layers(found))
    assert saved[0] - saved[1] == 3 * bytes_of(kernels) - scales


def test_scales_are_split_as_their_outputs_are():
    def spec(name, *shape):
        return tuple(parameter_spec(("target", "params", "layer_0", name, "kernel_scale"), shape, 4))

    assert spec("qkv", 3, 8, 16) == (None, "model", None) and spec("gate_up", 2, 64) == (None, "model")
    assert spec("out", 128) == () and spec("down", 128) == ()


def test_the_quantize_command(tmp_path, monkeypatch, folder, capsys):
    monkeypatch.chdir(tmp_path)
    original = save(tmp_path / "tiny", tiny_checkpoint())
    assert main(["quantize", str(original), "--out", "small"]) == 0
    assert capsys.readouterr().out.endswith("wrote small\n")
    assert main(["info", "small"]) == 0
    assert "int8" in capsys.readouterr().out
    both = (layers(load(path).target_params) for path in ("small", folder))
    for (_, ours), (_, theirs) in zip(*both, strict=True):
        np.testing.assert_array_equal(ours["kernel"], theirs["kernel"])
    assert "already" in assert_refused(["quantize", "small", "--out", "smaller"], capsys)
    assert "exists" in assert_refused(["quantize", str(original), "--out", "small"], capsys)
    assert "not a directory" in assert_refused(["quantize", "nowhere", "--out", "x"], capsys)


def test_a_channel_of_zeros_stays_zero_and_there_must_be_something_to_quantize(quantized):
    made = quantize({"down": {"kernel": np.array([[0.0, 3.0], [0.0, -1.5]], np.float32)}})["down"]
    scaled = made["kernel"] * made["kernel_scale"]
    np.testing.assert_array_equal(scaled, [[0, 3], [0, -64 * np.float32(3 / 127)]])
    with pytest.raises(ValueError, match="already"):
        quantize(quantized.target_params)
    with pytest.raises(ValueError, match="no layer"):
        quantize({"params": {"head": {"kernel": np.ones((2, 2), np.float32)}}})
