"""GLM-Image (zai-org): the autoregressive part, whose codes a diffusion decoder of other software draws."""

from lantern_jax.families.glm_image import weights
from lantern_jax.families.glm_image.model import GlmImageConfig, preview_of, product
from lantern_jax.families.glm_image.prompts import GlmImageEncoder
from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, Format, Published
from lantern_jax.families.token_weights import token_family

FAMILY = token_family(
    GlmImageConfig,
    GlmImageEncoder,
    preview_of=preview_of,
    product=product,
    sizes={"glm-image": GlmImageConfig},
    published=Published(
        dialect=weights.DIALECT,
        sizes=weights.glm_image_config_from_shapes,
        read=weights.convert_glm_image,
        model=lambda config: "GLM-Image",
        defaults=lambda config: {"guidance": 1.0, "temperature": 0.9, "top_k": 0, "top_p": 0.75},
        repositories={
            "zai-org/glm-image": "glm-image --from-hub zai-org/GLM-Image --model vision_language_encoder "
            "--text-tokenizer processor/tokenizer.json --out glm-image"
        },
    ),
    formats={"glm-image": Format("GLM-Image: its autoregressive part", (MODEL, TOKENIZER_JSON))},
)
