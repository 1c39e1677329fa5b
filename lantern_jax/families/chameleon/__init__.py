"""Chameleon (arXiv 2405.09818), as Anole-7B and Lumina-mGPT-7B draw with it."""

from functools import partial

from lantern_jax.families.chameleon import weights
from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.chameleon.prompts import ChameleonEncoder
from lantern_jax.families.registry import DRAFTER, MODEL, File, Format, Published
from lantern_jax.families.token_weights import token_family

_FILES = (
    MODEL,
    File("text-tokenizer", "Chameleon's text_tokenizer.json", required=True),
    File("vqgan", "Chameleon's vqgan.ckpt"),
    DRAFTER,
)
_FETCHED = "--text-tokenizer chameleon/tokenizer/text_tokenizer.json --vqgan chameleon/tokenizer/vqgan.ckpt"
_MODELS = {"anole": "Anole", "lumina": "Lumina-mGPT"}
_GUIDANCE = {"anole": 3.0, "lumina": 4.0}

FAMILY = token_family(
    ChameleonConfig,
    ChameleonEncoder,
    published_order=weights.published_order,
    published_residual=lambda config: "published_lumina" if config.layout == "lumina" else "published",
    tokenizer=weights.tokenizer,
    sizes={"chameleon-7b": ChameleonConfig, "lumina-7b": partial(ChameleonConfig, grid=48, layout="lumina")},
    published=Published(
        dialect=weights.DIALECT,
        sizes=weights.chameleon_config_from_shapes,
        read=weights.convert_chameleon,
        read_tokenizer=weights.convert_vqgan,
        model=lambda config: _MODELS[config.layout],
        defaults=lambda config: {"guidance": _GUIDANCE[config.layout], "top_k": 2000, "temperature": 1.0},
        more_settings=weights.codes_of,
        repositories={
            "leloy/anole-7b-v0.1-hf": f"anole --from-hub leloy/Anole-7b-v0.1-hf {_FETCHED} "
            "--drafter anole_drafter --out anole",
            "gair/anole-7b-v0.1": "leloy/anole-7b-v0.1-hf",
            "alpha-vllm/lumina-mgpt-7b-768": f"lumina --from-hub Alpha-VLLM/Lumina-mGPT-7B-768 {_FETCHED} --out lumina",
        },
    ),
    formats={
        "anole": Format("Anole-7B: model, VQGAN, drafter", _FILES, {"layout": "anole"}),
        "lumina": Format("Lumina-mGPT-7B: model, VQGAN, drafter", _FILES, {"layout": "lumina", "grid": 48}),
    },
)
