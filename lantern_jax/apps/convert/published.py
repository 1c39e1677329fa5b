"""Published ``GuidedTokens`` models, as ``lantern convert`` reads them. Needs no JAX."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lantern_jax.io.plugins import Late, at


@dataclass(frozen=True, eq=False)
class Published(Late):
    """A published model.

    Attributes:
        model: its name.
        sizes: (tensors, settings) -> the target's config, from shapes; no value is read.
        read: (tensors, config, dtype=, progress=) -> the target's config and parameters.
        read_tokenizer: (tensors, progress=) -> config and parameters of its picture tokenizer.
        inside: prefixes of that tokenizer's tensor names where they are among the model's.
        defaults: the settings it is usually sampled with.
        told: the text tokenizer's file -> settings that it determines.
    """

    model: str
    sizes: Callable[..., Any]
    read: Callable[..., tuple[Any, Any]]
    read_tokenizer: Callable[..., tuple[Any, Any]]
    defaults: Mapping[str, float]
    inside: tuple[str, ...] = ()
    told: Callable[[Path], Mapping[str, Any]] = lambda text_tokenizer: {}

    def tokenizer_inside(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the picture tokenizer's tensors among a model's, under the tokenizer's own names."""
        return {
            name.removeprefix(prefix): tensor
            for prefix in self.inside
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }


# By family.
PUBLISHED: Mapping[str, Published] = {
    "janus": Published(
        "Janus-Pro",
        at("lantern_jax.families.janus_weights:janus_config_from_shapes"),
        at("lantern_jax.families.janus_weights:convert_janus"),
        at("lantern_jax.families.janus_weights:convert_janus_vq"),
        {"guidance": 5.0, "top_k": 0, "temperature": 1.0},
        inside=("gen_vision_model.", "model.vqmodel."),
    ),
    "emu3": Published(
        "Emu3-Gen",
        at("lantern_jax.families.emu3_weights:emu3_config_from_shapes"),
        at("lantern_jax.families.emu3_weights:convert_emu3"),
        at("lantern_jax.families.emu3_vq_weights:convert_emu3_vq"),
        {"guidance": 3.0, "top_k": 2048, "temperature": 1.0},
        inside=("model.vqmodel.", "vqmodel."),
    ),
    "liquid": Published(
        "Liquid",
        at("lantern_jax.families.liquid_weights:liquid_config_from_shapes"),
        at("lantern_jax.families.liquid_weights:convert_liquid"),
        at("lantern_jax.families.chameleon_vq_weights:convert_vqgan"),
        {"guidance": 7.0, "top_k": 4096, "top_p": 0.96, "temperature": 0.99},
    ),
    "lumina2": Published(
        "Lumina-mGPT-2.0",
        at("lantern_jax.families.lumina2_weights:lumina2_config_from_shapes"),
        at("lantern_jax.families.lumina2_weights:convert_lumina2"),
        at("lantern_jax.families.lumina2_weights:convert_movqgan"),
        {"guidance": 4.0, "top_k": 4096, "temperature": 1.0},
        told=at("lantern_jax.text.lumina2:structuring_ids"),
    ),
}
