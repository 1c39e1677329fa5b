"""The demo's drafter: one layer of width 256 that predicts the target's features and reads codes by its table.

python -m train.drafter --config configs/demo_drafter.py --target runs/demo/target \\
    --features runs/demo/features --workdir runs/demo/drafter
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "seed": 0,
            "steps": 2000,
            "batch_size": 16,
            "log_every": 10,
            "save_every": 50,
            "keep": 2,
            "rate": 0.02,
            "adam_rate": 3e-3,
            "warmup": 40,
            "clip": 1.0,
            "average": 0.99,
            "noise": 0.1,
            "passes": 2,
            "pass_weight": 0.8,
            # The share of positions whose logits are computed.
            "scored": 1.0,
            "guidance": 3.0,
            "loss": "cross_entropy",
            "start_from": "",
            "embedding_from_target": True,
            "frozen": ("tokens",),
            "feature_weight": 1.0,
            "token_weight": 0.3,
            "guided_weight": 0.7,
            "model": {"num_heads": 4, "hidden_dim": 688},
        }
    )
