"""Lumina-mGPT 2.0 (arXiv 2507.17801)."""

from lantern_jax.families.lumina2 import weights
from lantern_jax.families.lumina2.model import Lumina2Config
from lantern_jax.families.lumina2.prompts import Lumina2Encoder, structuring_ids
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, File, Format, Published
from lantern_jax.families.token_weights import published_order, token_family


def _conversion(repository: str, out: str) -> str:
    files = "--text-tokenizer tokenizer.json --vqgan movqgan/movqgan_270M.ckpt"
    return f"lumina2 --from-hub Alpha-VLLM/{repository} {files} --out {out}"


FAMILY = token_family(
    Lumina2Config,
    Lumina2Encoder,
    published_order=published_order,
    tokenizer=weights.movqgan,
    sizes={"lumina2-7b": Lumina2Config},
    published=Published(
        dialect=weights.DIALECT,
        sizes=weights.lumina2_config_from_shapes,
        read=weights.convert_lumina2,
        read_tokenizer=weights.convert_movqgan,
        model=lambda config: "Lumina-mGPT-2.0",
        defaults=lambda config: {"guidance": 4.0, "top_k": 4096, "temperature": 1.0},
        more_settings=lambda files: (structuring_ids(files["text_tokenizer"]), ""),
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
