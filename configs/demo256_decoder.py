"""Sharpen the next demo's decoder, its codes left as they are, and hide the borders of its patches.

python -m train.tokenizer --config configs/demo256_decoder.py --workdir runs/demo256/decoder
    --config.start_from=runs/demo256/tokenizer
"""

from ml_collections import ConfigDict

from configs import demo256_tokenizer


def get_config() -> ConfigDict:
    config = demo256_tokenizer.get_config()
    config.start_from = "runs/demo256/tokenizer"
    config.frozen = ("encoder", "quant_conv", "codebook")
    config.model.smooth = 16
    config.update({"seed": 1, "steps": 1500, "rate": 4e-3, "adam_rate": 1e-3})
    config.loss.update(
        {
            "adversarial_start": 100,
            "adversarial_ramp": 100,
            "continuous": 0,
            "restart_until": 0,
            # Without it, as many dots as there are flakes and flowers stood along edges, four pixels apart.
            "specks": 8.0,
        }
    )
    return config
