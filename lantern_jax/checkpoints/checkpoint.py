"""The parts of a checkpoint, and whether they fit each other."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.drafters.registry import DRAFTERS, misfits
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.quantization import shapes_as
from lantern_jax.models.sizes import shape_of
from lantern_jax.models.t5 import T5Config, t5_shapes
from lantern_jax.models.vq import VQConfig, vq_shapes
from lantern_jax.tensors.matching import describe_mismatch
from lantern_jax.text.vocabulary import Vocabulary

# The entry of the metadata with tokens per pass by the text of guesses (``settings.auto``).
TOKENS_PER_PASS = "tokens_per_pass"

# Part of a checkpoint -> the function from its config to its parameters' shapes; drafters, one per kind, are separate.
PARTS: dict[str, Callable[[Any], PyTree]] = {
    "target": lambda config: family_of(config).shapes(config),
    "tokenizer": vq_shapes,
    "text_encoder": t5_shapes,
}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Everything that generation needs.

    Attributes:
        model: the model's name, for people.
        target_config, target_params: a model of a family; its parameters are NumPy or JAX arrays, ``{"params": ...}``.
        tokenizer_config, tokenizer_params: the VQ tokenizer, or None; without it there are tokens but no pictures.
        drafters: (config, parameters) by kind of drafter, a name in ``drafters.registry.DRAFTERS``.
        text_encoder_config, text_encoder_params: T5 for captions, or None. A checkpoint read from a folder has
            only the config: ``store.load_text_encoder`` reads the parameters when captions must be encoded.
        text_tokenizer: the file that turns text into token ids (T5's or Chameleon's), or None.
        codebook: nearest neighbours and codes as the decoder sees them, for relaxed rules; or None.
        vocabulary: the words of the demo's prompts, or None.
        defaults: sampling settings this model is best used with, by knob name.
        metadata: anything JSON can hold: source, recipe, metrics.
        directory: the folder it was read from, or None.
        size: the requested size of pictures, such as "832x624"; None for the model's own.

    Example:
        >>> checkpoint = lantern_jax.load("demo").checkpoint
        >>> checkpoint.target_config.grid, checkpoint.tokenizer_config.downsampling, sorted(checkpoint.drafters)
        (16, 16, ['eagle', 'eagle3', 'medusa', 'parallel'])
    """

    model: str
    target_config: TargetConfig
    target_params: PyTree
    tokenizer_config: VQConfig | None = None
    tokenizer_params: PyTree | None = None
    drafters: Mapping[str, tuple[Any, PyTree]] = dataclasses.field(default_factory=dict)
    text_encoder_config: T5Config | None = None
    text_encoder_params: PyTree | None = None
    text_tokenizer: Path | None = None
    codebook: Codebook | None = None
    vocabulary: Vocabulary | None = None
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    directory: Path | None = None
    size: str | None = None


def are_shapes(params: PyTree) -> bool:
    """Tells whether shapes and dtypes stand in for parameters."""
    return isinstance(jax.tree.leaves(params)[0], jax.ShapeDtypeStruct)


def check(checkpoint: Checkpoint) -> None:
    """Raises LanternError if parameters do not fit their configs or parts do not fit each other."""
    for part, shapes_of in PARTS.items():
        config = getattr(checkpoint, f"{part}_config")
        params = getattr(checkpoint, f"{part}_params")
        if (config is None) != (params is None):
            raise LanternError(
                f"the {part} has {'parameters' if config is None else 'a config'} only: give both"
            )
        if config is not None:
            _check_part(part, params, shapes_as(shapes_of(config), params))
    for kind, (config, params) in checkpoint.drafters.items():
        if type(config) is not DRAFTERS.find(kind).config:
            raise LanternError(
                f"the {kind} drafter's config is a {type(config).__name__}: give a {DRAFTERS[kind].config.__name__}"
            )
        _check_part(f"{kind} drafter", params, DRAFTERS[kind].shapes(config))
    check_fit(checkpoint)


