"""Whether a config's sizes can be those of the arrays beside it, by counting: a model of a million layers is refused
before anything is made of it.
"""

from pathlib import Path
from typing import Any

from lantern_jax.io.errors import LanternError

# Fields that count modules, and how many arrays of its own each has at least.
_MODULES, _ARRAYS = ("num_layers", "encoder_blocks", "decoder_blocks"), 4
# So many arrays are soon described, and then named one by one where they do not fit.
_FEW = 200


def check_counts(path: Path, part: str, config: Any, count: int) -> None:
    """Raises ValueError where a config counts more modules than there are arrays.

    Args:
        path: of the config, for the error.
        count: how many arrays the part has.
    """
    for name in _MODULES:
        given = getattr(config, name, 0)
        if given * _ARRAYS > max(count, _FEW):
            why = f"{name} {given} does not fit the {count} arrays there are"
            raise LanternError(f"{path}: {part}: {why}; convert the checkpoint again")
