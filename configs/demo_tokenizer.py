"""The demo's tokenizer: 128 px landscapes to 16x16 codes out of 1024.

python -m train.tokenizer --config configs/demo_tokenizer.py --workdir runs/demo/tokenizer
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    steps = 2600
    return ConfigDict(
        {
            "size": 128,
            "vocabulary": "released",
            "pictures": 8192,
            "held_out": 64,
            "data_seed": 0,
            "seed": 0,
            "steps": steps,
            "batch_size": 8,
            "log_every": 20,
            "save_every": 200,
            "keep": 2,
            "rate": 1e-2,
            "adam_rate": 2e-3,
            "warmup": 20,
            "clip": 1.0,
            "critic_rate": 5e-4,
            "critic": {"ch": 48, "fold": 4},
            "model": {
                "ch": 48,
                "decoder_ch": 64,
                "ch_mult": (1, 2),
                "z_channels": 64,
                "codebook_size": 1024,
                "codebook_dim": 8,
                "encoder_blocks": 1,
                "decoder_blocks": 2,
                "groups": 1,
                "level_attention": False,
                "mid_attention": True,
                "patch": 4,
            },
            "loss": {
                "pyramid": 1.0,
                "pyramid_levels": 4,
                "commitment": 0.25,
                "adversarial": 0.4,
                "matching": 1.0,
                "adversarial_start": 800,
                "adversarial_ramp": 200,
                "continuous": 150,
                "noise": 0.15,
                "decay": 0.98,
                "restart_every": 25,
                "restart_until": 2000,
                "dead_threshold": 0.05,
            },
        }
    )
