"""Reading CLIP's files: what shapes tell, where the rest comes from, and one-line errors for wrong files."""

import json

import numpy as np
import pytest

from lantern_jax.apps.metrics.clip_files import convert_clip, read_clip
from tests.fixtures.tensor_writing import write_safetensors
from tests.metrics.tiny_clip import CONFIG, hugging_face_tensors, to_openai, write_folder
from tests.refused import refused_each


def test_the_activation_comes_from_the_config_beside_the_weights(tmp_path):
    folder = write_folder(tmp_path / "clip")
    config, _ = read_clip(folder)
    assert config == CONFIG
    assert read_clip(folder / "model.safetensors")[0] == config
    # An explicit activation takes precedence.
    assert read_clip(folder, "gelu")[0].activation == "gelu"
    # transformers leaves out its defaults.
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
    # The config does not describe a file of another name in the same folder.
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


def test_what_is_no_usable_clip_is_refused(tmp_path):
    tensors = hugging_face_tensors()
    refused_each({
        "tensors do not tell the activation": lambda: convert_clip(tensors),
        "unknown activation 'relu': choose one of quick_gelu, gelu": (
            lambda: convert_clip(tensors, {"activation": "relu"})
        ),
        "does not divide into 3 heads": lambda: convert_clip(tensors, {"activation": "gelu", "vision_heads": 3}),
        r"nowhere\.pt is not a file": lambda: read_clip(tmp_path / "nowhere.pt"),
    })  # fmt: skip


@pytest.mark.parametrize(("content", "match"), [
    ("{", "is not the config of a CLIP"),
    ('{"vision_config": {}}', r"is not the config of a CLIP \('text_config'\)"),
    ('{"vision_config": {"hidden_act": "gelu"}, "text_config": {}}', "its towers have different activations"),
    ('{"vision_config": {"hidden_size": 768}, "text_config": {}}', "vision tower of width 768, the tensors of 64"),
    ('{"model_type": "vit"}', "tensors do not tell the activation"),
])  # fmt: skip
def test_a_wrong_config_beside_the_weights_is_refused(tmp_path, content, match):
    folder = write_folder(tmp_path / "clip")
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=match) as error:
        read_clip(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
