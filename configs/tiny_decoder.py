"""The tiny tokenizer's decoder, trained on with its codes as they are.

python -m train.tokenizer --config configs/tiny_decoder.py --workdir runs/tiny/decoder
    --config.start_from=runs/tiny/tokenizer
"""

from ml_collections import ConfigDict

from configs import tiny_tokenizer


def get_config() -> ConfigDict:
    config = tiny_tokenizer.get_config()
    config.start_from = "runs/tiny/tokenizer"
    config.frozen = ("encoder", "quant_conv", "codebook")
    config.model.smooth = 4
    config.steps = 40
    config.loss.update({"adversarial_start": 10, "adversarial_ramp": 10, "continuous": 0, "restart_until": 0})
    return config
