"""An EAGLE-3 drafter for the next demo, as the released one's.

python -m train.features --target runs/demo256/target --tokens runs/demo256/tokens \\
    --workdir runs/demo256/features --taps=2,6,9,12
python -m train.drafter --config configs/demo256_eagle3.py --target runs/demo256/target \\
    --features runs/demo256/features --workdir runs/demo256/eagle3
"""

from ml_collections import ConfigDict

from configs import demo_eagle3


def get_config() -> ConfigDict:
    config = demo_eagle3.get_config()
    config.steps = 800
    return config
