"""The demo's target: 12 layers of width 256, eight labels in front, 16x16 codes out of 4096.

python -m train.target --config configs/demo_target.py --tokens runs/demo/tokens --workdir runs/demo/target

11.6 million parameters, two million of them the codes' table and head. An H200 makes 50 steps per second, two cores one
step in 13 seconds: `--config.steps=4500 --config.batch_size=16` makes a coarser target in four hours.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "seed": 0,
            # As in the tokenizer's config.
            "dtype": "auto",
            "steps": 7000,
            "batch_size": 64,
            "log_every": 10,
            "save_every": 250,
            "keep": 2,
            "validation": 256,
            "rate": 0.02,
            "adam_rate": 4e-3,
            "warmup": 200,
            "clip": 1.0,
            "average": 0.999,
            "drop_all": 0.1,
            "drop_one": 0.15,
            "model": {
                "dim": 256,
                "num_layers": 12,
                "num_heads": 4,
                "vocab_size": 4096,
                "grid": 16,
                "hidden_dim": 688,
                "qk_norm": "rms",
                "rotate_prefix": True,
            },
        }
    )