def check_fit(checkpoint: Checkpoint) -> None:
    """Raises LanternError if the configs of parts do not fit each other."""
    target, tokenizer = checkpoint.target_config, checkpoint.tokenizer_config
    pairs = []
    for kind, (config, _) in checkpoint.drafters.items():
        pairs += [
            (f"{kind} drafter's {name}", ours, theirs) for name, ours, theirs in misfits(config, target)
        ]
    if tokenizer is not None:
        pairs.append(("tokenizer's codebook_size", tokenizer.codebook_size, target.num_codes))
    if checkpoint.codebook is not None:
        pairs.append(("neighbour table's rows", checkpoint.codebook.neighbours.shape[0], target.num_codes))
        pairs.append(("number of codes", checkpoint.codebook.codes.shape[0], target.num_codes))
    if checkpoint.vocabulary is not None:
        pairs.append(("vocabulary's labels", checkpoint.vocabulary.num_labels, target.num_labels))
        pairs.append(("vocabulary's attributes", checkpoint.vocabulary.num_attributes, target.label_slots))
    if checkpoint.text_encoder_config is not None:
        width = family_of(target).text_width(target)
        pairs.append(("text encoder's dim", checkpoint.text_encoder_config.dim, width))
    wrong = [f"the {name} {given}, the target's {wanted}" for name, given, wanted in pairs if given != wanted]
    if wrong:
        raise LanternError(f"parts of the checkpoint do not fit each other: {'; '.join(wrong)}")


def _check_part(part: str, params: PyTree, shapes: PyTree) -> None:
    mismatch = describe_shapes({part: params}, {part: shapes})
    if mismatch:
        raise LanternError(f"the {part}'s parameters do not fit its config: {mismatch}")


def describe_shapes(found: PyTree, expected: PyTree) -> str:
    """Lists a tree's missing, unexpected and misshapen arrays in one line; empty if there are none."""
    return describe_mismatch(_flat_shapes(found), _flat_shapes(expected))


def _flat_shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        ".".join(str(key.key) for key in path if str(key.key) != "params"): tuple(leaf.shape)
        for path, leaf in flat
    }


def picture_size(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Returns width and height of a checkpoint's pictures in pixels; None if nothing says how large a code is."""
    (rows, columns), cell = shape_of(checkpoint.target_config), code_pixels(checkpoint)
    return None if cell is None else (columns * cell, rows * cell)


def code_pixels(checkpoint: Checkpoint) -> int | None:
    """Returns the side of a code in pixels: as its tokenizer draws it, or as the software does that draws the model's
    pictures; None for neither."""
    tokenizer = checkpoint.tokenizer_config
    return (
        getattr(checkpoint.target_config, "code_pixels", None)
        if tokenizer is None
        else tokenizer.downsampling
    )


def size_text(size: tuple[int, int] | None) -> str | None:
    """Returns a size as people write it, "832x624", width first."""
    return None if size is None else "{}x{}".format(*size)


def sized(checkpoint: Checkpoint, size: str | None) -> Checkpoint:
    """Returns a checkpoint whose pictures have the given size, such as "832x624": width, then height, in pixels.

    Raises:
        LanternError: the text is not a size, or the model cannot draw that size.
    """
    if size is None:
        return checkpoint
    found = re.fullmatch(r"([1-9]\d{0,4})[xX]([1-9]\d{0,4})", str(size))
    if found is None:
        raise errors.invalid("size", size, "width and height in pixels, such as 832x624")
    width, height = map(int, found.groups())
    config, own = checkpoint.target_config, picture_size(checkpoint)
    family, cell = family_of(config), code_pixels(checkpoint)
    if (width, height) == own:
        return checkpoint
    if family.shaped is None or cell is None:
        only = "" if own is None else f" alone ({size_text(own)})"
        raise LanternError(
            f"size {size}: {checkpoint.model} draws pictures of its own size{only}: leave it out"
        )
    if width % cell or height % cell:
        raise errors.invalid("size", size, f"multiples of {cell} pixels")
    made = dataclasses.replace(
        checkpoint,
        target_config=family.shaped(config, height // cell, width // cell),
        size=f"{width}x{height}",
    )
    check_fit(made)
    return made
