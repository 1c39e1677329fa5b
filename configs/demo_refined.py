"""The demo's drafter trained on: three passes, guided distributions above all, which is what drafts are drawn from.

python -m train.drafter --config configs/demo_refined.py --target runs/demo/export \\
    --features runs/demo/features --workdir runs/demo/refined --config.start_from=runs/demo/export

Forty steps of 8 at a rate of 5e-3 from the shipped drafter lose 0.006 of J at depth 0 with the cross-entropy and 0.010
with `coupled`, whose noise costs more than its aim is worth; 240 steps win 0.004 there and 0.012 at depth 4.
"""

from ml_collections import ConfigDict

from configs import demo_drafter


def get_config() -> ConfigDict:
    config = demo_drafter.get_config()
    config.update({"steps": 600, "passes": 3, "noise": 0.05})
    config.update({"rate": 4e-3, "adam_rate": 6e-4, "feature_weight": 0.3, "token_weight": 0.0})
    config.guided_weight = 1.0
    return config
