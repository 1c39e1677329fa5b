"""What the server says of its model: for clients, and for the page to make its controls from."""

from typing import Any

from lantern_jax.decoding.methods import methods
from lantern_jax.io.errors import LanternError
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.settings import KNOBS

# Prompts that one or the other kind of model takes.
_EXAMPLES = ("snowy mountains at dusk by a calm lake", "207", "0")


def example_prompt(pipeline: Pipeline) -> str:
    """A prompt that the model takes.

    Raises:
        ValueError: it takes none: it has no text encoder, say.
    """
    vocabulary = pipeline.checkpoint.vocabulary
    candidates = [*_EXAMPLES, *(vocabulary.known_words() if vocabulary is not None else ())]
    why = None
    for prompt in candidates:
        try:
            pipeline.check(prompt)
            return prompt
        except ValueError as error:
            why = why or error
    raise why


def picture_side(pipeline: Pipeline) -> int:
    """Pixels of a side of the model's pictures.

    Raises:
        ValueError: nothing to draw them with.
    """
    checkpoint = pipeline.checkpoint
    if not pipeline.draws:
        raise LanternError(f"{checkpoint.model} has no VQ tokenizer to draw with: convert it again with one")
    return checkpoint.target_config.grid * checkpoint.tokenizer_config.downsampling


def model_entry(pipeline: Pipeline, name: str) -> dict[str, Any]:
    """The model in the shape of OpenAI's list, and under ``lantern`` its pictures, words, methods and knobs."""
    config, vocabulary = pipeline.checkpoint.target_config, pipeline.checkpoint.vocabulary
    defaults = pipeline.settings({})
    described = {
        "side": picture_side(pipeline),
        "columns": config.grid,
        "tokens": config.grid**2,
        "example": example_prompt(pipeline),
        "words": [] if vocabulary is None else vocabulary.known_words(),
        "methods": _methods(pipeline),
        "knobs": {
            knob.name: {
                "help": knob.help,
                "note": knob.note,
                "range": knob.range,
                "default": getattr(defaults, knob.name, knob.default),
            }
            for knob in KNOBS.values()
            if knob.type in (int, float) and knob.name != "batch"
        },
    }
    return {"id": name, "object": "model", "created": 0, "owned_by": "lantern_jax", "lantern": described}


def _methods(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """Those that the model can be decoded with: what each is, and its acceptance rule."""
    found = {}
    for name, method in methods().items():
        try:
            found[name] = {"help": method.help, "rule": pipeline.settings({"method": name}).rule}
        except ValueError:
            continue
    return found
