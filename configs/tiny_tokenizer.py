"""A tokenizer that trains in seconds, for tests and for trying the scripts.

python -m train.tokenizer --config configs/tiny_tokenizer.py --workdir runs/tiny/tokenizer
"""

from ml_collections import ConfigDict

from configs import demo_tokenizer


def get_config() -> ConfigDict:
    config = demo_tokenizer.get_config()
    config.update({"size": 32, "pictures": 64, "held_out": 8, "steps": 300, "save_every": 60, "warmup": 10})
    config.update({"dtype": "float32", "batch_size": 8, "rate": 1e-2})
    config.critic.update({"ch": 4, "halvings": 1})
    config.model.update({"ch": 8, "decoder_ch": 8, "z_channels": 8, "codebook_size": 64, "codebook_dim": 4})
    config.model.update({"ch_mult": (1, 2), "encoder_blocks": 1, "decoder_blocks": 1, "smooth": 0})
    config.loss.update(
        {"pyramid_levels": 2, "adversarial_start": 100, "adversarial_ramp": 50, "continuous": 30}
    )
    config.loss.update({"decay": 0.9, "restart_every": 10, "restart_until": 250})
    return config
