"""Statistics of sets: saved and read back, from other programs, and refused."""

import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.metrics.features import FeatureReader
from lantern_jax.apps.metrics.frechet import Normal, frechet_distance
from lantern_jax.apps.metrics.statistics import is_statistics, statistics_file, statistics_of
from lantern_jax.io.files import write_file
from tests.refused import refused_with

WIDTH = 3
PICTURES = np.random.default_rng(0).integers(0, 256, (9, 6, 8, 3), np.uint8)


def reader(name="colours", width=WIDTH):
    """Returns a reader of the mean of each colour, or of the first ones."""

    def prepare(picture):
        return picture.reshape(-1, 3).mean(axis=0, dtype=np.float32)[None, None]

    return FeatureReader(name, width, prepare, lambda x: x[:, 0, 0, :width], 4)


@pytest.fixture
def folder(tmp_path):
    for number, picture in enumerate(PICTURES):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    return tmp_path


def test_a_folder_and_an_array_of_the_same_pictures(folder):
    found = statistics_of(folder, reader())
    expected = PICTURES.mean((1, 2))
    np.testing.assert_allclose(found.features, expected, rtol=1e-6)
    np.testing.assert_allclose(
        found.normal.root.T @ found.normal.root, np.cov(expected, rowvar=False), rtol=1e-5
    )
    assert (found.count, found.size, found.reader) == (9, (6, 8), "colours")
    np.savez(folder / "all.npz", PICTURES)
    assert not is_statistics(folder / "all.npz")
    again = statistics_of(folder / "all.npz", reader())
    np.testing.assert_array_equal(again.features, found.features)
    Image.fromarray(PICTURES[0][:4]).save(folder / "9.png")
    assert statistics_of(folder, reader()).size is None


def test_saved_statistics_are_read_back_unchanged(folder):
    both = [statistics_of(folder, reader()), statistics_of(folder, reader("reds", 1))]
    path = folder / "stats.npz"
    write_file(path, statistics_file(both))
    assert is_statistics(path)
    for one, kind in zip(both, (reader(), reader("reds", 1)), strict=True):
        back = statistics_of(path, kind)
        assert (back.reader, back.count, back.size) == (one.reader, 9, (6, 8))
        np.testing.assert_array_equal(back.features, one.features)
        np.testing.assert_array_equal(back.normal.root, one.normal.root)
    assert [file.name for file in folder.iterdir() if file.suffix != ".png"] == ["stats.npz"]


def test_wrong_statistics_are_refused(folder):
    path = folder / "stats.npz"
    write_file(path, statistics_file([statistics_of(folder, reader())]))
    refused_with(
        lambda: statistics_of(path, reader("inception")), "was read by 'colours'", "not by 'inception'"
    )
    # Nor are damaged ones read.
    whole = dict(np.load(path))
    for change, word in (
        ({"0/features": None}, "lacks features"),
        ({"0/features": np.zeros((9, WIDTH + 1))}, "lacks features"),
        ({"0/features": np.full((9, WIDTH), np.nan)}, "not finite"),
        ({"readers": np.array([{}], dtype=object)}, "not a whole archive of arrays"),
    ):
        np.savez(path, **{name: array for name, array in (whole | change).items() if array is not None})
        refused_with(lambda: statistics_of(path, reader()), "stats.npz is not a complete file", word)
    path.write_bytes(path.read_bytes()[:300])
    refused_with(lambda: statistics_of(path, reader()), "stats.npz")
    np.savez(path, PICTURES[:1])
    refused_with(lambda: statistics_of(path, reader()), "1 picture(s) have no covariance: give at least 2")


def test_mean_and_covariance_of_another_program(folder):
    """As in ADM's files: over more pictures than those stored beside them."""
    path, values = folder / "adm.npz", np.random.default_rng(1).normal(100, 9, (40, WIDTH))
    statistics = {"mu": values.mean(axis=0), "sigma": np.cov(values, rowvar=False)}
    np.savez(path, arr_0=PICTURES, **statistics)
    assert is_statistics(path)
    found, made = statistics_of(path, reader()), statistics_of(folder, reader())
    assert found.count is None and found.size == (6, 8)
    np.testing.assert_array_equal(found.features, made.features)
    expected = frechet_distance(made.normal, Normal.of_features(values))
    assert frechet_distance(made.normal, found.normal) == pytest.approx(expected, rel=1e-9)
    np.savez(path, **statistics)
    assert statistics_of(path, reader()).features is None
    refused_with(lambda: statistics_of(path, reader("reds", 1)), "are [3] and [3, 3]", "gives 1 numbers")
    np.savez(path, mu=statistics["mu"], sigma=statistics["sigma"] * np.nan)
    refused_with(lambda: statistics_of(path, reader()), "sigma not finite")
