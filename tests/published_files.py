"""Files of a tiny LlamaGen as they are published: a class-conditional GPT, its VQ tokenizer and a drafter."""

import dataclasses
import json
from pathlib import Path

from tests.fixtures import published_layouts as layouts

GPT, VQ = layouts.TINY_CLASS, layouts.TINY_VQ
# Its number of heads is that of its own config, not its target's.
DRAFTER = dataclasses.replace(layouts.drafter_of(GPT), num_heads=4)


def write_published(folder: Path) -> dict[str, Path]:
    """Writes them, and a config of what shapes do not tell: returns {option of ``lantern convert llamagen``: path}."""
    (folder / "settings.json").write_text(json.dumps({"num_heads": 2, "grid": 4}))
    return {
        "gpt": layouts.write_llamagen(folder / "gpt.pt", GPT),
        "vq": layouts.write_vq(folder / "vq.pt", VQ),
        "drafter": layouts.write_drafter(folder / "drafter", DRAFTER, kind="safetensors"),
        "config": folder / "settings.json",
    }
