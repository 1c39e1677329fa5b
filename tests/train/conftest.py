"""Fixtures shared by the training tests."""

from functools import cache

import jax
import pytest


@pytest.fixture
def optax_promotion():
    """Standard promotion: optax turns step counts into floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def small_shards(monkeypatch):
    from train import features, sources

    monkeypatch.setattr(features, "SHARD", 2)
    monkeypatch.setattr(sources, "CACHED", 3)
    monkeypatch.setattr(sources, "ENCODED", 2)


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    """name -> a tiny checkpoint directory of that family."""
    from tests.train import families

    return cache(lambda name: families.convert(tmp_path_factory.mktemp(name), name))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    from tests.train import families

    return cache(lambda name: families.write_pictures(tmp_path_factory.mktemp("pictures"), name))


@pytest.fixture(scope="session")
def all_extracted(converted, pictures, tmp_path_factory):
    from tests.train import families

    @cache
    def extracted(name):
        workdir = tmp_path_factory.mktemp("features")
        families.extract(converted(name), name, pictures(name), workdir)
        return converted(name), workdir

    return extracted


@pytest.fixture
def extracted(small_shards, all_extracted):
    """name -> (checkpoint directory, folder of features), in shards of two."""
    return all_extracted
