"""What a pipeline chooses for calls that say nothing of how to guess, and what it notes of them."""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.devices.figures import figures_of
from lantern_jax.engine.generation import Statistics
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.settings.choice import Choice, Known, WindowPoint, chosen, read_acceptance
from lantern_jax.settings.costs import Costs, Sizes, expected_costs
from lantern_jax.settings.notes import Notes, Run
from lantern_jax.settings.tuned import Key

# Entry of a checkpoint's metadata: tokens per pass by window, measured with the defaults of its sampling distribution.
ACCEPTANCE = "tokens_per_pass"


class Auto:
    """Chooses by a checkpoint's sizes, its devices' figures, and notes of runs.

    Args:
        devices: an engine's, [data, model].
        place: the folder of tuned settings; notes lie in one inside it.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: Any, devices: np.ndarray, place: Path):
        self._checkpoint, self._devices, self._place = checkpoint, devices, place
        self._dtype = np.dtype(dtype)
        self._choices: dict[Key, Choice] = {}

    def choose(self, key: Key) -> Choice:
        """Returns the choice for strict calls of a key; the same until one of them was noted."""
        if key not in self._choices:
            values = self._checkpoint.metadata.get(ACCEPTANCE)
            codes = self._checkpoint.target_config.num_codes
            known = self.notes(key).known() if key.checkpoint else Known()
            self._choices[key] = chosen(self.costs(key), read_acceptance(values), known, key.batch, codes)
        return self._choices[key]

    def notes(self, key: Key) -> Notes:
        """Returns the notes of calls of a key."""
        return Notes(self._place / "notes", key)

    def note(self, key: Key, point: WindowPoint | None, made: Statistics) -> None:
        """Notes a call with a window, None for anything else, whose batches were all of the key's size."""
        if point is not None and key.checkpoint and made.rounds:
            self.notes(key).add(
                Run(point, made.step_compression, made.seconds * 1e3 * key.batch / made.tokens)
            )
            self._choices.pop(key, None)

    def costs(self, key: Key) -> Costs:
        """Returns what rounds should cost with the fastest kind of drafter."""
        checkpoint, (groups, parts) = self._checkpoint, self._devices.shape
        config, dtype = checkpoint.target_config, self._dtype
        kind = next((kind for kind in DRAFTERS if kind in checkpoint.drafters), None)
        head = config.dim * config.num_codes * dtype.itemsize
        drafters = (
            {} if kind is None else {kind: (_bytes(checkpoint.drafters[kind][1], dtype) + head) // parts}
        )
        sizes = Sizes(
            _bytes(checkpoint.target_params, dtype) // parts, drafters, dtype.itemsize,
            config.num_layers, config.dim // parts, config.num_tokens,
        )  # fmt: skip
        # A CPU's devices share its cores.
        shares = self._devices[0, 0].platform == "cpu"
        batch = key.batch if shares else math.ceil(key.batch / groups)
        figures = figures_of(self._devices, dtype.itemsize >= 4, self._place.parent)
        return expected_costs(sizes, figures, batch * (1 if key.guidance == 1 else 2))


def _bytes(params: PyTree, dtype: np.dtype) -> int:
    """Returns the bytes that parameters take on a device: of a dtype, or as they are in eight bits."""
    return sum(
        math.prod(leaf.shape) * min(np.dtype(leaf.dtype).itemsize, dtype.itemsize)
        for leaf in jax.tree.leaves(params)
    )
