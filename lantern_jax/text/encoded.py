"""Encoded prompts in a file: conditioning arrays that can be used again without the text encoder.

A ``.npz`` holds the arrays by name, and a record (format, kind of conditioning, prompts) as JSON text. Arrays hold the
conditional row of each prompt. Packed ones (``text.packed``) are stored packed; the arrays "mask" and
"NAME_mask" place their values.

Axes: n prompts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import parse_json, read_arrays, write_file
from lantern_jax.text.packed import PackedRows

FORMAT = "lantern_jax encoded prompts 2"
RECORD, MASK = "record", "mask"


@dataclass(frozen=True)
class EncodedPrompts:
    """Prompts and their conditioning.

    Attributes:
        kind: of conditioning: "labels", "captions" or "guided tokens" from ``Pipeline.encode``; the encoder
            that takes the prompts checks it.
        prompts: n texts.
        arrays: {name: array [n, ...]}: labels; features (perhaps ``PackedRows``) and mask; or tokens and mask; and
            those that guidance compares them with, if prompts come with them.

    Example:
        >>> encoded = lantern_jax.load("demo").encode(["a lake", "a foggy forest"])
        >>> encoded.kind, encoded.arrays["labels"].shape
        ('labels', (2, 8))
    """

    kind: str
    prompts: tuple[str, ...]
    arrays: dict[str, np.ndarray]


def check_ending(path: Path) -> None:
    """Raises LanternError unless a file for encoded prompts ends in .npz."""
    if path.suffix != ".npz":
        raise LanternError(f"{path} does not end in .npz: give such a name")


def save_encoded(
    path: str | Path, kind: str, prompts: Sequence[str], arrays: Mapping[str, np.ndarray]
) -> None:
    """Writes encoded prompts; an existing file is replaced by the whole new one or not at all.

    Args:
        path: ends in .npz.
        kind, prompts, arrays: as in ``EncodedPrompts``; bool, integer and float arrays, bfloat16 included.

    Raises:
        LanternError: another ending, arrays without one row per prompt, or a folder that cannot be written to.

    Example:
        >>> from lantern_jax.text.encoded import load_encoded, save_encoded
        >>> save_encoded("prompts.npz", "labels", ["tabby cat"], {"labels": np.array([[281]])})
        >>> load_encoded("prompts.npz").prompts
        ('tabby cat',)
    """
    path = Path(path)
    check_ending(path)
    wrong = [name for name, array in arrays.items() if array.shape[:1] != (len(prompts),)]
    if wrong or not arrays:
        raise LanternError(
            f"{', '.join(wrong) or 'arrays'}: give arrays of numbers, a row for each of the {len(prompts)} prompts"
        )
    packed = [name for name, array in arrays.items() if isinstance(array, PackedRows)]
    stored = {name: array.values if name in packed else array for name, array in arrays.items()}
    wide = [name for name, array in stored.items() if array.dtype == ml_dtypes.bfloat16]
    record = {
        "format": FORMAT, "kind": kind, "prompts": list(prompts), "bfloat16": wide, "packed": packed,
    }  # fmt: skip
    # NumPy's format does not know bfloat16: such arrays are stored as their bits.
    stored = {name: array.view(np.uint16) if name in wide else array for name, array in stored.items()}
    stored |= {RECORD: np.array(json.dumps(record))}
    try:
        write_file(path, lambda file: np.savez(file, **stored))
    except OSError as error:
        raise LanternError(str(error)) from None


def _mask_of(name: str) -> str:
    """Returns the name of the mask of packed features."""
    return MASK if name == "features" else f"{name}_{MASK}"


def load_encoded(path: str | Path) -> EncodedPrompts:
    """Reads encoded prompts; raises LanternError if the file is missing, damaged or of another kind.

    Example:
        >>> from lantern_jax.text.encoded import load_encoded, save_encoded
        >>> save_encoded("prompts.npz", "labels", ["tabby cat"], {"labels": np.array([[281]])})
        >>> load_encoded("prompts.npz").arrays
        {'labels': array([[281]])}
    """
    path = Path(path)
    if not path.is_file():
        raise LanternError(f"{path} is not a file: give encoded prompts, a .npz")
    try:
        arrays = read_arrays(path)
        record = parse_json(str(arrays.pop(RECORD)), "its record")
        if record["format"] != FORMAT:
            raise LanternError("another format")
        # A class number is a text here, "207".
        texts = [record["kind"], *record["prompts"]]
        if not isinstance(record["prompts"], list) or not all(isinstance(text, str) for text in texts):
            raise LanternError("prompts that are not text")
        for name in record["bfloat16"]:
            if arrays[name].dtype != np.uint16:
                raise LanternError("another dtype")
            arrays[name] = arrays[name].view(ml_dtypes.bfloat16)
        for name in record.get("packed", ()):
            arrays[name] = PackedRows(arrays[name], arrays[_mask_of(name)])
        prompts = tuple(record["prompts"])
        if any(array.shape[:1] != (len(prompts),) or array.dtype.kind == "U" for array in arrays.values()):
            raise LanternError("uneven arrays, or text")
        return EncodedPrompts(record["kind"], prompts, arrays)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise LanternError(
            f"{path} is damaged or does not hold encoded prompts: encode them again"
        ) from error
