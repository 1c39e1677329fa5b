"""Published models of ``GuidedTokens``, as ``lantern convert`` reads them. Needs no JAX."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lantern_jax.io.plugins import Late, at


@dataclass(frozen=True, eq=False)
class Published(Late):
    """A published model.

    Attributes:
        model: its name.
        read: (tensors, settings, dtype=, progress=) -> the target's config and parameters.
        read_tokenizer: (tensors, progress=) -> config and parameters of the tokenizer of its pictures.
        inside: what the names of that tokenizer's tensors begin with where they are among the model's.
        defaults: the settings it is usually sampled with.
    """

    model: str
    read: Callable[..., tuple[Any, Any]]
    read_tokenizer: Callable[..., tuple[Any, Any]]
    defaults: Mapping[str, float]
    inside: tuple[str, ...] = ()

    def tokenizer_inside(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tokenizer's tensors among a model's, by their names in it."""
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
        at("lantern_jax.families.janus_weights:convert_janus"),
        at("lantern_jax.families.janus_weights:convert_janus_vq"),
        {"guidance": 5.0, "top_k": 0, "temperature": 1.0},
        inside=("gen_vision_model.", "model.vqmodel."),
    ),
    "emu3": Published(
        "Emu3-Gen",
        at("lantern_jax.families.emu3_weights:convert_emu3"),
        at("lantern_jax.families.emu3_vq_weights:convert_emu3_vq"),
        {"guidance": 3.0, "top_k": 2048, "temperature": 1.0},
        inside=("model.vqmodel.", "vqmodel."),
    ),
    "liquid": Published(
        "Liquid",
        at("lantern_jax.families.liquid_weights:convert_liquid"),
        at("lantern_jax.families.chameleon_vq_weights:convert_vqgan"),
        {"guidance": 7.0, "top_k": 4096, "top_p": 0.96, "temperature": 0.99},
    ),
}
