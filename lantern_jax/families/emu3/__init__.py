"""Emu3-Gen (arXiv 2409.18869)."""

from lantern_jax.families.emu3 import weights
from lantern_jax.families.emu3.model import Emu3Config
from lantern_jax.families.emu3.prompts import Emu3Encoder
from lantern_jax.families.emu3.vq_weights import convert_emu3_vq, emu3_tokenizer
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, File, Format, Published
from lantern_jax.families.token_weights import published_order, token_family

FAMILY = token_family(
    Emu3Config,
    Emu3Encoder,
    published_order=published_order,
    tokenizer=emu3_tokenizer,
    sizes={"emu3-8b": Emu3Config},
    published=Published(
        dialect=weights.DIALECT,
        sizes=weights.emu3_config_from_shapes,
        read=weights.convert_emu3,
        read_tokenizer=convert_emu3_vq,
        inside=weights.TOKENIZERS,
        model=lambda config: "Emu3-Gen",
        defaults=lambda config: {"guidance": 3.0, "top_k": 2048, "temperature": 1.0},
        repositories={
            "emu3-community/emu3-gen-hf": "emu3 --from-hub Emu3-community/Emu3-Gen-hf --text-tokenizer tokenizer.json "
            "--out emu3",
            "baai/emu3-gen": "emu3-community/emu3-gen-hf",
        },
    ),
    formats={
        "emu3": Format(
            "Emu3-Gen: model, tokenizer",
            (MODEL, TOKENIZER_JSON, File("vqgan", "Emu3-VisionTokenizer, if not among the model's tensors")),
        )
    },
)
