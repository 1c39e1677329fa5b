"""Encoded prompts in a file: conditioning arrays that can be used again without the text encoder.

A ``.npz`` of the arrays under their own names, beside a record (format, kind of model, prompts) as JSON text.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from lantern_jax.files import write_file

FORMAT = "lantern_jax encoded prompts 1"
RECORD = "record"


@dataclass(frozen=True)
class EncodedPrompts:
    """Prompts and what a target is conditioned on in their place.

    Attributes:
        kind: of model, such as "llamagen"; chosen by the writer, checked by the reader's caller.
        prompts: n texts.
        arrays: {name: array [n, ...]}, such as features and mask, tokens and mask, or labels.
    """

    kind: str
    prompts: tuple[str, ...]
    arrays: dict[str, np.ndarray]


def save_encoded(
    path: str | Path, kind: str, prompts: Sequence[str], arrays: Mapping[str, np.ndarray]
) -> None:
    """Writes encoded prompts; a file of that name is replaced, by the whole new one or not at all.

    Args:
        path: ends in .npz.
        kind, prompts, arrays: as in ``EncodedPrompts``; bool, integer and float arrays, bfloat16 included.

    Raises:
        ValueError: another ending, arrays that do not have one row a prompt, or a folder that cannot be written to.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"{path} does not end in .npz: name encoded prompts so")
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    wrong = [
        name
        for name, array in arrays.items()
        if array.shape[:1] != (len(prompts),)
        or not (array.dtype.kind in "biuf" or array.dtype == ml_dtypes.bfloat16)
    ]
    if wrong or not arrays or RECORD in arrays:
        raise ValueError(
            f"{', '.join(wrong) or 'arrays'}: give arrays of numbers, a row for each of the {len(prompts)} prompts"
        )
    wide = [name for name, array in arrays.items() if array.dtype == ml_dtypes.bfloat16]
    record = {"format": FORMAT, "kind": kind, "prompts": list(prompts), "bfloat16": wide}
    # NumPy's format does not know bfloat16: such arrays are kept as their bits.
    stored = {name: array.view(np.uint16) if name in wide else array for name, array in arrays.items()}
    stored |= {RECORD: np.array(json.dumps(record))}
    try:
        write_file(path, lambda file: np.savez(file, **stored))
    except OSError as error:
        raise ValueError(str(error)) from None


def load_encoded(path: str | Path) -> EncodedPrompts:
    """Reads what ``save_encoded`` wrote.

    Raises:
        ValueError: the file is missing, truncated or something else.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give encoded prompts, a .npz")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            record = json.loads(str(content[RECORD]))
            if record["format"] != FORMAT:
                raise ValueError("another format")
            arrays = {name: content[name] for name in content.files if name != RECORD}
        for name in record["bfloat16"]:
            arrays[name] = arrays[name].view(ml_dtypes.bfloat16)
        prompts = tuple(record["prompts"])
        if any(array.shape[:1] != (len(prompts),) for array in arrays.values()):
            raise ValueError("uneven arrays")
        return EncodedPrompts(record["kind"], prompts, arrays)
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged or does not hold encoded prompts: encode them again") from error
