"""A checkpoint's parameters as an engine asks for them: in the dtype of the call, straight onto its devices."""

import jax
import numpy as np
from jaxtyping import PyTree

from lantern_jax.checkpoints.checkpoint import Checkpoint, are_shapes
from lantern_jax.checkpoints.store import load, load_drafter
from lantern_jax.devices.partition import Where, place
from lantern_jax.engine.programs import Parameters
from lantern_jax.families.registry import family_of
from lantern_jax.models.quantization import is_fixed


def read_parameters(checkpoint: Checkpoint, dtype: np.dtype, where: Where) -> Parameters:
    """Reads a checkpoint's parameters by their role in decoding, without drafters; the tokenizer's are float32.

    The engine holds this function, not its pipeline: a cycle would keep parameters in memory until Python collects it.
    """
    if are_shapes(checkpoint.target_params):
        checkpoint = load(checkpoint.directory, dtype, where, drafters=())
    target = _cast(checkpoint.target_params, dtype)
    tokenizer = _cast(checkpoint.tokenizer_params, np.dtype("float32"))
    return Parameters(target, {}, tokenizer, checkpoint.codebook)


def read_drafter(
    checkpoint: Checkpoint, dtype: np.dtype, kind: str, parameters: Parameters, where: Where
) -> PyTree:
    """Reads the parameters of a kind of drafter, with the target's head; arguments as ``Engine`` gives them."""
    drafter = place(load_drafter(checkpoint, kind, dtype, where), where)
    head = family_of(checkpoint.target_config).head(parameters.target)
    return {"drafter": _cast(drafter, dtype), "head": head}


def _cast(params: PyTree, dtype: np.dtype) -> PyTree:
    def cast(path: tuple, leaf):
        return leaf if leaf.dtype == dtype or is_fixed(path, leaf.dtype) else leaf.astype(dtype)

    return jax.tree_util.tree_map_with_path(cast, params)
