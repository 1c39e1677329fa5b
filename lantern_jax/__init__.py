"""Speculative decoding for visual autoregressive image models in JAX, after LANTERN and LANTERN++.

The public API, listed in full. A name is imported from its module when it is first used, so that
``import lantern_jax`` costs nothing and needs the core dependencies only.
"""

from importlib import import_module

_MODULES = {
    # From prompts to pictures.
    "pipeline": ("Pipeline", "load"),
    "generation": ("Generation", "Statistics"),
    "settings": ("Knobs", "Settings"),
    "decoding.methods": ("Method", "methods"),
    "compilation": ("keep_compiled_programs",),
    "pictures": ("draw_acceptance", "grid", "side_by_side"),
    # Decoding, for any model that fills the two records.
    "decoding.protocols": ("Drafter", "Prefix", "Target"),
    "decoding.loop": ("Decoded", "autoregressive_decode", "speculative_decode"),
    "decoding.sampling": (
        "SamplingParams",
        "apply_guidance",
        "gumbel_argmax",
        "gumbel_noise",
        "process_logits",
    ),
    "decoding.tree": ("DraftTree", "load_tree", "named_tree", "tree_names"),
    "decoding.drafting": ("Draft", "draft_tree"),
    "decoding.neighbours": ("nearest_codes",),
    "decoding.acceptance": ("Codebook", "Lantern", "LanternPlusPlus", "Strict", "rule_from_name"),
    "decoding.verification": ("Verification", "verify_tree"),
    "decoding.cache": ("KVCache", "commit", "new_cache"),
    # Models and checkpoints.
    "models.llamagen": (
        "CaptionConditioning",
        "LlamaGen",
        "LlamaGenConfig",
        "llamagen_target",
        "published_config",
    ),
    "models.chameleon": ("Chameleon", "ChameleonConfig", "TokenConditioning", "chameleon_target"),
    "models.targets": ("transformer_target",),
    "models.drafter": ("DrafterConfig", "DrafterModel", "eagle_drafter"),
    "models.t5": ("T5Config", "T5Encoder"),
    "models.vq": ("VQConfig", "VQModel"),
    "checkpoints.store": ("Checkpoint",),
    # Prompts.
    "text.encoded": ("EncodedPrompts", "load_encoded", "save_encoded"),
    "text.chameleon": ("ChameleonVocabulary",),
    "data.prompts": ("Vocabulary", "parse_prompt"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
