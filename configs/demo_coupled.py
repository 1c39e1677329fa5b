"""The demo's drafter, made for the coupling: trained on from the shipped one, on what drafting meets.

python -m train.drafter --config configs/demo_coupled.py --target runs/demo/export \\
    --features runs/demo/features --workdir runs/demo/coupled --config.start_from=runs/demo/export

The loss is the cross-entropy of noisy argmaxes under guidance, which is how drafts are drawn; three passes.
"""

from ml_collections import ConfigDict

from configs import demo_drafter


def get_config() -> ConfigDict:
    config = demo_drafter.get_config()
    config.loss = "cross_entropy"
    config.steps = 400
    config.batch_size = 8
    config.passes = 3
    config.rate = 5e-3
    config.adam_rate = 8e-4
    config.noise = 0.05
    config.feature_weight = 0.3
    config.token_weight = 0.1
    config.guided_weight = 1.0
    return config
