"""Tiny checkpoints of families that differ in training, pictures for them, and features extracted from both."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from configs import (
    janus_drafter,
    llamagen_c2i_drafter,
    llamagen_t2i_drafter,
    lumina_drafter,
)
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.convert import formats
from tests.fixtures import published_layouts as layouts
from tests.fixtures.guided_conversions import write_model
from train import drafter, features, sources, target

CAPTIONS = ["Snow, and a dog in it", "a lake", "the cat", "a lake at dusk", "a dog"]
PROMPTS = ["the lake", "a cat in the snow"]
CLASSES, CLASS_PROMPTS = ["3", "0", "4", "1", "3"], ["2", "0"]
CONFIGS = {
    "c2i": llamagen_c2i_drafter, "t2i": llamagen_t2i_drafter, "lumina": lumina_drafter, "janus": janus_drafter,
}  # fmt: skip
FLOAT32 = jnp.dtype(jnp.float32)
BATCH = 2


def config_of(name):
    config = CONFIGS[name].get_config()
    config.update({
        "steps": 20, "batch_size": 8, "log_every": 5, "save_every": 20, "adam_rate": 3e-3, "warmup": 2,
        "average": 0.9, "passes": 2, "clip": 5.0, "model": {"num_heads": 2, "hidden_dim": 48},
    })  # fmt: skip
    return config


def target_drafter(name, checkpoint):
    return drafter.drafter_config(config_of(name), checkpoint.target_config)


def convert(folder: Path, name: str) -> Path:
    """Makes a tiny checkpoint directory, as `lantern convert` writes it, without a drafter."""
    if name == "janus":
        assert main(["convert", *write_model("janus, original", folder), "--out", str(folder / "out")]) == 0
        return folder / "out"
    grid = {"grid": 4} if name == "lumina" else {"num_heads": 2, "grid": 4}
    (folder / "sizes.json").write_text(json.dumps(grid))
    to = {"config": folder / "sizes.json", "out": folder / "out", "dtype": "float32"}
    if name == "lumina":
        config, text = layouts.TINY_CHAMELEON, folder / "text.json"
        model = layouts.write_chameleon(folder / "model", config, layouts.TINY_VQGAN, dtype=np.float32)
        vqgan = layouts.write_vqgan(folder / "vqgan.ckpt", layouts.TINY_VQGAN)
        layouts.write_text_tokenizer(text, config.num_codes, config.vocab_size, shuffle=1)
        return formats.convert(name, model=model, vqgan=vqgan, text_tokenizer=text, **to)
    parts = {}
    if name == "t2i":
        parts["t5"] = layouts.write_t5(folder / "t5", layouts.TINY_T5)
        parts["t5_tokenizer"] = layouts.write_t5_tokenizer(folder / "t5.json")
    gpt = layouts.write_llamagen(folder / "gpt.pt", layouts.TINY_CAPTION if parts else layouts.TINY_CLASS)
    vq = layouts.write_vq(folder / "vq.pt", layouts.TINY_VQ)
    return formats.convert("llamagen", gpt=gpt, vq=vq, **parts, **to)


def write_pictures(folder: Path, name: str) -> Path:
    for i, text in enumerate(CLASSES if name == "c2i" else CAPTIONS):
        rng = np.random.default_rng(i)
        Image.fromarray(rng.integers(0, 256, (12, 9, 3), np.uint8)).save(folder / f"{i}.png")
        (folder / f"{i}.txt").write_text(text + "\n")
    return folder


def extract(model: Path, name: str, folder: Path, workdir: Path):
    """Extracts a store of five pictures and three samples; returns the checkpoint."""
    checkpoint = target.read_target(model)
    prompts = CLASS_PROMPTS if name == "c2i" else PROMPTS
    made = sources.prompted(checkpoint, workdir, folder, prompts, samples=3, seed=1)
    features.extract(checkpoint, made, workdir, seed=1, batch_size=BATCH)
    return checkpoint


def retrained(checkpoint):
    params = jax.tree.map(np.array, checkpoint.target_params)
    params["params"]["head"]["kernel"][0, 0] += 1e-3
    return dataclasses.replace(checkpoint, target_params=params)
