"""Reading CLIP's files: what shapes tell, where the rest comes from, and what is wrong with a file in one line."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.metrics.clip import Clip, ClipConfig, Tower
from lantern_jax.metrics.clip_files import HUGGING_FACE, OPENAI, clip_table, convert_clip, read_clip
from tests.fixtures.tensor_writing import write_safetensors, write_torch
from tests.metrics.tiny_clip import CONFIG, hugging_face_shapes, hugging_face_tensors, to_openai, write_folder

PUBLISHED = {
    "ViT-B/32": ClipConfig(Tower(768, 12, 12, 3072), Tower(512, 12, 8, 2048), "quick_gelu", 32, 224, 512),
    "ViT-L/14@336": ClipConfig(
        Tower(1024, 24, 16, 4096), Tower(768, 12, 12, 3072), "quick_gelu", 14, 336, 768
    ),
    "ViT-H/14": ClipConfig(Tower(1280, 32, 16, 5120), Tower(1024, 24, 16, 4096), "gelu", 14, 224, 1024),
    "ViT-bigG/14": ClipConfig(Tower(1664, 48, 16, 8192), Tower(1280, 32, 20, 5120), "gelu", 14, 224, 1280),
}
# Parameters of the published models, the temperature left out.
COUNTS = {"ViT-B/32": 151_277_312, "ViT-H/14": 986_109_440}


class _Stop(Exception):
    pass


@pytest.mark.parametrize("layout", [HUGGING_FACE, OPENAI])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_told_from_shapes(monkeypatch, name, layout):
    config = PUBLISHED[name]
    assert config.name == f"CLIP {name} ({config.activation})"
    table = clip_table(config, layout)
    found = {}

    def take(tensors, table, **_):
        found.update(table)
        raise _Stop

    monkeypatch.setattr("lantern_jax.metrics.clip_files.read_tensors", take)
    abstract = {tensor: jax.ShapeDtypeStruct(entry.shape, jnp.float32) for tensor, entry in table.items()}
    with pytest.raises(_Stop):
        convert_clip(abstract, {"activation": config.activation})
    assert {tensor: entry.shape for tensor, entry in found.items()} == {
        tensor: entry.shape for tensor, entry in table.items()
    }
    if name in COUNTS:
        assert sum(np.prod(entry.shape, dtype=np.int64) for entry in table.values()) == COUNTS[name]


def test_the_table_covers_the_module():
    for tensors in (hugging_face_tensors(), to_openai(hugging_face_tensors())):
        config, params = convert_clip(tensors, {"activation": "quick_gelu"})
        assert config == CONFIG
        pictures = jax.ShapeDtypeStruct((1, config.side, config.side, 3), np.float32)
        ids = jax.ShapeDtypeStruct((1, config.context), np.int32)
        shapes = jax.eval_shape(Clip(config).init, jax.random.key(0), pictures, ids)
        assert jax.tree.map(np.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


def test_the_activation_comes_from_the_config_beside(tmp_path):
    folder = write_folder(tmp_path / "clip")
    config, _ = read_clip(folder)
    assert config == CONFIG
    assert read_clip(folder / "model.safetensors")[0] == config
    # An explicit one goes before it.
    assert read_clip(folder, "gelu")[0].activation == "gelu"
    # transformers leaves out what is its default.
    beside = json.loads((folder / "config.json").read_text())
    for tower in ("vision_config", "text_config"):
        beside[tower]["hidden_act"] = "gelu"
    (folder / "config.json").write_text(json.dumps(beside))
    assert read_clip(folder)[0].activation == "gelu"
    for tower in ("vision_config", "text_config"):
        del beside[tower]["hidden_act"]
        beside[tower]["num_attention_heads"] = 4
    (folder / "config.json").write_text(json.dumps(beside))
    assert read_clip(folder)[0].activation == "quick_gelu"
    assert (read_clip(folder)[0].vision.heads, read_clip(folder)[0].text.heads) == (4, 4)
    # A file by another name in the same folder is none that this config describes.
    (folder / "model.safetensors").rename(folder / "laion.safetensors")
    with pytest.raises(ValueError, match=r"laion\.safetensors: tensors do not tell the activation"):
        read_clip(folder / "laion.safetensors")


@pytest.mark.parametrize(("quick", "activation"), [(True, "quick_gelu"), (False, "gelu"), (None, "gelu")])
def test_the_activation_comes_from_open_clips_config(tmp_path, quick, activation):
    shapes = {name: tensor.shape for name, tensor in to_openai(hugging_face_tensors()).items()}
    write_safetensors(tmp_path / "open_clip_model.safetensors", shapes, np.float16)
    model = {"vision_cfg": {"width": 64, "head_width": 16}, "text_cfg": {"width": 64, "heads": 2}}
    if quick is not None:
        model["quick_gelu"] = quick
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    config, _ = read_clip(tmp_path / "open_clip_model.safetensors")
    assert (config.activation, config.vision.heads, config.text.heads) == (activation, 4, 2)


def test_openais_own_state_dict_is_known_by_its_numbers():
    marks = {name: np.array(1) for name in ("input_resolution", "context_length", "vocab_size")}
    assert convert_clip(to_openai(hugging_face_tensors()) | marks)[0].activation == "quick_gelu"


def test_a_wrapped_state_dict(tmp_path):
    """As HPSv2's files are."""
    pytest.importorskip("torch")
    shapes = hugging_face_shapes()
    write_torch(tmp_path / "a.pt", shapes, np.float32, key="state_dict", beside={"epoch": 3})
    write_safetensors(tmp_path / "b.safetensors", shapes, np.float32)
    wrapped, plain = (read_clip(tmp_path / name, "gelu")[1] for name in ("a.pt", "b.safetensors"))
    jax.tree.map(np.testing.assert_array_equal, wrapped, plain)


