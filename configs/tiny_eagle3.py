"""An EAGLE-3 drafter that trains in seconds, for tests and for trying the scripts.

python -m train.drafter --config configs/tiny_eagle3.py --target runs/tiny/target \\
    --features runs/tiny/features --workdir runs/tiny/eagle3
"""

from ml_collections import ConfigDict

from configs import demo_eagle3


def get_config() -> ConfigDict:
    config = demo_eagle3.get_config()
    config.update({"steps": 40, "batch_size": 8, "scored": 1.0, "passes": 2})
    config.update({"save_every": 20, "warmup": 5, "average": 0.9})
    config.model.update({"num_heads": 2, "hidden_dim": 64, "taps": (0, 1)})
    return config
