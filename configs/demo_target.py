"""The demo's target: 12 layers of 256, four labels in front, 16x16 codes out of 1024.

python -m train.target --config configs/demo_target.py --tokens runs/demo/tokens --workdir runs/demo/target
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "seed": 0,
            "steps": 1200,
            "batch_size": 16,
            "log_every": 10,
            "save_every": 100,
            "keep": 2,
            "validation": 64,
            "rate": 0.02,
            "adam_rate": 4e-3,
            "warmup": 50,
            "clip": 1.0,
            "average": 0.99,
            "drop_all": 0.1,
            "drop_one": 0.15,
            "model": {
                "dim": 256,
                "num_layers": 12,
                "num_heads": 4,
                "vocab_size": 1024,
                "grid": 16,
                "hidden_dim": 688,
                "num_labels": 20,
                "label_slots": 4,
                "qk_norm": "rms",
                "rotate_prefix": True,
            },
        }
    )
