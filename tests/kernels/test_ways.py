"""Which way attention and appending take on which GPU, and which dtype is the default there."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding import cache as kv_cache
from lantern_jax.devices.platform import default_dtype
from lantern_jax.kernels import shapes
from lantern_jax.kernels.ways import append_way, attention_way, capability_of, traced_for, traced_on
from lantern_jax.models.attention import rotate_and_attend
from tests.lowering import lower


def gpu(capability: str) -> SimpleNamespace:
    return SimpleNamespace(platform="gpu", compute_capability=capability)


def qkv(nodes: int, width: int, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, 1, nodes, 3, 2, width), dtype)


@pytest.mark.parametrize(
    ("nodes", "width", "dtype", "way"),
    [
        (1, 16, jnp.float16, "triton"),
        (64, 128, jnp.bfloat16, "triton"),
        (5, 100, jnp.bfloat16, "joined"),
        (5, 8, jnp.bfloat16, "joined"),
        (5, 64, jnp.float32, "joined"),
        (65, 64, jnp.bfloat16, None),
        (0, 64, jnp.bfloat16, None),
    ],
)
def test_ways_by_shape_and_dtype(nodes, width, dtype, way):
    assert attention_way(qkv(nodes, width, dtype)) == way


@pytest.mark.parametrize(
    ("capability", "attention", "append"),
    [("7.5", "joined", None), ("8.0", "triton", "triton"), ("10.0", "triton", "triton")],
)
def test_ways_by_capability(capability, attention, append, monkeypatch):
    """The device that programs are traced for decides, otherwise the one at hand."""
    given, caches = qkv(5, 64, jnp.bfloat16), jax.ShapeDtypeStruct((2, 1, 2, 9, 64), jnp.bfloat16)
    with traced_for(gpu(capability)):
        assert (attention_way(given), append_way(caches)) == (attention, append)
    assert attention_way(given) == "triton"
    monkeypatch.setattr(jax, "devices", lambda: [gpu(capability)])
    assert (attention_way(given), append_way(caches)) == (attention, append)


def test_defaults_by_device(monkeypatch):
    for device, dtype in (
        (gpu("7.5"), jnp.float32),
        (gpu("8.0"), jnp.bfloat16),
        (gpu("gfx942"), jnp.bfloat16),
        (SimpleNamespace(platform="tpu"), jnp.bfloat16),
        (SimpleNamespace(platform="cpu"), jnp.float32),
    ):
        assert default_dtype(device) == dtype
        monkeypatch.setattr(jax, "devices", lambda device=device: [device])
        assert default_dtype() == dtype
    assert capability_of(gpu("12.1")) == 12.1 and capability_of(gpu("gfx942")) is None


def lowered_for_cuda() -> list[str]:
    """Returns the texts of attention and of an append, lowered for CUDA."""
    states = np.zeros((2, 1, 2, 12, 16), jnp.bfloat16)
    block = ((states[..., :5, :], states[..., :5, :]),)
    arguments = (
        np.zeros((2, 1, 5, 3, 2, 16), jnp.bfloat16),
        np.zeros((1, 1, 5, 8, 2), np.float32),
        np.ones((1, 1, 5, 5), bool),
        ((states, states),),
        (np.ones((2, 1, 1, 12), bool),),
    )
    cache = kv_cache.KVCache(((states, states),), np.ones((2, 1, 1), bool), np.zeros(1, np.int32), None)
    commit = (kv_cache.commit, cache, block, np.zeros((1, 3), np.int32), np.ones(1, np.int32))
    given = ((rotate_and_attend, *arguments), commit)
    return [lower(*each, platform="cuda").as_text() for each in given]


def test_older_gpus_and_a_jax_without_triton_are_left_to_xla(monkeypatch):
    assert all("xla.gpu.triton" in text for text in lowered_for_cuda())
    with traced_for(gpu("7.5")):
        assert not any("xla.gpu.triton" in text for text in lowered_for_cuda())
    monkeypatch.setattr(shapes, "triton", None)
    # Another target, since JAX keeps what it has traced for the first.
    with traced_for(gpu("9.0")):
        assert not any("xla.gpu.triton" in text for text in lowered_for_cuda())


def test_kernels_are_lowered_where_jax_has_64_bit_types():
    with jax.enable_x64(True):
        assert all("xla.gpu.triton" in text for text in lowered_for_cuda())


def test_tracing_for_a_cpu_alone_takes_its_way_and_no_others():
    """The same results, and nothing of other platforms is traced."""
    arguments = (
        *(jnp.ones((1, 1, 3, 3, 2, 16)), jnp.ones((1, 1, 3, 8, 2))),
        jnp.ones((1, 1, 3, 3), bool),
        (),
        (),
    )
    attend, results = jax.jit(rotate_and_attend), []
    for platform, asked in (("cpu", False), (None, True), ("tpu", True)):
        with traced_on(platform):
            assert ("platform_index" in str(jax.make_jaxpr(rotate_and_attend)(*arguments))) == asked
            results.append(jax.tree.leaves(attend(*arguments)) if platform != "tpu" else [])
    for one, another in zip(*results[:2], strict=True):
        assert (one == another).all()
