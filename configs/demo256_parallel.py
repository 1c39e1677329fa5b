"""A parallel drafter for the next demo: the released one's, trained without an EAGLE drafter to start from.

python -m train.drafter --config configs/demo256_parallel.py --target runs/demo256/target \\
    --features runs/demo256/features --workdir runs/demo256/parallel
"""

from ml_collections import ConfigDict

from configs import demo_drafter, demo_parallel


def get_config() -> ConfigDict:
    config, beginning = demo_parallel.get_config(), demo_drafter.get_config()
    config.update({"steps": 1000, "rate": beginning.rate, "adam_rate": beginning.adam_rate})
    config.embedding_from_target = True
    return config
