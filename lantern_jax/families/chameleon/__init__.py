"""Chameleon (arXiv 2405.09818), as Anole-7B and Lumina-mGPT-7B draw with it."""

from functools import partial

from lantern_jax.families.chameleon.model import ChameleonConfig, chameleon_target
from lantern_jax.families.chameleon.prompts import TokenEncoder, code_tokens, read_names
from lantern_jax.families.chameleon.weights import (
    DIALECT,
    chameleon_config_from_shapes,
    chameleon_shapes,
    convert_chameleon,
    convert_vqgan,
    published_order,
    random_conditioning,
    tokenizer,
)
from lantern_jax.families.registry import DRAFTER, MODEL, Family, File, Format, Published

_FILES = (
    MODEL,
    File("text-tokenizer", "Chameleon's text_tokenizer.json", required=True),
    File("vqgan", "Chameleon's vqgan.ckpt"),
    DRAFTER,
)
_FETCHED = "--text-tokenizer chameleon/tokenizer/text_tokenizer.json --vqgan chameleon/tokenizer/vqgan.ckpt"
_MODELS = {"anole": "Anole", "lumina": "Lumina-mGPT"}
_GUIDANCE = {"anole": 3.0, "lumina": 4.0}

FAMILY = Family(
    ChameleonConfig,
    chameleon_shapes,
    chameleon_target,
    TokenEncoder,
    random_conditioning,
    published_order=published_order,
    published_residual=lambda config: "published_lumina" if config.layout == "lumina" else "published",
    tokenizer=tokenizer,
    sizes={"chameleon-7b": ChameleonConfig, "lumina-7b": partial(ChameleonConfig, grid=48, layout="lumina")},
    published=Published(
        dialect=DIALECT,
        sizes=chameleon_config_from_shapes,
        read=convert_chameleon,
        read_tokenizer=convert_vqgan,
        model=lambda config: _MODELS[config.layout],
        defaults=lambda config: {"guidance": _GUIDANCE[config.layout], "top_k": 2000, "temperature": 1.0},
        told=lambda files, settings: (
            {"num_codes": len(code_tokens(read_names(files["text_tokenizer"])))},
            "",
        ),
        repositories={
            "leloy/anole-7b-v0.1-hf": f"anole --from-hub leloy/Anole-7b-v0.1-hf {_FETCHED} "
            "--drafter anole_drafter --out anole",
            "gair/anole-7b-v0.1": "leloy/anole-7b-v0.1-hf",
            "alpha-vllm/lumina-mgpt-7b-768": f"lumina --from-hub Alpha-VLLM/Lumina-mGPT-7B-768 {_FETCHED} --out lumina",
        },
    ),
    formats={
        "anole": Format("Anole-7B: model, VQGAN, drafter", _FILES, {"layout": "anole"}),
        "lumina": Format("Lumina-mGPT-7B: model, VQGAN, drafter", _FILES, {"layout": "lumina"}),
    },
)
