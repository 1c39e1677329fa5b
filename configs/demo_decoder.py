"""Sharpen the demo's decoder, its codes left as they are, and hide the borders of its patches.

python -m train.tokenizer --config configs/demo_decoder.py --workdir runs/demo/decoder
    --config.start_from=runs/demo/tokenizer
"""

from ml_collections import ConfigDict

from configs import demo_tokenizer


def get_config() -> ConfigDict:
    config = demo_tokenizer.get_config()
    config.start_from = "runs/demo/tokenizer"
    config.frozen = ("encoder", "quant_conv", "codebook")
    config.update({"seed": 1, "steps": 1500, "rate": 4e-3, "adam_rate": 1e-3})
    config.loss.update(
        {
            "adversarial_start": 100,
            "adversarial_ramp": 100,
            "continuous": 0,
            "restart_until": 0,
        }
    )
    return config
