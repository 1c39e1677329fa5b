"""Emu3-Gen (arXiv 2409.18869)."""

from lantern_jax.families.emu3.model import Emu3Config, emu3_target
from lantern_jax.families.emu3.prompts import Emu3Encoder
from lantern_jax.families.emu3.vq_weights import convert_emu3_vq, emu3_tokenizer
from lantern_jax.families.emu3.weights import DIALECT, TOKENIZERS, convert_emu3, emu3_config_from_shapes
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, Family, File, Format, Published
from lantern_jax.families.token_weights import model_shapes, published_order, random_conditioning
from lantern_jax.models.tokens import shaped

FAMILY = Family(
    Emu3Config,
    model_shapes,
    emu3_target,
    Emu3Encoder,
    random_conditioning,
    published_order=published_order,
    shaped=shaped,
    tokenizer=emu3_tokenizer,
    sizes={"emu3-8b": Emu3Config},
    published=Published(
        dialect=DIALECT,
        sizes=emu3_config_from_shapes,
        read=convert_emu3,
        read_tokenizer=convert_emu3_vq,
        inside=TOKENIZERS,
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
