"""The demo's tokenizer: 256 px landscapes to 16x16 codes out of 4096.

python -m train.tokenizer --config configs/demo_tokenizer.py --workdir runs/demo/tokenizer

An H200 makes 60 steps per second, so all are done in two and a half minutes plus one for compiling; two cores take
seven seconds per step.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    steps = 9000
    return ConfigDict(
        {
            "size": 256,
            "pictures": 16384,
            "held_out": 64,
            "data_seed": 0,
            "seed": 0,
            # A finished run to begin from, and parts that stay as they are: "encoder", "quant_conv", "codebook".
            "start_from": "",
            "frozen": (),
            # Of products and activations, bfloat16 on a GPU; parameters, codes and losses are float32.
            "dtype": "auto",
            "steps": steps,
            "batch_size": 16,
            "log_every": 20,
            "save_every": 500,
            "keep": 2,
            "rate": 7e-3,
            "adam_rate": 2e-3,
            "warmup": 40,
            "clip": 1.0,
            "critic_rate": 5e-4,
            "critic": {"ch": 64, "fold": 4, "halvings": 2},
            "model": {
                "ch": 48,
                "decoder_ch": 80,
                "ch_mult": (1, 1, 2),
                "z_channels": 64,
                "codebook_size": 4096,
                "codebook_dim": 8,
                "encoder_blocks": 3,
                "decoder_blocks": 6,
                "groups": 1,
                "level_attention": False,
                "mid_attention": True,
                "patch": 4,
                "smooth": 16,
            },
            "loss": {
                "pyramid": 1.0,
                "pyramid_levels": 5,
                "commitment": 0.25,
                # The gradient of the critic's score is about twenty times that of the distance of its features.
                "adversarial": 1.0,
                "matching": 20.0,
                "adversarial_start": 600,
                "adversarial_ramp": 600,
                # Folds of four pixels stood out as lines in flat places while the critic always saw them in the same
                # place.
                "shift": 4,
                # Without it, as many dots as there are flakes and flowers appeared along edges, four pixels apart.
                "specks": 8.0,
                # Trees at night and towns in fog are as much part of the picture as those by day.
                "contrast": 0.2,
                # A step sees as many vectors as there are codes.
                "continuous": 300,
                "noise": 0.13,
                "decay": 0.99,
                "restart_every": 25,
                "restart_until": 5400,
                "dead_threshold": 0.05,
            },
        }
    )
