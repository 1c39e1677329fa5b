"""Published ``GuidedTokens`` models, as ``lantern convert`` reads them, and where to find others. Needs no JAX."""

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

_CHAMELEON = "--text-tokenizer chameleon/tokenizer/text_tokenizer.json --vqgan chameleon/tokenizer/vqgan.ckpt"
_LUMINA2 = "--text-tokenizer tokenizer.json --vqgan movqgan/movqgan_270M.ckpt"
# By repository of the Hugging Face hub, in lower case: the command that makes a checkpoint of its files, as in
# docs/models.
_CONVERSIONS: Mapping[str, str] = {
    "foundationvision/llamagen": "llamagen --from-hub FoundationVision/LlamaGen --gpt c2i_B_256.pt "
    "--vq vq_ds16_c2i.pt --out llamagen-b",
    "peizesun/llamagen_t2i": "llamagen --from-hub peizesun/llamagen_t2i --gpt t2i_XL_stage1_256.pt "
    "--vq vq_ds16_t2i.pt --out llamagen-t2i",
    "leloy/anole-7b-v0.1-hf": f"anole --from-hub leloy/Anole-7b-v0.1-hf {_CHAMELEON} "
    "--drafter anole_drafter --out anole",
    "alpha-vllm/lumina-mgpt-7b-768": f"lumina --from-hub Alpha-VLLM/Lumina-mGPT-7B-768 {_CHAMELEON} --out lumina",
    "deepseek-ai/janus-pro-7b": "janus --from-hub deepseek-ai/Janus-Pro-7B --text-tokenizer tokenizer.json "
    "--out janus-7b",
    "emu3-community/emu3-gen-hf": "emu3 --from-hub Emu3-community/Emu3-Gen-hf --text-tokenizer tokenizer.json "
    "--out emu3",
    "junfeng5/liquid_v1_7b": "liquid --from-hub Junfeng5/Liquid_V1_7B --text-tokenizer tokenizer.json "
    "--vqgan chameleon/tokenizer/vqgan.ckpt --out liquid",
    "alpha-vllm/lumina-mgpt-2.0": f"lumina2 --from-hub Alpha-VLLM/Lumina-mGPT-2.0 {_LUMINA2} --out lumina2",
    "alpha-vllm/lumina-mgpt-2.0-omni": f"lumina2 --from-hub Alpha-VLLM/Lumina-mGPT-2.0-Omni {_LUMINA2} "
    "--out lumina2-omni",
}
# Other repositories of the same models: in another layout or in parts.
_ALIKE = {
    "jadohu/llamagen-t2i": "peizesun/llamagen_t2i",
    "gair/anole-7b-v0.1": "leloy/anole-7b-v0.1-hf",
    "baai/emu3-gen": "emu3-community/emu3-gen-hf",
}


def conversion_of(repository: str) -> str | None:
    """Returns the command that makes a checkpoint of a repository's published weights; None for an unknown one."""
    name = repository.lower()
    command = _CONVERSIONS.get(_ALIKE.get(name, name))
    if name == "deepseek-ai/janus-pro-1b":
        command = _CONVERSIONS["deepseek-ai/janus-pro-7b"].replace("7B", "1B").replace("7b", "1b")
    return None if command is None else f"lantern convert {command}"
