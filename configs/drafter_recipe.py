"""The recipe that the drafters of published models share; each has a config of its own with the commands.

EAGLE's (arXiv 2401.15077): one layer of the target's shape, Adam at 1e-4, smooth-L1 of the features plus 0.1 times the
cross-entropy, uniform noise of 0.1. The loss on the guided distributions has weight 0.1, and the drafter's token table
starts as the target's.
"""

from typing import Any

from ml_collections import ConfigDict


def published_drafter(**changes: Any) -> ConfigDict:
    """Returns the recipe with a target's own settings; `model` is num_heads, hidden_dim and, for Chameleon, qk_norm."""
    recipe = {
        "seed": 0,
        "steps": 40000,
        "batch_size": 16,
        "log_every": 50,
        "save_every": 1000,
        "keep": 2,
        # Adam on all parameters.
        "rate": 0.0,
        "adam_rate": 1e-4,
        "warmup": 1000,
        "clip": 0.5,
        "average": 0.999,
        "noise": 0.1,
        "passes": 2,
        "pass_weight": 0.8,
        # The share of positions whose logits are computed: these take most of the memory if there are many codes.
        "scored": 1.0,
        "loss": "cross_entropy",
        "start_from": "",
        "feature_weight": 1.0,
        "token_weight": 0.1,
        "guided_weight": 0.1,
        "embedding_from_target": True,
        "frozen": (),
        "dtype": "float32",
    }
    return ConfigDict(recipe | changes)
