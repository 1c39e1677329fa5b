"""A classifier that trains in seconds, for tests and for trying the scripts.

python -m train.classifier --config configs/tiny_classifier.py --tokenizer runs/tiny/tokenizer \\
    --workdir runs/tiny/classifier
"""

from ml_collections import ConfigDict

from configs import demo_classifier


def get_config() -> ConfigDict:
    config = demo_classifier.get_config()
    config.update({"size": 32, "pictures": 128, "held_out": 32, "steps": 40, "batch_size": 16})
    config.update({"save_every": 20, "warmup": 5, "shift": 1})
    return config
