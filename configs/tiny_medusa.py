"""Medusa heads that train in seconds, for tests and for trying the scripts.

python -m train.drafter --config configs/tiny_medusa.py --target runs/tiny/target \\
    --features runs/tiny/features --workdir runs/tiny/medusa
"""

from ml_collections import ConfigDict

from configs import demo_medusa


def get_config() -> ConfigDict:
    config = demo_medusa.get_config()
    config.update({"steps": 40, "batch_size": 8, "scored": 1.0, "passes": 2})
    config.update({"save_every": 20, "warmup": 5, "average": 0.9})
    config.model.update({"heads": 2, "markov_rank": 8})
    return config
