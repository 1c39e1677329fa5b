"""Liquid (arXiv 2412.04332)."""

from lantern_jax.families.chameleon.weights import convert_vqgan, tokenizer
from lantern_jax.families.liquid.model import LiquidConfig, liquid_target
from lantern_jax.families.liquid.prompts import LiquidEncoder
from lantern_jax.families.liquid.weights import DIALECT, convert_liquid, liquid_config_from_shapes
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, Family, File, Format, Published
from lantern_jax.families.token_weights import model_shapes, published_order, random_conditioning

FAMILY = Family(
    LiquidConfig,
    model_shapes,
    liquid_target,
    LiquidEncoder,
    random_conditioning,
    published_order=published_order,
    tokenizer=tokenizer,
    sizes={"liquid-7b": LiquidConfig},
    published=Published(
        dialect=DIALECT,
        sizes=liquid_config_from_shapes,
        read=convert_liquid,
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
