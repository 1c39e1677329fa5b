"""A drafter for Emu3-Gen 8B: one layer of width 4096, with a key head per query head, on the target's own samples.

lantern convert emu3 --from-hub Emu3-community/Emu3-Gen-hf --text-tokenizer tokenizer.json --out models/emu3
python -m train.features --target models/emu3 --prompts prompts.txt --workdir runs/emu3/features --batch_size 1
python -m train.drafter --config configs/emu3_drafter.py --target models/emu3 \\
    --features runs/emu3/features --workdir runs/emu3/drafter
python -m train.export --checkpoint models/emu3 --drafter runs/emu3/drafter --out models/emu3-drafter

`--folder DIR` in place of `--prompts` takes pictures with captions. 1000 samples are 135 GB of features: a sequence
has some 8250 positions, so the recipe makes one pass, as EAGLE does, of one sequence on each device.
"""

from ml_collections import ConfigDict

from configs.drafter_recipe import published_drafter


def get_config() -> ConfigDict:
    model = {"num_heads": 32, "hidden_dim": 14336}
    return published_drafter(model=model, guidance=3.0, steps=20000, batch_size=8, passes=1, dtype="bfloat16")
