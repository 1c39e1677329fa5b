"""A drafter for caption-conditional LlamaGen-XL, stage 1 (256 px) or stage 2 (512 px).

lantern convert llamagen --gpt t2i_XL_stage1_256.pt --vq vq_ds16_t2i.pt --t5 flan-t5-xl \\
    --t5-tokenizer flan-t5-xl/spiece.model --out models/t2i
python -m train.features --target models/t2i --folder pictures --workdir runs/t2i/features
python -m train.drafter --config configs/llamagen_t2i_drafter.py --target models/t2i \\
    --features runs/t2i/features --workdir runs/t2i/drafter
python -m train.export --checkpoint models/t2i --drafter runs/t2i/drafter --out models/t2i-drafter

For stage 2 give its file, and `--config grid.json` with {"grid": 32}, to `convert`; the rest is the same. The
folder has a `name.txt` beside each picture. 20000 pictures are 38 GB of features at stage 1 and 117 GB at stage 2;
a step needs some 10 GB and 46 GB of device memory.
"""

from ml_collections import ConfigDict

from configs.drafter_recipe import published_drafter
from lantern_jax.families.llamagen.model import published_config


def get_config() -> ConfigDict:
    layers = published_config("XL", "caption").transformer
    model = {"num_heads": layers.num_heads, "hidden_dim": layers.hidden_dim}
    return published_drafter(model=model, guidance=7.5)
