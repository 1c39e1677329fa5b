"""Liquid (arXiv 2412.04332)."""

from lantern_jax.families.chameleon.weights import convert_vqgan, tokenizer
from lantern_jax.families.liquid import weights
from lantern_jax.families.liquid.model import LiquidConfig
from lantern_jax.families.liquid.prompts import LiquidEncoder
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, File, Format, Published
from lantern_jax.families.token_weights import published_order, token_family

FAMILY = token_family(
    LiquidConfig,
    LiquidEncoder,
    published_order=published_order,
    tokenizer=tokenizer,
    sizes={"liquid-7b": LiquidConfig},
    published=Published(
        dialect=weights.DIALECT,
        sizes=weights.liquid_config_from_shapes,
        read=weights.convert_liquid,
        read_tokenizer=convert_vqgan,
        model=lambda config: "Liquid",
        defaults=lambda config: {"guidance": 7.0, "top_k": 4096, "top_p": 0.96, "temperature": 0.99},
        repositories={
            "junfeng5/liquid_v1_7b": "liquid --from-hub Junfeng5/Liquid_V1_7B --text-tokenizer tokenizer.json "
            "--vqgan chameleon/tokenizer/vqgan.ckpt --out liquid",
        },
    ),
    formats={
        "liquid": Format(
            "Liquid-7B: model, VQGAN", (MODEL, TOKENIZER_JSON, File("vqgan", "Chameleon's vqgan.ckpt"))
        )
    },
)
