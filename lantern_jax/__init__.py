"""Speculative decoding for visual autoregressive image models in JAX, after LANTERN and LANTERN++.

Most uses need only five names:

    load                  opens a model as a Pipeline: load("demo")
    Pipeline              makes pictures from prompts: generate("a foggy forest", method="led")
    METHODS               names the decoding methods, each with a line of help
    speculative_decode    generates tokens with any JAX model; autoregressive_decode does so by plain decoding
    target_from_apply     turns a model that is one function into a target, which both take; check_target tries it

``help(lantern_jax.NAME)`` has an example of each name, and ``docs/architecture.md`` explains how they fit together. A
name is imported from its module on first use, so ``import lantern_jax`` costs nothing. By topic:
"""

from importlib import import_module
from textwrap import fill

# The public names, by topic and module; type checkers read the same list from ``__init__.pyi``.
_TOPICS = {
    "From prompts to pictures": {
        "pipeline.pipeline": ("Pipeline", "load"),
        "engine.generation": ("Generation", "Interrupted", "Picture", "Progress", "Statistics", "Timing"),
        "settings.settings": ("Options", "Settings"),
        "decoding.methods": ("METHODS", "Method"),
        "pipeline.call": ("Call",),
        "devices.compilation": ("keep_compiled_programs", "search_tilings"),
        "pictures.images": ("draw_acceptance", "grid", "side_by_side"),
        "io.errors": ("IgnoredWords", "LanternError"),
    },
    "Decoding, for any model and drafting that fill in these records": {
        "decoding.loop": ("autoregressive_decode", "speculative_decode"),
        "decoding.program": ("Program",),
        "decoding.completion": ("Completion",),
        "decoding.scoring": ("stream_log_probs",),
        "decoding.stream": ("Decoded",),
        "decoding.protocols": (
            "Draft",
            "Drafting",
            "GuidedTokens",
            "Prefix",
            "Target",
            "TokenConditioning",
        ),
        "decoding.drafting.guessing": ("Guessing",),
        "decoding.drafting.plain": ("Plain",),
        "decoding.drafting.growing": ("DynamicTree",),
        "decoding.drafting.eagle": ("Drafter", "Dynamic", "Tree", "eagle"),
        "decoding.drafting.draft_model": ("drafter_from_target",),
        "decoding.drafting.jacobi": ("Jacobi", "jacobi"),
        "decoding.drafting.led": ("Led", "led_window"),
        "decoding.drafting.window": ("Window",),
        "decoding.gap_tree": ("GapTree",),
        "decoding.echo": ("Echo",),
        "decoding.zipar": ("Rows", "ZipAR"),
        "decoding.tree": ("DraftTree", "named_tree", "tree_names"),
        "decoding.topology": ("topology_of",),
    },
    "Its parts: the distribution sampled from, how draft and target share randomness, what is accepted": {
        "decoding.sampling": (
            "SamplingParams",
            "apply_guidance",
            "gumbel_noise",
            "process_logits",
            "top_children",
        ),
        "decoding.verification": ("Coupling", "verify_tree"),
        "decoding.gumbel": ("Greedy", "Gumbel"),
        "decoding.rejection": ("Rejection",),
        "decoding.block": ("Block",),
        "decoding.acceptance": (
            "Claim",
            "Codebook",
            "Lantern",
            "LanternPlusPlus",
            "Loan",
            "Probabilities",
            "Rule",
            "Strict",
        ),
        "decoding.rules.near": ("Near",),
        "decoding.rules.typical": ("Tolerance", "Typical"),
        "decoding.rules.cool": ("Cool",),
        "decoding.rules.grouped": ("Grouped",),
        "decoding.neighbours": ("nearest_codes",),
    },
    "Batches on devices, a few rounds at a time": {
        "engine.engine": ("Engine",),
        "engine.jobs": ("Job", "Run"),
        "engine.programs": ("Parameters",),
    },
    "Models and checkpoints": {
        "families.llamagen.model": (
            "CaptionConditioning",
            "LlamaGen",
            "LlamaGenConfig",
            "published_config",
        ),
        "families.chameleon.model": ("Chameleon", "ChameleonConfig"),
        "families.emu3.model": ("Emu3Config",),
        "families.janus.model": ("JanusConfig",),
        "families.liquid.model": ("LiquidConfig",),
        "families.lumina2.model": ("Lumina2Config",),
        "models.targets": ("transformer_target",),
        "models.applied": ("target_from_apply",),
        "apps.measuring.check_target": ("check_target",),
        "drafters.sequence": ("DrafterConfig",),
        "drafters.eagle": ("DrafterModel", "eagle_drafter"),
        "drafters.eagle3": ("Eagle3Config", "eagle3_drafter"),
        "drafters.medusa": ("MedusaConfig", "medusa_drafter"),
        "drafters.parallel": ("ParallelConfig", "parallel_drafter"),
        "models.t5": ("T5Config", "T5Encoder"),
        "models.vq": ("VQConfig", "VQModel"),
        "checkpoints.checkpoint": ("Checkpoint",),
    },
    "What other packages bring, each named by an entry point": {
        "decoding.fields": ("ByPlatform", "Range"),
        "drafters.registry": ("DrafterKind",),
        "families.registry": ("Family", "File", "Format", "target_of"),
        "checkpoints.store": ("save",),
        "apps.metrics.registry": ("ReaderKind", "ScoreKind"),
    },
    "Prompts": {
        "text.encoded": ("EncodedPrompts", "load_encoded", "save_encoded"),
        "families.chameleon.prompts": ("ChameleonVocabulary",),
        "text.vocabulary": ("Vocabulary",),
    },
}
_MODULES = {module: names for modules in _TOPICS.values() for module, names in modules.items()}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

for _topic, _modules in _TOPICS.items():
    _names = ", ".join(name for names in _modules.values() for name in names)
    __doc__ = (
        f"{__doc__ or ''}\n{_topic}:\n{fill(_names, 116, initial_indent='    ', subsequent_indent='    ')}\n"
    )

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
