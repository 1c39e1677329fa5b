"""A target that trains in seconds, for tests and for trying the scripts.

python -m train.target --config configs/tiny_target.py --tokens runs/tiny/tokens --workdir runs/tiny/target
"""

from ml_collections import ConfigDict

from configs import demo_target


def get_config() -> ConfigDict:
    config = demo_target.get_config()
    config.update({"dtype": "float32", "steps": 120, "batch_size": 8, "save_every": 30, "validation": 16})
    config.update({"warmup": 5, "average": 0.9})
    config.model.update(
        {"dim": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 64, "grid": 4, "hidden_dim": 64}
    )
    return config
