"""Where published weights are, and the command that converts them."""

from collections.abc import Mapping

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
