"""The demo's classifier of landscapes, for caption agreement and features: 256 px pictures, eight attributes.

python -m train.classifier --config configs/demo_classifier.py --workdir runs/demo/classifier
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "size": 256,
            # As many as it takes to learn auroras and rainbows, which are in few of them.
            "pictures": 6144,
            "held_out": 512,
            "data_seed": 20,
            "seed": 0,
            "steps": 1400,
            "batch_size": 64,
            "log_every": 20,
            "save_every": 100,
            "keep": 2,
            "rate": 2e-3,
            "warmup": 40,
            "decay": 0.02,
            "clip": 1.0,
            "shift": 8,
            "gain": 0.06,
            "offset": 0.04,
        }
    )
