"""The drafter's feature store: order, precision, resumption."""

import numpy as np
import pytest

from tests.refused import refused_each
from train.feature_store import FeatureStore, count_shards, write_shard


def shard(seed, count=3):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, 2, 5, 4), np.float32)
    return features, rng.integers(-1, 9, (count, 2, 3)), rng.integers(0, 9, (count, 6))


def test_pictures_come_back_in_the_order_asked_for(tmp_path):
    shards = [shard(0), shard(1, 2), shard(2, 4)]
    for index, parts in enumerate(shards):
        write_shard(tmp_path, index, *parts)
    store = FeatureStore(tmp_path)
    assert len(store) == 9
    assert store.shapes == {"features": (2, 5, 4), "prefix": (2, 3), "tokens": (6,)}
    features, prefix, tokens = (np.concatenate(arrays) for arrays in zip(*shards, strict=True))
    chosen = [8, 0, 3, 4, 4, 2]
    read_features, read_prefix, read_tokens = store.read(chosen)
    assert read_features.dtype == np.float16
    np.testing.assert_array_equal(read_features, features[chosen].astype(np.float16))
    np.testing.assert_array_equal(read_prefix, prefix[chosen])
    np.testing.assert_array_equal(read_tokens, tokens[chosen])
    with pytest.raises(IndexError, match="the store has 0 to 8"):
        store.read([9])
    # An incomplete shard does not count.
    (tmp_path / "features_00003.npy").touch()
    (tmp_path / "tokens_00003.part").touch()
    assert count_shards(tmp_path) == 3 and len(FeatureStore(tmp_path)) == 9


def test_errors_name_what_is_wrong(tmp_path):
    features, prefix, tokens = shard(0)
    refused_each({
        "holds no features; run": lambda: FeatureStore(tmp_path),
        "3 rows of features, 3 of prefixes, 2 of tokens": (
            lambda: write_shard(tmp_path, 0, features, prefix, tokens[:2])
        ),
        "not finite in float16": lambda: write_shard(tmp_path, 0, features * 1e6, prefix, tokens),
    })  # fmt: skip
    assert not count_shards(tmp_path)
