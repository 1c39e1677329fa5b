"""Golden cases: NAME.json (configuration, tensor names and shapes) and NAME.npz (inputs and outputs).

The weights are not stored; they are built from the tensors' names, so a case goes through the converters.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DEFAULT_DIRECTORY = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class GoldenCase:
    name: str
    kind: str
    config: dict[str, Any]
    tensors: dict[str, np.ndarray]
    arrays: dict[str, np.ndarray]


def golden_weight(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Makes the synthetic weight of a tensor of this name."""
    noise = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32).standard_normal(shape)
    if name.endswith(("bias", "running_mean")):
        weight = 0.1 * noise
    elif name.endswith("running_var"):
        weight = 0.4 * (1 + 0.1 * noise)
    elif len(shape) == 1:
        weight = 1 + 0.1 * noise
    else:
        weight = noise / np.sqrt(np.prod(shape[1:]))
    return weight.astype(np.float32)


def case_kind(config: dict[str, Any], tensors: dict[str, Any]) -> str:
    """Names what a case is about, by the content of its configuration and tensor names, not by its file name."""
    if config.get("model_type") in ("c2i", "t2i"):
        return f"llamagen_gpt_{config['model_type']}"
    if "vision_config" in config or "text_config" in config:
        return config["model_type"]
    if "codebook_embed_dim" in config:
        return "llamagen_vq"
    if "ddconfig" in config:
        return "chameleon_vqgan"
    if "rules" in config and "trees" in config:
        return "acceptance_greedy"
    if "fc.weight" in tensors and "zero_rope_positions" in config:
        return "lantern_drafter_llamagen"
    if any(name.startswith("Mixed_5b.") for name in tensors):
        return "inception_fid"
    return "unknown"


def find_cases(directory: Path) -> list[Path]:
    """Lists the JSON files of a folder's cases; a case needs its .npz too."""
    cases = sorted(directory.glob("*.json"))
    if not cases:
        raise ValueError(f"{directory} holds no golden case: give a folder of NAME.json + NAME.npz files")
    return cases


def read_case(path: Path) -> GoldenCase:
    """Reads a case; ValueError where nothing is recorded that could be compared."""
    description = json.loads(path.read_text())
    with np.load(path.with_suffix(".npz")) as file:
        arrays = dict(file)
    empty = [name for name, array in arrays.items() if not array.size]
    if empty or not arrays or description.get("config", {}).get("cases") == []:
        raise ValueError(
            f"{path} records nothing{f' in {empty[0]}' if empty else ''}: nothing would be compared"
        )
    if "internal" in description and "paths" in description:
        return GoldenCase(path.stem, "published_residual", description, {}, arrays)
    shapes = {name: tuple(shape) for name, shape in description["tensors"].items()}
    kind = case_kind(description["config"], shapes)
    seed = description["weight_seed"]
    tensors = {name: golden_weight(name, shape, seed) for name, shape in shapes.items()}
    return GoldenCase(path.stem, kind, description["config"], tensors, arrays)
