"""A parallel drafter for the demo: the EAGLE drafter's layer, seven masks and a Markov term.

python -m train.drafter --config configs/demo_parallel.py --target runs/demo/target \\
    --features runs/demo/features --workdir runs/demo/parallel
"""

from ml_collections import ConfigDict

from configs import demo_drafter


def get_config() -> ConfigDict:
    config = demo_drafter.get_config()
    config.update({"scored": 0.5, "steps": 3000, "passes": 8, "noise": 0.05})
    config.update({"feature_weight": 0.3, "token_weight": 0.1, "guided_weight": 1.0})
    # Roots trained at depth d: a share of 0.7^d, at least a fifth (P-EAGLE).
    config.anchors_kept, config.anchors_least = 0.7, 0.2
    config.kind = "parallel"
    config.model.masks, config.model.markov_rank = 7, 32
    return config
