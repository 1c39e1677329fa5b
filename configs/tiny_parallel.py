"""A parallel drafter that trains in seconds, for tests and for trying the scripts.

python -m train.drafter --config configs/tiny_parallel.py --target runs/tiny/target \\
    --features runs/tiny/features --workdir runs/tiny/parallel
"""

from ml_collections import ConfigDict

from configs import demo_parallel


def get_config() -> ConfigDict:
    config = demo_parallel.get_config()
    config.update({"steps": 40, "batch_size": 8, "scored": 1.0, "passes": 3})
    config.update({"save_every": 20, "warmup": 5, "average": 0.9})
    config.model.update({"num_heads": 2, "hidden_dim": 64, "masks": 2, "markov_rank": 8})
    return config
