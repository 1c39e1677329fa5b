"""The next demo's classifier: 256 px pictures, the painter's eight attributes.

python -m train.classifier --config configs/demo256_classifier.py --tokenizer runs/demo256/tokenizer \\
    --workdir runs/demo256/classifier
"""

from ml_collections import ConfigDict

from configs import demo_classifier


def get_config() -> ConfigDict:
    config = demo_classifier.get_config()
    # Twice the pictures, as an aurora or a rainbow is in few of them.
    config.update({"vocabulary": "painter", "size": 256, "pictures": 6144, "steps": 800, "shift": 8})
    return config
