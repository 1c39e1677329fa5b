"""Converts Medusa's released heads (``medusa_lm_head.pt``, FasterDecoding/Medusa) to our parameter tree.

Head i is a list: its residual blocks ``i.0.linear`` to ``i.{layers - 1}.linear``, each a weight [D, D] and a bias, then
``i.{layers}.weight`` [V, D]. In a whole model's checkpoint the names begin with ``medusa_head.`` and stand among those
of the target's tensors, which are not read. The ``config.json`` beside the released heads is not read either: it
mentions two heads where the file holds more.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.io.errors import LanternError
from lantern_jax.models.chameleon import ChameleonConfig
from lantern_jax.models.llamagen import LlamaGenConfig
from lantern_jax.models.medusa import MedusaConfig
from lantern_jax.tensors.layer_names import normalize_settings, one_more
from lantern_jax.tensors.matching import Entry, read_tensors, reordered_rows, transpose

# Limit on heads, and on layers per head: published sets have five of the former and one of the latter.
_MOST = 64
_PREFIX = re.compile(r"medusa_heads?\.")


def convert_medusa(
    tensors: Mapping[str, np.ndarray],
    config: MedusaConfig | Mapping[str, Any] | None = None,
    *,
    target: LlamaGenConfig | ChameleonConfig,
    order: Int[np.ndarray, " vocab"] | None = None,
    **reading: Any,
) -> tuple[MedusaConfig, dict[str, Any]]:
    """Converts tensors to the config and ``{"params": ...}`` of released heads.

    Args:
        tensors: {name: array}.
        config: the heads' config, or a mapping of its fields, which must match the tensors.
        target: the model they draft for.
        order: published id of every row of the target's table, if they differ; the codes' come first.
        reading: ``dtype`` and ``progress`` of ``read_tensors``.

    Raises:
        ValueError: as ``read_tensors``; also heads whose width or vocabulary is not the target's.
    """
    if any(map(_PREFIX.match, tensors)):
        tensors = {_PREFIX.sub("", name, 1): tensors[name] for name in filter(_PREFIX.match, tensors)}
    if not isinstance(config, MedusaConfig):
        config = medusa_config_from_names(tensors, config, target)
    published = target.num_codes if order is None else len(order)
    codes = None if order is None else order[: target.num_codes]
    table = medusa_table(config, published, codes)
    params = read_tensors(tensors, table, what="set of Medusa heads", **reading)
    return config, {"params": params}


def medusa_config_from_names(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None, target: LlamaGenConfig | ChameleonConfig
) -> MedusaConfig:
    """Infers the config of heads from the names of their tensors and their target."""
    places = [match.groups() for name in tensors if (match := re.fullmatch(r"(\d+)\.(\d+)\..+", name))]
    if not places:
        raise LanternError("these tensors are not a set of Medusa heads: no name is like 0.0.linear.weight")
    heads, layers = (one_more((place[part] for place in places), _MOST) for part in (0, 1))
    found = {
        "dim": target.dim,
        "vocab_size": target.vocab_size,
        "num_codes": target.num_codes,
        "heads": heads,
        "layers": layers - 1,
    }
    return MedusaConfig(**found | normalize_settings(settings or {}, MedusaConfig))


def medusa_table(
    config: MedusaConfig, vocab_size: int, codes: Int[np.ndarray, " V"] | None = None
) -> dict[str, Entry]:
    """Lists {published name: Entry} of heads with ``vocab_size`` rows, of which ``codes`` are taken; None takes all."""
    table, rows, width = {}, reordered_rows(codes), config.dim
    blocks = (config.heads, config.layers, width)
    heads = (config.heads, width, vocab_size if codes is None else len(codes))

    def turned(tensor: np.ndarray) -> np.ndarray:
        return transpose(rows(tensor))

    for i in range(config.heads):
        for layer in range(config.layers):
            name = f"{i}.{layer}.linear"
            whole = (*blocks, width)
            table[f"{name}.weight"] = Entry(("kernel",), (width, width), transpose, whole, (i, layer))
            table[f"{name}.bias"] = Entry(("bias",), (width,), whole=blocks, index=(i, layer))
        table[f"{i}.{config.layers}.weight"] = Entry(("heads",), (vocab_size, width), turned, heads, (i,))
    return table
