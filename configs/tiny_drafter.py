"""A drafter that trains in seconds, for tests and for trying the scripts.

python -m train.drafter --config configs/tiny_drafter.py --target runs/tiny/target \\
    --features runs/tiny/features --workdir runs/tiny/drafter
"""

from ml_collections import ConfigDict

from configs import demo_drafter


def get_config() -> ConfigDict:
    config = demo_drafter.get_config()
    config.update({"steps": 80, "batch_size": 8, "save_every": 20, "warmup": 5, "average": 0.9})
    config.update({"token_weight": 0.1, "guided_weight": 0.1, "model": {"num_heads": 2, "hidden_dim": 64}})
    return config
