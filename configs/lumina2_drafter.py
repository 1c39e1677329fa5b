"""A drafter for Lumina-mGPT 2.0 7B: one Chameleon layer of width 4096, trained on the target's own samples.

lantern convert lumina2 --model Lumina-mGPT-2.0 --vqgan movqgan_270M.ckpt --text-tokenizer tokenizer.json \\
    --out models/lumina2
python -m train.features --target models/lumina2 --prompts prompts.txt --workdir runs/lumina2/features --batch_size 1
python -m train.drafter --config configs/lumina2_drafter.py --target models/lumina2 \\
    --features runs/lumina2/features --workdir runs/lumina2/drafter
python -m train.export --checkpoint models/lumina2 --drafter runs/lumina2/drafter --out models/lumina2-drafter

`--folder DIR` in place of `--prompts` takes pictures with captions. 1000 samples are 154 GB of features: a sequence
has some 9400 positions, so the recipe makes one pass, as EAGLE does, of one sequence on each device.
"""

from ml_collections import ConfigDict

from configs.drafter_recipe import published_drafter


def get_config() -> ConfigDict:
    model = {"num_heads": 32, "hidden_dim": 11008, "qk_norm": "layer"}
    return published_drafter(model=model, guidance=4.0, steps=20000, batch_size=8, passes=1, dtype="bfloat16")
