"""Draftings: where guesses come from.

``Tree``, ``Dynamic``, ``Led``, ``Jacobi``, ``ZipAR`` and ``Plain`` are records that a method names, as in
``drafting="led:nodes=5"``; ``eagle``, ``jacobi`` and ``led_window`` return a ``Drafting`` for ``speculative_decode``.
"""

from lantern_jax.decoding.drafting.draft_model import drafter_from_target
from lantern_jax.decoding.drafting.eagle import Drafter, Dynamic, Tree, eagle
from lantern_jax.decoding.drafting.growing import DynamicTree
from lantern_jax.decoding.drafting.guessing import Guessing
from lantern_jax.decoding.drafting.jacobi import Jacobi, jacobi
from lantern_jax.decoding.drafting.led import Led, led_window
from lantern_jax.decoding.drafting.plain import Plain
from lantern_jax.decoding.drafting.window import Window
from lantern_jax.decoding.echo import Echo
from lantern_jax.decoding.gap_tree import GapTree
from lantern_jax.decoding.topology import topology_of
from lantern_jax.decoding.tree import tree_names
from lantern_jax.decoding.zipar import Rows, ZipAR

__all__ = [
    "Drafter",
    "Dynamic",
    "DynamicTree",
    "Echo",
    "GapTree",
    "Guessing",
    "Jacobi",
    "Led",
    "Plain",
    "Rows",
    "Tree",
    "Window",
    "ZipAR",
    "drafter_from_target",
    "eagle",
    "jacobi",
    "led_window",
    "topology_of",
    "tree_names",
]
