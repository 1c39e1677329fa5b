"""A drafter for Liquid 7B: one layer of width 3072, trained on the target's own samples.

lantern convert liquid --model Liquid_V1_7B --vqgan vqgan.ckpt --text-tokenizer tokenizer.json --out models/liquid
python -m train.features --target models/liquid --prompts prompts.txt --workdir runs/liquid/features --batch_size 8
python -m train.drafter --config configs/liquid_drafter.py --target models/liquid \\
    --features runs/liquid/features --workdir runs/liquid/drafter
python -m train.export --checkpoint models/liquid --drafter runs/liquid/drafter --out models/liquid-drafter

`--folder DIR` in place of `--prompts` takes pictures with captions. 10000 samples are 134 GB of features. The layer is
a Llama's, narrower than the target's own with their 16 heads of 256.
"""

from ml_collections import ConfigDict

from configs.drafter_recipe import published_drafter


def get_config() -> ConfigDict:
    model = {"num_heads": 24, "hidden_dim": 8192}
    return published_drafter(model=model, guidance=7.0, steps=20000, batch_size=8, dtype="bfloat16")
