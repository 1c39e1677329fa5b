"""A drafter for Anole-7B: one Chameleon layer of width 4096, trained on the target's own samples.

lantern convert anole --model Anole-7b --vqgan vqgan.ckpt --text-tokenizer text_tokenizer.json --out models/anole
python -m train.features --target models/anole --prompts prompts.txt --workdir runs/anole/features --batch_size 8
python -m train.drafter --config configs/anole_drafter.py --target models/anole \\
    --features runs/anole/features --workdir runs/anole/drafter
python -m train.export --checkpoint models/anole --drafter runs/anole/drafter --out models/anole-drafter

`--folder DIR` in place of `--prompts` takes pictures with captions. 10000 samples are 178 GB of features.
By XLA's count, extraction needs some 45 GB of device memory at 8 sequences per pass, a training step of 8 some 55 GB
(parameters, average and optimizer 8 GB); training splits the batch over all devices.
"""

from ml_collections import ConfigDict

from configs.drafter_recipe import published_drafter


def get_config() -> ConfigDict:
    model = {"num_heads": 32, "hidden_dim": 11008, "qk_norm": "layer"}
    return published_drafter(model=model, guidance=3.0, steps=20000, batch_size=8, dtype="bfloat16")
