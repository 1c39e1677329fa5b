"""A drafter for class-conditional LlamaGen of any size (B here; `:L`, `:XL`, `:XXL`, `:3B` after the file's name).

lantern convert llamagen --gpt c2i_B_256.pt --vq vq_ds16_c2i.pt --out models/c2i
python -m train.features --target models/c2i --folder imagenet/train --pictures 20000 --workdir runs/c2i/features
python -m train.drafter --config configs/llamagen_c2i_drafter.py:B --target models/c2i \\
    --features runs/c2i/features --workdir runs/c2i/drafter
python -m train.export --checkpoint models/c2i --drafter runs/c2i/drafter --out models/c2i-drafter

A 384 px model is converted with `--config grid.json`, {"grid": 24}. The folder has a subfolder per class, called by its
name, number or WordNet id. 20000 pictures are 16 GB of features for B at 256 px, more for larger models
(`train/features.py`); a step needs some 6 GB of device memory.
"""

from ml_collections import ConfigDict

from configs.drafter_recipe import published_drafter
from lantern_jax.families.llamagen.model import published_config


def get_config(size: str = "B") -> ConfigDict:
    layers = published_config(size).transformer
    model = {"num_heads": layers.num_heads, "hidden_dim": layers.hidden_dim}
    return published_drafter(model=model, guidance=4.0)
