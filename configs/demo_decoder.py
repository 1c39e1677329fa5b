"""Sharpen the demo tokenizer's decoder, its codes left as they are: a target trained on them stays valid.

python -m train.tokenizer --config configs/demo_decoder.py --workdir runs/demo/decoder
    --config.start_from=runs/demo/tokenizer
"""

from ml_collections import ConfigDict

from configs import demo_tokenizer


def get_config() -> ConfigDict:
    config = demo_tokenizer.get_config()
    config.start_from = "runs/demo/tokenizer"
    config.frozen = ("encoder", "quant_conv", "codebook")
    config.seed = 1
    config.steps = 2000
    config.rate = 4e-3
    config.adam_rate = 1e-3
    config.loss.adversarial = 0.7
    config.loss.adversarial_start = 150
    config.loss.continuous = 0
    config.loss.restart_until = 0
    return config
