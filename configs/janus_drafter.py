"""A drafter for Janus-Pro (`:7B` or `:1B` after the file's name): one layer of its width, trained on its own samples.

lantern convert janus --from-hub deepseek-ai/Janus-Pro-7B --text-tokenizer tokenizer.json --out models/janus
python -m train.features --target models/janus --prompts prompts.txt --workdir runs/janus/features --batch_size 8
python -m train.drafter --config configs/janus_drafter.py --target models/janus \\
    --features runs/janus/features --workdir runs/janus/drafter
python -m train.export --checkpoint models/janus --drafter runs/janus/drafter --out models/janus-drafter

`--folder DIR` in place of `--prompts` takes pictures with captions. 10000 samples are 105 GB of features, 52 GB
for the 1B. The drafter shares the target's two-layer head; heads of its own (Medusa's) would need a head of one layer
to start from.
"""

from ml_collections import ConfigDict

from configs.drafter_recipe import published_drafter
from lantern_jax.families.janus.model import janus_config


def get_config(size: str = "7B") -> ConfigDict:
    layer = janus_config(size).transformer
    model = {"num_heads": layer.num_heads, "hidden_dim": layer.hidden_dim}
    return published_drafter(model=model, guidance=5.0, steps=20000, batch_size=8, dtype="bfloat16")
