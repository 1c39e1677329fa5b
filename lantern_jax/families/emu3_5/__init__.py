"""Emu3.5-Image (BAAI): a Qwen3 over text and the codes of an IBQ tokenizer."""

from lantern_jax.families.emu3_5 import weights
from lantern_jax.families.emu3_5.model import Emu35Config
from lantern_jax.families.emu3_5.prompts import Emu35Encoder
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, File, Format, Published
from lantern_jax.families.token_weights import published_order, token_family

FAMILY = token_family(
    Emu35Config,
    Emu35Encoder,
    published_order=published_order,
    tokenizer=weights.ibq_tokenizer,
    sizes={"emu3.5-34b": Emu35Config},
    published=Published(
        dialect=weights.DIALECT,
        sizes=weights.emu35_config_from_shapes,
        read=weights.convert_emu35,
        read_tokenizer=weights.convert_ibq,
        model=lambda config: "Emu3.5-Image",
        defaults=lambda config: {"guidance": 5.0, "top_k": 5120, "temperature": 1.0},
    ),
    formats={
        "emu3.5": Format(
            "Emu3.5-Image: model, tokenizer",
            (MODEL, TOKENIZER_JSON, File("vqgan", "Emu3.5-VisionTokenizer's model.ckpt or its folder")),
        )
    },
)
