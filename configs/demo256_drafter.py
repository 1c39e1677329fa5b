"""The next demo's drafter: the released one's layer, which starts with the target's table of 4096 codes.

python -m train.drafter --config configs/demo256_drafter.py --target runs/demo256/target \\
    --features runs/demo256/features --workdir runs/demo256/drafter
"""

from ml_collections import ConfigDict

from configs import demo_drafter


def get_config() -> ConfigDict:
    config = demo_drafter.get_config()
    config.update({"steps": 800, "embedding_from_target": True})
    return config
