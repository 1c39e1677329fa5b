"""Whether a config's sizes can be those of the arrays beside it, by counting: a model of a million layers is refused
before anything is made of it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from lantern_jax import errors

# Fields that count modules, and how many arrays of its own each has at least.
_MODULES, _ARRAYS = ("num_layers", "encoder_blocks", "decoder_blocks"), 4
# So many arrays are soon described, and then named one by one where they do not fit.
_FEW = 200
# Arrays larger than their files by more than this, and than this many bytes, are no trained model's.
_COMPRESSION, _SMALL = 1000, 1 << 30


def check_counts(path: Path, part: str, config: Any, arrays: PyTree) -> None:
    """Raises ValueError where a config counts more modules than there are arrays.

    Args:
        path: of the config, for the error.
        arrays: the part's, anything in their place.
    """
    count = len(jax.tree.leaves(arrays))
    for name in _MODULES:
        given = getattr(config, name, 0)
        if given * _ARRAYS > max(count, _FEW):
            why = f"{name} {given} does not fit the {count} arrays there are"
            raise ValueError(f"{path}: {part}: {why}; convert the checkpoint again")


def check_room(directory: Path, shapes: PyTree, sizes: Mapping[str, int]) -> None:
    """Raises ValueError where arrays would fill more memory than any that files of these sizes were written from.

    Args:
        shapes: what the files say they hold.
        sizes: bytes of the files.
    """
    wanted = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    if wanted > max(_SMALL, _COMPRESSION * sum(sizes.values())):
        raise errors.damaged(
            directory, f"{sum(sizes.values())} bytes of files hold no arrays of {wanted} bytes"
        )
