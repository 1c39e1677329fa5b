"""Janus-Pro (arXiv 2501.17811)."""

from functools import partial

from lantern_jax.families.janus.model import SIZES, JanusConfig, janus_config, janus_target
from lantern_jax.families.janus.prompts import JanusEncoder
from lantern_jax.families.janus.weights import (
    DIALECT,
    convert_janus,
    convert_janus_vq,
    janus_config_from_shapes,
    janus_shapes,
)
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, Family, Format, Published
from lantern_jax.families.token_weights import random_conditioning
from lantern_jax.models.vq import VQConfig


def _conversion(size: str) -> str:
    files = f"--from-hub deepseek-ai/Janus-Pro-{size} --text-tokenizer tokenizer.json"
    return f"janus {files} --out janus-{size.lower()}"


FAMILY = Family(
    JanusConfig,
    janus_shapes,
    janus_target,
    JanusEncoder,
    random_conditioning,
    head=lambda params: params["params"]["head"],
    tokenizer=VQConfig,
    sizes={f"janus-pro-{size.lower()}": partial(janus_config, size) for size in SIZES},
    published=Published(
        dialect=DIALECT,
        sizes=janus_config_from_shapes,
        read=convert_janus,
        read_tokenizer=convert_janus_vq,
        inside=("gen_vision_model.", "model.vqmodel."),
        model=lambda config: "Janus-Pro",
        defaults=lambda config: {"guidance": 5.0, "top_k": 0, "temperature": 1.0},
        repositories={f"deepseek-ai/janus-pro-{size.lower()}": _conversion(size) for size in SIZES},
    ),
    # Its picture tokenizer is among the model's tensors.
    formats={"janus": Format("Janus-Pro-1B and 7B: model, tokenizer", (MODEL, TOKENIZER_JSON))},
)
