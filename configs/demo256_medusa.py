"""Medusa heads for the next demo, as the released one's.

python -m train.drafter --config configs/demo256_medusa.py --target runs/demo256/target \\
    --features runs/demo256/features --workdir runs/demo256/medusa
"""

from ml_collections import ConfigDict

from configs import demo_medusa


def get_config() -> ConfigDict:
    config = demo_medusa.get_config()
    config.steps = 800
    return config
