"""A drafter that trains in seconds, for tests and for trying the scripts.

python -m train.drafter --config configs/tiny_drafter.py --target runs/tiny/target \\
    --features runs/tiny/features --workdir runs/tiny/drafter
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "seed": 0,
            "steps": 80,
            "batch_size": 8,
            "log_every": 10,
            "save_every": 20,
            "keep": 2,
            "rate": 0.02,
            "adam_rate": 3e-3,
            "warmup": 5,
            "clip": 1.0,
            "average": 0.9,
            "noise": 0.1,
            "passes": 2,
            "pass_weight": 0.8,
            "guidance": 2.0,
            "loss": "cross_entropy",
            "start_from": "",
            "feature_weight": 1.0,
            "token_weight": 0.1,
            "guided_weight": 0.1,
            "model": {"num_heads": 2, "hidden_dim": 64},
        }
    )
