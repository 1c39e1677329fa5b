"""Medusa heads for the demo: five of one block each, the target's own head behind them, and a Markov term.

python -m train.drafter --config configs/demo_medusa.py --target runs/demo/target \\
    --features runs/demo/features --workdir runs/demo/medusa
"""

from ml_collections import ConfigDict

from configs import demo_drafter


def get_config() -> ConfigDict:
    config = demo_drafter.get_config()
    config.update({"scored": 0.5, "steps": 3000, "passes": 5, "noise": 0.0})
    # Adam trains all parameters. Heads predict no features.
    config.update({"rate": 0.0, "feature_weight": 0.0, "token_weight": 0.3, "guided_weight": 1.0})
    config.update({"kind": "medusa", "embedding_from_target": False, "frozen": ()})
    config.model = ConfigDict({"heads": 5, "layers": 1, "shared_head": True, "markov_rank": 64})
    return config
