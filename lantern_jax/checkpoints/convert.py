"""From published files to a checkpoint directory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from lantern_jax.checkpoints.drafter import convert_drafter
from lantern_jax.checkpoints.llamagen import convert_gpt
from lantern_jax.checkpoints.llamagen_vq import convert_vq
from lantern_jax.checkpoints.store import Checkpoint, save
from lantern_jax.checkpoints.tensor_files import open_tensors
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.decoding.neighbours import nearest_codes
from lantern_jax.models.vq import VQModel

# Enough for the k of the papers (LANTERN up to 1000 at vocabulary 16384).
NEIGHBOURS = 1000
NEIGHBOUR_SPACES = ("decoder", "raw")
# The usual settings (LlamaGen): guidance and top-k by conditioning.
_DEFAULTS = {
    "class": {"guidance": 4.0, "top_k": 2000, "temperature": 1.0},
    "caption": {"guidance": 7.5, "top_k": 1000, "temperature": 1.0},
}
_CONFIG_PARTS = ("target", "drafter")


def convert_llamagen(
    gpt: str | Path,
    vq: str | Path | None = None,
    drafter: str | Path | None = None,
    config: str | Path | None = None,
    *,
    out: str | Path,
    dtype: Any = "bfloat16",
    neighbours: int = NEIGHBOURS,
    neighbour_space: str = "decoder",
    overwrite: bool = False,
) -> Path:
    """Reads published files, converts them and writes a checkpoint directory; returns its path.

    Args:
        gpt, vq, drafter: tensor files, or what else ``open_tensors`` takes. With ``vq`` the checkpoint can
            draw, and has a neighbour table for relaxed rules. A ``config.json`` beside the drafter is read.
        config: a JSON file with what shapes do not tell: settings of the GPT (``{"num_heads": 20, "grid": 32}``),
            or ``{"target": {...}, "drafter": {...}}``.
        dtype: of the stored target and drafter.
        neighbours: columns of the neighbour table, at most the number of codes less one.
        neighbour_space: "decoder", codes as the decoder sees them (l2-normalised), or "raw", the stored weights
            (the published table).

    Raises:
        ValueError: anything wrong with the files or settings, one line, before anything is written.
    """
    out = Path(out)
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists: name a new folder or allow overwriting")
    if neighbour_space not in NEIGHBOUR_SPACES:
        raise ValueError(
            f"unknown neighbour space {neighbour_space!r}: choose {' or '.join(NEIGHBOUR_SPACES)}"
        )
    if neighbours < 0:
        raise ValueError(f"{neighbours} neighbours are not valid: give a number >= 0")
    settings = _read_settings(config)
    beside = None if drafter is None else Path(drafter).with_name("config.json")
    if beside is not None and beside.is_file() and "drafter" not in settings:
        settings["drafter"] = _read_json(beside)

    target_config, target_params = convert_gpt(open_tensors(gpt), settings.get("target"), jnp.dtype(dtype))
    parts: dict[str, Any] = {}
    if drafter is not None:
        parts["drafter_config"], parts["drafter_params"] = convert_drafter(
            open_tensors(drafter), settings.get("drafter"), target=target_config, dtype=jnp.dtype(dtype)
        )
    if vq is not None:
        vq_config, vq_params = convert_vq(open_tensors(vq))
        parts["tokenizer_config"], parts["tokenizer_params"] = vq_config, {"params": vq_params}
        parts["codebook"] = make_codebook(vq_config, parts["tokenizer_params"], neighbours, neighbour_space)
    conditioning = "class" if target_config.num_labels else "caption"
    sources = {"gpt": gpt, "vq": vq, "drafter": drafter}
    checkpoint = Checkpoint(
        model=f"LlamaGen, {conditioning}-conditional",
        target_config=target_config,
        target_params=target_params,
        defaults=_DEFAULTS[conditioning]
        | {"top_k": min(_DEFAULTS[conditioning]["top_k"], target_config.vocab_size)},
        metadata={
            "converted_from": {part: Path(file).name for part, file in sources.items() if file is not None},
            "neighbour_space": neighbour_space,
        },
        **parts,
    )
    return save(out, checkpoint, overwrite=overwrite)


def make_codebook(config, params, neighbours: int = NEIGHBOURS, neighbour_space: str = "decoder") -> Codebook:
    """The neighbour table and the codes, as the decoder sees them, of a VQ tokenizer.

    Args:
        config, params: a ``VQConfig`` and ``VQModel`` parameters.
        neighbours: columns of the table, cut to the number of codes less one.
        neighbour_space: "decoder" or "raw"; distances are the decoder's in either.
    """
    codes = jnp.asarray(VQModel(config).apply(params, method="code_vectors"), jnp.float32)
    space = codes if neighbour_space == "decoder" else jnp.asarray(params["params"]["codebook"], jnp.float32)
    table = nearest_codes(space, min(neighbours, config.codebook_size - 1))
    return Codebook(neighbours=np.asarray(table), codes=np.asarray(codes))


def _read_settings(config: str | Path | None) -> dict[str, Mapping[str, Any]]:
    """{"target": ..., "drafter": ...} of a config file, which may hold the target's settings alone."""
    if config is None:
        return {}
    settings = _read_json(Path(config))
    if not set(settings) & set(_CONFIG_PARTS):
        return {"target": settings}
    unknown = sorted(set(settings) - set(_CONFIG_PARTS))
    if unknown:
        raise ValueError(
            f"{config} holds unknown parts {', '.join(unknown)}: give {' and '.join(_CONFIG_PARTS)}"
        )
    return settings


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is not a file: give a JSON file")
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): give a JSON file") from error
    if not isinstance(content, dict):
        raise ValueError(f'{path} holds no JSON object: give one, such as {{"num_heads": 20}}')
    return content
