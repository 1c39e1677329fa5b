"""A drafter for Lumina-mGPT-7B-768: one Chameleon layer of width 4096, trained on the target's own samples.

lantern convert lumina --model Lumina-mGPT-7B-768 --vqgan vqgan.ckpt --text-tokenizer text_tokenizer.json \\
    --out models/lumina
python -m train.features --target models/lumina --prompts prompts.txt --workdir runs/lumina/features --batch_size 4
python -m train.drafter --config configs/lumina_drafter.py --target models/lumina \\
    --features runs/lumina/features --workdir runs/lumina/drafter
python -m train.export --checkpoint models/lumina --drafter runs/lumina/drafter --out models/lumina-drafter

`--folder DIR` in place of `--prompts` takes pictures with captions. 5000 samples are 198 GB of features.
By XLA's count, extraction and a training step each need some 47 GB of device memory at 4 sequences. A sequence has
2400 positions, so the recipe makes one pass, as EAGLE does: two would need twice as much. Training splits the batch
over all devices.
"""

from ml_collections import ConfigDict

from configs.drafter_recipe import published_drafter


def get_config() -> ConfigDict:
    model = {"num_heads": 32, "hidden_dim": 11008, "qk_norm": "layer"}
    return published_drafter(model=model, guidance=4.0, steps=20000, batch_size=4, passes=1, dtype="bfloat16")
