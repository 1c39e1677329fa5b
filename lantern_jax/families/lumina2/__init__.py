"""Lumina-mGPT 2.0 (arXiv 2507.17801)."""

from lantern_jax.families.lumina2.model import Lumina2Config, lumina2_target
from lantern_jax.families.lumina2.prompts import Lumina2Encoder, structuring_ids
from lantern_jax.families.lumina2.weights import (
    DIALECT,
    convert_lumina2,
    convert_movqgan,
    lumina2_config_from_shapes,
    movqgan,
)
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, Family, File, Format, Published
from lantern_jax.families.token_weights import model_shapes, published_order, random_conditioning
from lantern_jax.models.tokens import shaped


def _conversion(repository: str, out: str) -> str:
    files = "--text-tokenizer tokenizer.json --vqgan movqgan/movqgan_270M.ckpt"
    return f"lumina2 --from-hub Alpha-VLLM/{repository} {files} --out {out}"


FAMILY = Family(
    Lumina2Config,
    model_shapes,
    lumina2_target,
    Lumina2Encoder,
    random_conditioning,
    published_order=published_order,
    shaped=shaped,
    tokenizer=movqgan,
    sizes={"lumina2-7b": Lumina2Config},
    published=Published(
        dialect=DIALECT,
        sizes=lumina2_config_from_shapes,
        read=convert_lumina2,
        read_tokenizer=convert_movqgan,
        model=lambda config: "Lumina-mGPT-2.0",
        defaults=lambda config: {"guidance": 4.0, "top_k": 4096, "temperature": 1.0},
        told=lambda files, settings: (structuring_ids(files["text_tokenizer"]), ""),
        repositories={
            "alpha-vllm/lumina-mgpt-2.0": _conversion("Lumina-mGPT-2.0", "lumina2"),
            "alpha-vllm/lumina-mgpt-2.0-omni": _conversion("Lumina-mGPT-2.0-Omni", "lumina2-omni"),
        },
    ),
    formats={
        "lumina2": Format(
            "Lumina-mGPT-2.0: model, MoVQGAN",
            (MODEL, TOKENIZER_JSON, File("vqgan", "MoVQGAN's movqgan_270M.ckpt")),
        )
    },
)
