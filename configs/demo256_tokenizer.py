"""The next demo's tokenizer: 256 px landscapes of the painter's whole vocabulary to 16x16 codes out of 4096.

python -m train.tokenizer --config configs/demo256_tokenizer.py --workdir runs/demo256/tokenizer

A step takes 0.75 s of two cores that are free. A run of this config whose critic's view moved from step 2980 on alone,
on held-out landscapes: 25.2 dB on 512 of them (the released demo's tokenizer, scaled up, has 21.3 dB on 32), all codes
in use over 2048, perplexity 3756. Flakes, birds and twigs are lost still; dots along edges, four pixels apart as the
patches are, go with `configs/demo256_decoder.py`.
"""

from ml_collections import ConfigDict

from configs import demo_tokenizer


def get_config() -> ConfigDict:
    config = demo_tokenizer.get_config()
    steps = 5600
    config.update({"size": 256, "vocabulary": "painter", "pictures": 8192, "steps": steps})
    config.update({"batch_size": 4, "save_every": 200, "rate": 7e-3, "adam_rate": 2e-3, "warmup": 40})
    config.critic.update({"ch": 64, "fold": 4})
    config.model.update({"ch": 48, "decoder_ch": 80, "ch_mult": (1, 1, 2), "codebook_size": 4096})
    # A step sees 1024 vectors, a quarter of the codes.
    config.loss.update({"decay": 0.99, "noise": 0.13, "continuous": 300, "restart_every": 25})
    config.loss.update({"restart_until": 4000, "pyramid_levels": 5})
    # The gradient of the critic's score is about twenty times that of the distance of its features.
    # Folds of four pixels stood out as lines in flat places while the critic always saw them in the same place.
    config.loss.update({"shift": 4})
    config.loss.update(
        {"adversarial_start": 600, "adversarial_ramp": 600, "adversarial": 1.0, "matching": 20.0}
    )
    return config
