"""A target that trains in seconds, for tests and for trying the scripts.

python -m train.target --config configs/tiny_target.py --tokens runs/tiny/tokens --workdir runs/tiny/target
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "seed": 0,
            "steps": 120,
            "batch_size": 8,
            "log_every": 10,
            "save_every": 30,
            "keep": 2,
            "validation": 16,
            "rate": 0.02,
            "adam_rate": 4e-3,
            "warmup": 5,
            "clip": 1.0,
            "average": 0.9,
            "drop_all": 0.1,
            "drop_one": 0.15,
            "model": {
                "dim": 32,
                "num_layers": 2,
                "num_heads": 2,
                "vocab_size": 64,
                "grid": 4,
                "hidden_dim": 64,
                "num_labels": 20,
                "label_slots": 4,
                "qk_norm": "rms",
                "rotate_prefix": True,
            },
        }
    )
