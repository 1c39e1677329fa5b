"""Inception's and VGG's readers: strict about their files; VGG against PyTorch. Inception's numbers: test_golden."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from lantern_jax.apps.metrics.comparison import build_reader
from lantern_jax.apps.metrics.features import FeatureReader
from lantern_jax.apps.metrics.inception import inception_features
from lantern_jax.apps.metrics.preprocessing import vgg_imagenet
from lantern_jax.apps.metrics.protocols import Reading
from lantern_jax.apps.metrics.registry import READERS, ReaderKind
from lantern_jax.apps.metrics.vgg import VGG, vgg_features, vgg_table
from tests.metrics.published_networks import TINY_VGG, vgg_tensors
from tests.refused import refused_each


def test_inception_refuses_other_files_and_preprocessings(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"weight": np.zeros((2, 2))}, path)
    refused_each({
        "not a FID Inception": lambda: inception_features(path),
        "clean, pytorch-fid, tf": lambda: inception_features(path, "bicubic"),
        "is not a file": lambda: inception_features(tmp_path / "nothing.pth"),
    })  # fmt: skip


def test_vgg_has_the_published_names_and_shapes():
    table = vgg_table(VGG())
    numbers = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    assert [f"features.{number}.weight" for number in numbers] == [
        name for name in table if name.startswith("features.") and name.endswith("weight")
    ]
    assert table["features.28.weight"].shape == (512, 512, 3, 3)
    assert table["classifier.0.weight"].shape == (4096, 512 * 7 * 7)
    assert table["classifier.3.weight"].shape == (4096, 4096)


@pytest.mark.parametrize("rectified", [False, True])
def test_vgg_matches_pytorch(rectified, tmp_path, assert_close):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(tensor) for name, tensor in vgg_tensors().items()}
    pictures = np.random.default_rng(0).integers(0, 256, (5, 60, 90, 3), np.uint8)

    x = torch.from_numpy(np.stack([vgg_imagenet(picture) for picture in pictures]).transpose(0, 3, 1, 2))
    number = 0
    for widths in TINY_VGG.widths:
        for _ in widths:
            weight, bias = (tensors[f"features.{number}.{part}"] for part in ("weight", "bias"))
            x = torch.relu(torch.nn.functional.conv2d(x, weight, bias, padding=1))
            number += 2
        x = torch.nn.functional.max_pool2d(x, 2)
        number += 1
    linear = torch.nn.functional.linear
    x = linear(x.flatten(1), tensors["classifier.0.weight"], tensors["classifier.0.bias"])
    x = linear(torch.relu(x), tensors["classifier.3.weight"], tensors["classifier.3.bias"])
    expected = torch.relu(x) if rectified else x

    path = tmp_path / "vgg.safetensors"
    save_file(vgg_tensors(), path)
    reader = vgg_features(path, "relu" if rectified else "linear", TINY_VGG)
    assert_close(reader.features(pictures), expected.numpy())
    assert ("after" if rectified else "before") in reader.name


def test_a_step_before_a_reader_is_in_its_name(monkeypatch):
    reader = FeatureReader("mean", 1, lambda picture: picture.astype(np.float32), lambda x: x.mean((1, 2)), 2)
    monkeypatch.setitem(READERS.theirs, "mean", ReaderKind("", lambda *_: reader))
    flipped = build_reader(Reading("mean", "", step=("inverting", lambda picture: 255 - picture)), None)
    pictures = np.full((3, 4, 4, 3), 5, np.uint8)
    assert flipped.name == "mean after inverting"
    np.testing.assert_array_equal(reader.features(pictures), 5)
    np.testing.assert_array_equal(flipped.features(pictures), 250)


def test_features_must_be_finite():
    broken = FeatureReader("broken", 3, lambda picture: picture, lambda x: np.full((len(x), 3), np.nan))
    refused_each({"broken gives values that are not finite": lambda: broken.features(np.zeros((3, 4, 4, 3)))})
