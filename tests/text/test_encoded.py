"""Encoded prompts on disk."""

import ml_dtypes
import numpy as np
import pytest

from lantern_jax.apps.commands import encode
from lantern_jax.text.encoded import load_encoded, save_encoded
from lantern_jax.text.packed import PackedRows
from tests.command import assert_refused, must_not_run
from tests.refused import refused

ARRAYS = {
    "features": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "wide": np.linspace(0, 1, 6).reshape(2, 3).astype(ml_dtypes.bfloat16),
    "mask": np.array([[False, True], [True, True]]),
    "tokens": np.array([[1, 2], [3, 4]], np.int32),
}


def packed(dtype=np.float32):
    mask = np.array([[False, True, True], [True, True, True], [False, False, False], [False, False, True]])
    return PackedRows(np.arange(1, 13, dtype=np.float32).reshape(6, 2).astype(dtype), mask)


def test_round_trip(tmp_path):
    """A file of captions holds no padding, and half-precision features stay in half precision."""
    path, rows = tmp_path / "prompts.npz", [packed(), packed(ml_dtypes.bfloat16)]
    wholes = [ARRAYS, *({"features": each, "mask": each.mask} for each in rows)]
    for prompts, arrays in zip((["a lake", "Möwen\n"], list("abcd"), list("efgh")), wholes, strict=True):
        save_encoded(path, "llamagen", prompts, arrays)
        encoded = load_encoded(str(path))
        assert (encoded.kind, encoded.prompts) == ("llamagen", tuple(prompts))
        assert encoded.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            assert encoded.arrays[name].dtype == array.dtype and type(encoded.arrays[name]) is type(array)
            np.testing.assert_array_equal(np.asarray(encoded.arrays[name]), np.asarray(array))
    with np.load(path) as content:
        assert content["features"].shape == (6, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["prompts.npz"]


@pytest.mark.parametrize(("name", "arrays", "match"), [
    ("prompts.npy", ARRAYS, "does not end in .npz"), ("prompts.npz", {}, "a row for each of the 2 prompts"),
    ("prompts.npz", ARRAYS | {"labels": np.zeros((3, 1))}, "^labels: give"),
    ("missing/prompts.npz", ARRAYS, "cannot write"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused(tmp_path, name, arrays, match):
    with refused(match):
        save_encoded(tmp_path / name, "llamagen", ["a", "b"], arrays)
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_another_ending_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(encode, "open_pipeline", must_not_run)
    arguments = ["encode", "a lake", "--model", "demo", "--out", "prompts.pt"]
    assert "prompts.pt does not end in .npz: give such a name" in assert_refused(arguments, capsys)


def test_foreign_and_truncated_files(tmp_path):
    path = tmp_path / "prompts.npz"
    with pytest.raises(ValueError, match="is not a file"):
        load_encoded(path)
    save_encoded(path, "llamagen", ["a", "b"], ARRAYS)
    whole = path.read_bytes()
    broken = [whole[: len(whole) // 2], whole[:-30], b"", b"junk", b"PK\x03\x04junk"]
    changed = bytearray(whole)
    changed[whole.index(ARRAYS["features"].tobytes()) + 7] ^= 1
    broken.append(bytes(changed))
    for content in broken:
        path.write_bytes(content)
        with refused("is damaged or does not hold encoded prompts"):
            load_encoded(path)
    for arrays in (
        {"features": ARRAYS["features"]},
        {"record": np.array('{"format": "other"}')},
        {"record": np.array({"format": "pickled"}, dtype=object)},
    ):
        np.savez(path, **arrays)
        with refused("does not hold encoded prompts"):
            load_encoded(path)


def test_packed_rows_stand_in_for_the_array():
    rows = packed()
    whole = np.zeros((4, 3, 2), np.float32)
    whole[rows.mask] = rows.values
    assert rows.shape == whole.shape and len(rows) == 4 and rows.ndim == 3 and rows.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(rows), whole)
    for index in (np.array([3, 0, 0]), np.arange(2), slice(1, 3), np.array([], int)):
        np.testing.assert_array_equal(rows[index], whole[index])
    with pytest.raises(ValueError, match="give one for each True"):
        PackedRows(rows.values[1:], rows.mask)
