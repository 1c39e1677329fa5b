"""The next demo's target: 12 layers of 256, the painter's eight labels in front, 16x16 codes out of 4096.

python -m train.target --config configs/demo256_target.py --tokens runs/demo256/tokens --workdir runs/demo256/target

11.6 million parameters, two of them the codes' table and head. A step takes 6.3 s of one core's time, so that 3600 of
them are three hours of two cores that are free; 3.8 GB of memory.
"""

from ml_collections import ConfigDict

from configs import demo_target
from train.painter.vocabulary import LANDSCAPES


def get_config() -> ConfigDict:
    config = demo_target.get_config()
    config.update({"steps": 3600, "validation": 256})
    labels = {"num_labels": LANDSCAPES.num_labels, "label_slots": LANDSCAPES.num_attributes}
    config.model.update({"vocab_size": 4096} | labels)
    return config
