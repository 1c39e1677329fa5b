"""X-Omni (arXiv 2507.22058): the autoregressive part, whose codes a diffusion decoder of other software draws."""

from lantern_jax.families.registry import MODEL, TOKENIZER_JSON, Format, Published
from lantern_jax.families.token_weights import token_family
from lantern_jax.families.x_omni import weights
from lantern_jax.families.x_omni.model import XOmni, XOmniConfig, product
from lantern_jax.families.x_omni.prompts import XOmniEncoder

FAMILY = token_family(
    XOmniConfig,
    XOmniEncoder,
    XOmni,
    published_order=weights.published_order,
    product=product,
    sizes={"x-omni": XOmniConfig},
    published=Published(
        dialect=weights.DIALECT,
        sizes=weights.x_omni_config_from_shapes,
        read=weights.convert_x_omni,
        model=lambda config: "X-Omni",
        defaults=lambda config: {"guidance": 1.0, "temperature": 1.0, "top_k": 0, "min_p": 0.03},
        repositories={
            f"x-omni/x-omni-{name}": f"x-omni --from-hub X-Omni/X-Omni-{name.capitalize()} --text-tokenizer "
            f"tokenizer.json --out x-omni-{name}"
            for name in ("en", "zh")
        },
    ),
    formats={"x-omni": Format("X-Omni: its autoregressive part", (MODEL, TOKENIZER_JSON))},
)
