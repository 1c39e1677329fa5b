"""An EAGLE-3 drafter for the demo: the inputs of layers 2, 6 and 9, and a loss on tokens over four steps.

python -m train.features --target runs/demo/target --tokens runs/demo/tokens --workdir runs/demo/features \\
    --taps=2,6,9,12
python -m train.drafter --config configs/demo_eagle3.py --target runs/demo/target \\
    --features runs/demo/features --workdir runs/demo/eagle3
"""

from ml_collections import ConfigDict

from configs import demo_drafter


def get_config() -> ConfigDict:
    config = demo_drafter.get_config()
    config.update({"scored": 0.5, "steps": 3000, "passes": 4, "noise": 0.0})
    config.update({"feature_weight": 0.0, "token_weight": 0.3, "guided_weight": 1.0})
    config.kind = "eagle3"
    # The layer reads twice the width, and yet the drafter is no larger.
    config.model.hidden_dim = 400
    config.model.taps = (2, 6, 9)
    return config
