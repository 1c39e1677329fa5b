"""A tokenizer that trains in seconds, for tests and for trying the scripts.

python -m train.tokenizer --config configs/tiny_tokenizer.py --workdir runs/tiny/tokenizer
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "size": 32,
            "pictures": 64,
            "held_out": 8,
            "data_seed": 0,
            "seed": 0,
            "steps": 300,
            "batch_size": 8,
            "log_every": 20,
            "save_every": 60,
            "keep": 2,
            "rate": 1e-2,
            "adam_rate": 2e-3,
            "warmup": 10,
            "clip": 1.0,
            "critic_rate": 5e-4,
            "critic": {"ch": 4, "fold": 4},
            "model": {
                "ch": 8,
                "ch_mult": (1, 2),
                "z_channels": 8,
                "codebook_size": 64,
                "codebook_dim": 4,
                "encoder_blocks": 1,
                "decoder_blocks": 1,
                "groups": 1,
                "level_attention": False,
                "mid_attention": True,
                "patch": 4,
            },
            "loss": {
                "pyramid_levels": 2,
                "adversarial_start": 100,
                "adversarial_ramp": 50,
                "continuous": 30,
                "decay": 0.9,
                "restart_every": 10,
                "restart_until": 250,
            },
        }
    )
