"""Reading tensor files: PyTorch's ``.pt``, ``.pth``, ``.bin`` and ``.safetensors``. Never runs code from a file."""

import argparse
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

# Under these keys training scripts keep the weights, beside optimizer state and the like.
_WRAPPERS = ("model", "module", "state_dict")
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


def read_tensor_file(path: str | Path) -> dict[str, np.ndarray]:
    """{name: array} of a tensor file; large ones are mapped into memory, not read, where the format allows.

    The state dict of a PyTorch file may be the top level or sit under "model", "module" or "state_dict".
    bfloat16 tensors come out as ``ml_dtypes.bfloat16``.

    Raises:
        ValueError: the file is missing, truncated, not a tensor file, or a pickle that wants to run code.
        ImportError: the package that reads this format is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give a .pt, .pth, .bin or .safetensors file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in _TORCH_SUFFIXES:
        return _read_torch(path)
    raise ValueError(f"{path} has an unknown suffix: give a .pt, .pth, .bin or .safetensors file")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise ImportError(_install("safetensors", path)) from error
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({_line(error)}): fetch it again or name another"
        ) from error


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise ImportError(_install("torch", path)) from error
    zipped = _check_start(path)
    try:
        # Plain attribute bags, which LlamaGen's training script keeps beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error) or (not zipped and _calls(path)):
            raise ValueError(
                f"{path} is a pickle that wants to run code: refused; name a file of tensors only"
            ) from error
        raise ValueError(_damaged(path, error)) from error
    except (
        RuntimeError,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
    ) as error:
        raise ValueError(_damaged(path, error)) from error
    tensors = _unwrap(path, content)
    foreign = [name for name, tensor in tensors.items() if not isinstance(tensor, torch.Tensor)]
    if foreign or not tensors:
        what = (
            f"holds things that are not tensors ({', '.join(map(str, foreign[:5]))})"
            if foreign
            else "is empty"
        )
        raise ValueError(f"{path} {what}: name a checkpoint of tensors only")
    return {name: _to_numpy(torch, tensor) for name, tensor in tensors.items()}


def _check_start(path: Path) -> bool:
    """Whether the file is a zip archive (else a pickle, PyTorch's older format); raises if it is neither."""
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] == b"PK":
        if not zipfile.is_zipfile(path):
            raise ValueError(f"{path} is truncated: fetch it again")
        return True
    if start[:1] != b"\x80":
        raise ValueError(f"{path} is not a PyTorch checkpoint: name a .pt, .pth, .bin or .safetensors file")
    return False


def _calls(path: Path) -> bool:
    """Whether a pickle's instructions call or import anything; they are listed, not run."""
    calls = {"GLOBAL", "STACK_GLOBAL", "INST", "REDUCE", "OBJ", "NEWOBJ", "NEWOBJ_EX"}
    try:
        with path.open("rb") as file:
            return any(operation.name in calls for operation, _, _ in pickletools.genops(file))
    except ValueError:
        return False


def _unwrap(path: Path, content: Any) -> Mapping[str, Any]:
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            return content[key]
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}: name a checkpoint with named tensors")
    return content


def _to_numpy(torch, tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _damaged(path: Path, error: Exception) -> str:
    return f"{path} is truncated or not a PyTorch checkpoint ({_line(error)}): fetch it again or name another"


def _line(error: Exception) -> str:
    """The first line of an error, short."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160].rstrip(".: ")


def _install(package: str, path: Path) -> str:
    return f"reading {path.name} needs {package}: pip install lantern-jax[convert]"