LAYER = "text_model.encoder.layers.1.layer_norm2.weight"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({LAYER: None}, r"1 missing: text_model\.encoder\.layers\.1\.layer_norm2\.weight"),
        ({"extra.weight": np.zeros(3)}, r"1 unexpected: extra\.weight"),
        ({LAYER: np.ones(7)}, r"layer_norm2\.weight is \[7\], expected \[64\]"),
        ({"visual_projection.weight": None}, "missing or misshapen: visual_projection.weight"),
        ({"vision_model.embeddings.class_embedding": None}, "not a CLIP with a vision transformer"),
        (
            {"vision_model.embeddings.position_embedding.weight": np.zeros((8, 64))},
            "7 patches are not a square",
        ),
        ({"text_model.embeddings.position_embedding.weight": np.zeros((16, 65))}, "how many heads a text"),
    ],
)
def test_wrong_tensors(change, match):
    tensors = hugging_face_tensors() | change
    with pytest.raises(ValueError, match=match) as error:
        convert_clip(
            {name: tensor for name, tensor in tensors.items() if tensor is not None}, {"activation": "gelu"}
        )
    assert "\n" not in str(error.value)


def test_wrong_tensors_in_the_other_layout():
    tensors = to_openai(hugging_face_tensors())
    tensors["visual.transformer.resblocks.0.attn.in_proj_weight"] = np.zeros((5, 5))
    del tensors["ln_final.bias"]
    with pytest.raises(ValueError, match=r"1 missing: ln_final\.bias; 1 misshapen: .*expected \[192, 64\]"):
        convert_clip(tensors, {"activation": "gelu"})


def test_another_clip_or_none(tmp_path):
    with pytest.raises(ValueError, match="tensors do not tell the activation: give quick_gelu"):
        convert_clip(hugging_face_tensors())
    with pytest.raises(ValueError, match="unknown activation 'relu': choose one of quick_gelu, gelu"):
        convert_clip(hugging_face_tensors(), {"activation": "relu"})
    with pytest.raises(ValueError, match="does not divide into 3 heads"):
        convert_clip(hugging_face_tensors(), {"activation": "gelu", "vision_heads": 3})
    with pytest.raises(ValueError, match=r"nowhere\.pt is not a file"):
        read_clip(tmp_path / "nowhere.pt")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "is not the config of a CLIP"),
        ('{"vision_config": {}}', r"is not the config of a CLIP \('text_config'\)"),
        ('{"vision_config": null, "text_config": null}', "is not the config of a CLIP"),
        (
            '{"vision_config": {"hidden_act": "gelu"}, "text_config": {}}',
            "its towers have different activations",
        ),
        (
            '{"vision_config": {"hidden_size": 768}, "text_config": {}}',
            "vision tower of width 768, the tensors of 64: give the matching one",
        ),
        (
            '{"vision_config": {"hidden_act": "relu"}, "text_config": {"hidden_act": "relu"}}',
            "unknown activation 'relu'",
        ),
    ],
)
def test_a_wrong_config_beside(tmp_path, content, match):
    folder = write_folder(tmp_path / "clip")
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=match) as error:
        read_clip(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def test_a_config_of_something_else_is_not_used(tmp_path):
    folder = write_folder(tmp_path / "clip")
    (folder / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ValueError, match="tensors do not tell the activation"):
        read_clip(folder)
