"""Methods: named combinations of drafting, coupling and acceptance rule.

A method fixes some knobs of a generation. The other knobs, and fixed ones that the caller gives, are as without it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# The method of a call that names none, and of one that names a tree or a coupling.
AUTO, TREES_METHOD = "auto", "gumbel"


@dataclass(frozen=True)
class Method:
    """A named combination.

    Attributes:
        help: one line: its idea and its promise.
        knobs: the knobs it fixes, by name; a value may differ by platform: {"cpu": ..., "gpu": ...}; TPUs without an
            entry of their own use the GPUs'.

    Example:
        >>> lantern_jax.methods()["ar"]
        Method(help='plain autoregressive decoding, a token per pass', knobs={'tree': 'none'})
    """

    help: str
    knobs: Mapping[str, Any]


_STRICT = {"rule": "strict", "coupling": "gumbel"}
_REJECTION = {"rule": "strict", "coupling": "rejection"}
_DYNAMIC = {"tree": "dynamic", "ranking": "probability", "frontier": 10, "children": 10,
            "nodes": {"cpu": 16, "gpu": 58, "tpu": 26}}  # fmt: skip
_HEADS = {"drafting": "medusa", "coupling": "gumbel", "tree": {"cpu": "chain", "gpu": "medusa_2_7b_63"}}
_WINDOW = {"drafting": "jacobi", "coupling": "rejection", "branches": 1, "levels": 0}

_METHODS = {
    AUTO: Method("plain decoding, jacobi or led, whichever should be fastest here", {}),
    "ar": Method("plain autoregressive decoding, a token per pass", {"tree": "none"}),
    "gumbel": Method(
        "noise shared by drafter and target: exactly plain decoding's tokens (in float32)",
        _STRICT,
    ),
    # Few nodes where each one costs, many where a pass costs no more than a step. By its compiler's account, a TPU v5e
    # is done with 32 nodes of LlamaGen-XL by the time it has read the weights (docs/scale.md).
    "led": Method(
        "a window of the target's latest predictions, refined by a drafter: plain decoding's tokens",
        _STRICT | {"drafting": "led", "nodes": {"cpu": 7, "gpu": 56, "tpu": 25}, "refine": {"cpu": 1, "gpu": 3},
                   "sharpness": 2.83},
    ),
    "echo": Method(
        "gumbel, with trees grown by the gaps of the race and memory of refused nodes",
        _STRICT | {"tree": "dynamic", "ranking": "gap", "echo": "on"},
    ),
    "jacobi": Method(
        "no drafter: a window of the target's latest predictions on the shared noise, plain decoding's tokens",
        _STRICT | {"drafting": "jacobi", "nodes": {"cpu": 4, "gpu": 56, "tpu": 31}},
    ),
    "lantern-g": Method(
        "LANTERN++'s rule on shared noise", {"rule": "lantern++", "coupling": "gumbel"}
    ),
    "near": Method(
        "a code stands in for one within tau of it, on shared noise", {"rule": "near", "coupling": "gumbel"}
    ),
    "eagle": Method(
        "EAGLE's accept tests with residuals on a static tree: the target's own distribution", _REJECTION
    ),
    "eagle2": Method(
        "EAGLE-2: a tree grown by the drafter's probabilities, tokens tested as point masses",
        _REJECTION | _DYNAMIC | {"depth": 6},
    ),
    "ddd": Method(
        "EAGLE-2 with a depth that follows the drafter's confidence",
        _REJECTION | _DYNAMIC | {"depth": 11, "threshold": 0.05},
    ),
    "eagle3": Method(
        "EAGLE-3: a drafter of several layers' features, trained on tokens", _REJECTION | {"drafting": "eagle3"}
    ),
    "lantern": Method(
        "LANTERN as published: EAGLE-2's tree, neighbours of a code lend it up to delta",
        _DYNAMIC | {"rule": "lantern", "coupling": "rejection", "depth": 5, "residual": "published"},
    ),
    "lantern++": Method(
        "LANTERN++: a static tree, neighbours lend up to lam - 1 times a code's own probability",
        {"rule": "lantern++", "coupling": "rejection"},
    ),
    "medusa": Method(
        "Medusa: heads on the target's feature, and every typical code is accepted",
        _HEADS | {"rule": "typical"},
    ),
    "vadusa": Method(
        "VADUSA: Medusa's heads, and a tolerance of several samples of the target",
        _HEADS | {"rule": "tolerance"},
    ),
    "parallelspec": Method(
        "ParallelSpec: all levels of the tree from one pass of the drafter", _REJECTION | {"drafting": "parallel"}
    ),
    "cool": Method(
        "Cool-SD: early drafts relaxed, late ones tightened, with the optimal residual",
        {"rule": "cool", "coupling": "rejection", "tree": "chain"},
    ),
    "block": Method(
        "block verification: a chain is tested as a whole, the target's own distribution",
        {"rule": "strict", "coupling": "block", "tree": "chain"},
    ),
    "sjd": Method(
        "speculative Jacobi decoding: a window of independent redraws, the target's own distribution",
        _WINDOW | {"rule": "strict", "redraw": "independent", "initial": "random"},
    ),
    "scd": Method(
        "coupled Jacobi decoding: a guess stays unless the target moved, the target's own distribution",
        _WINDOW | {"rule": "strict", "redraw": "maximal", "initial": "left", "window": {"cpu": 16, "gpu": 32}},
    ),
    "gsd": Method(
        "grouped speculative decoding: SJD's window, a code is tested with codes of similar probability",
        _WINDOW | {"rule": "gsd", "redraw": "independent", "initial": "random"},
    ),
    "pac": Method(
        "SJD-PAC: several guesses in front of a coupled window, the target's own distribution",
        _WINDOW | {"rule": "strict", "redraw": "maximal", "initial": "left", "branches": 3, "levels": 2,
                   "window": {"cpu": 16, "gpu": 32}},
    ),
    "zipar": Method(
        "ZipAR: rows of the picture in parallel; not lossless", {"drafting": "zipar"}
    ),
}  # fmt: skip


def methods() -> Mapping[str, Method]:
    """Returns the methods by name.

    Example:
        >>> "led" in lantern_jax.methods()
        True
        >>> lantern_jax.methods()["block"].knobs
        {'rule': 'strict', 'coupling': 'block', 'tree': 'chain'}
    """
    return MappingProxyType(_METHODS)


def auto_method(drafters: Collection[str]) -> str:
    """Returns the strict method that ``auto`` stands for, given the kinds of drafters at hand."""
    return "led" if drafters else "jacobi"
