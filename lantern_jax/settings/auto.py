"""What a pipeline chooses for calls that do not say how to guess, and what it notes about them."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.windows import ACCEPTANCE, WindowPoint, read_acceptance
from lantern_jax.devices.figures import figures_of
from lantern_jax.engine.generation import Statistics
from lantern_jax.engine.programs import spread
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.families.registry import TargetConfig
from lantern_jax.settings.choice import Choice, Known, chosen, keeps_tokens, point_of, slowest, window_knobs
from lantern_jax.settings.costs import NOT_READ, Costs, Sizes, expected_costs
from lantern_jax.settings.notes import Notes, Run
from lantern_jax.settings.recipe import Recipe
from lantern_jax.settings.settings import Settings
from lantern_jax.settings.tuned import CALL, Found, Key, Shelf, steers

# Up to this many pictures are decoded one after the other, with the programs for one, if decoding them together should
# take more than this share of the time: compiling programs for two or four would take longer than many calls gain.
_FEW, _WORTH = 4, 0.9
# How many kinds of calls keep their choice, the most recently used ones: a server's clients may give any temperature.
MOST_KEPT = 64


class Auto:
    """Finds tuned settings for calls, else chooses by the checkpoint's sizes, the devices' figures and notes of runs.

    Args:
        devices: the engine's, [data, model].
        shelf: the tuned settings; notes lie in a folder inside it. With None, nothing is found, chosen or noted; with a
            single file that was asked for by name, nothing is chosen or noted.
    """

    def __init__(self, checkpoint: Checkpoint, recipe: Recipe, devices: np.ndarray, shelf: Shelf | None):
        self._checkpoint, self._recipe, self._devices, self._shelf = checkpoint, recipe, devices, shelf
        self._chooses = shelf is not None and not shelf.named
        # Under the lock: a server checks requests in several threads.
        self._lock = threading.Lock()
        self._choices: OrderedDict[Key, dict[float, Choice]] = OrderedDict()

    def find(self, pictures: int, knobs: Mapping[str, Any], turns: float | None = None) -> Found:
        """Returns what a call gets from tuned settings, else from the choice, with a line that says so or why not.

        Args:
            turns: as in ``slowest``; None for those of this call's pictures alone.
        """
        if self._shelf is None or steers(knobs):
            return Found()
        found = self._shelf.find(partial(self._key, pictures, knobs))
        choice = None if found.file else self.choice(pictures, knobs, turns)
        if choice is None:
            return found
        if 1 < pictures <= _FEW and knobs.get("batch") is None:
            # Only expectations are compared: if just one of the two was timed, that says nothing about which is faster.
            alone, together = (self._expected(count, knobs, turns).pace for count in (1, pictures))
            if together > _WORTH * pictures * alone:
                one = self.find(1, knobs)
                return Found({**one.knobs, "batch": 1}, f"{one.note}; one picture after the other", one.file)
        return Found(choice.way.knobs, "; ".join(filter(None, [choice.words, found.note])))

    def choice(self, pictures: int, knobs: Mapping[str, Any], turns: float | None = None) -> Choice | None:
        """Returns the choice for a call, the same until a call like it is noted; None for one that steers or relaxes.

        Args:
            turns: as for ``find``.
        """
        if not self._chooses or steers(knobs):
            return None
        settings = self._recipe.settings(knobs)
        if not keeps_tokens(settings):
            return None
        key = self._key(pictures, knobs)
        turns, made = turns or pictures / key.batch, self._kept(key)
        if turns not in made:
            known = self.notes(key).known() if key.checkpoint else Known()
            made[turns] = self._chosen(key, settings, known, turns)
        return made[turns]

    def _kept(self, key: Key) -> dict[float, Choice]:
        with self._lock:
            made = self._choices.setdefault(key, {})
            self._choices.move_to_end(key)
            if len(self._choices) > MOST_KEPT:
                self._choices.popitem(last=False)
        return made

    def _expected(self, pictures: int, knobs: Mapping[str, Any], turns: float | None) -> Choice:
        key = self._key(pictures, knobs)
        return self._chosen(key, self._recipe.settings(knobs), Known(), turns or pictures / key.batch)

    def _chosen(self, key: Key, settings: Settings, known: Known, turns: float) -> Choice:
        given = read_acceptance(self._checkpoint.metadata.get(ACCEPTANCE))
        codes = self._checkpoint.target_config.num_codes
        return chosen(
            self.costs(key, settings.batch), given, known, key.batch, codes, point_of(settings), turns
        )

    def noting(
        self, settings: Settings, count: int
    ) -> Callable[[WindowPoint | None, Statistics], None] | None:
        """Returns the function that notes a call of ``count`` pictures; None where nothing is noted, as with batches of
        two sizes, or with a window that guesses differently from the one that would be chosen."""
        key = self._key(count, vars(settings)) if self._chooses else None
        if key is None or not key.checkpoint or count % key.batch or self._guesses_otherwise(settings):
            return None

        def note(point: WindowPoint | None, made: Statistics) -> None:
            if point is not None and made.rounds:
                ms = made.seconds * 1e3 * key.batch / made.tokens
                if point.window:
                    ms *= slowest(key.batch) / slowest(key.batch, count / key.batch)
                self.notes(key).add(Run(point, made.step_compression, ms))
                with self._lock:
                    self._choices.pop(key, None)

        return note

    def _guesses_otherwise(self, settings: Settings) -> bool:
        """Tells whether the window of these settings guesses differently from the same window when it is chosen."""
        point = point_of(settings)
        usual = settings if point is None else self._recipe.settings(window_knobs(point))
        return any(getattr(settings, name) != getattr(usual, name) for name in ("initial", "mixture"))

    def notes(self, key: Key) -> Notes:
        """Returns the notes of the calls with a key."""
        return Notes(self._shelf.place / "notes", key)

    def _key(self, pictures: int, knobs: Mapping[str, Any]) -> Key:
        values = self._recipe.values(knobs, CALL, jax.default_backend())
        return Key.of(self._checkpoint, self._recipe.dtype, values, pictures, self._devices)

    def costs(self, key: Key, most: int) -> Costs:
        """Returns what rounds are expected to cost with the fastest kind of drafter.

        Args:
            most: the most sequences that a program takes; fewer are rounded up to a power of two.
        """
        checkpoint, (groups, parts) = self._checkpoint, self._devices.shape
        dtype, kind = (
            self._recipe.dtype,
            next((kind for kind in DRAFTERS if kind in checkpoint.drafters), None),
        )
        drafters = {} if kind is None else {kind: checkpoint.drafters[kind][1]}
        sizes = sizes_of(checkpoint.target_config, checkpoint.target_params, drafters, dtype, parts)
        # A CPU's devices share its cores.
        shares = self._devices[0, 0].platform == "cpu"
        groups, size = spread(key.batch, groups, most)
        batch = size if shares else size // groups
        figures = figures_of(self._devices, dtype.itemsize >= 4, self._shelf.place.parent)
        return expected_costs(sizes, figures, batch * (1 if key.guidance == 1 else 2))


def sizes_of(
    config: TargetConfig, target: PyTree, drafters: Mapping[str, PyTree], dtype: np.dtype, parts: int = 1
) -> Sizes:
    """Returns the sizes that decide how long passes take on each of the devices that a model is split over.

    Args:
        target, drafters: parameters, or their shapes.
    """
    head, layer = config.dim * config.num_codes * dtype.itemsize, getattr(config, "transformer", None)
    # A family from another package may say less about itself.
    cached = config.dim if layer is None else layer.key_heads * layer.head_dim
    return Sizes(
        _read(target, dtype) // parts,
        {kind: (_read(params, dtype) + head) // parts for kind, params in drafters.items()},
        dtype.itemsize, config.num_layers, cached // parts, config.num_tokens,
    )  # fmt: skip


def _read(params: PyTree, dtype: np.dtype) -> int:
    """Returns the bytes of parameters that a pass reads: eight-bit ones as they are, all others in ``dtype``."""
    return sum(
        math.prod(leaf.shape) * (1 if np.dtype(leaf.dtype).itemsize == 1 else dtype.itemsize)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if not any(getattr(key, "key", None) in NOT_READ for key in path)
    )
