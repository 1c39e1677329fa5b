"""A conversion's options, how its files are opened, and the names in them."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.checkpoints.checkpoint import TOKENS_PER_PASS, Checkpoint
from lantern_jax.devices.platform import check_dtype
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.io import errors
from lantern_jax.io.errors import Assumed, LanternError
from lantern_jax.models.vq import VQConfig

# Enough for the k of the papers (LANTERN up to 1000 at vocabulary 16384).
NEIGHBOURS = 1000
NEIGHBOUR_SPACES = ("decoder", "raw")
_LANGUAGE_MODELS = (
    "model",
    "language_model.model",
    "model.language_model",
    "model.text_model",
    "text_model.model",
)
_MODEL = ("tok_embeddings.weight", *(f"{place}.embed_tokens.weight" for place in _LANGUAGE_MODELS))
_TOKENIZER = ("encoder.conv_in.weight",)
# Part -> names of which one is in every published file.
_FIRST = {
    "gpt": _MODEL, "model": _MODEL, "vq": _TOKENIZER, "vqgan": _TOKENIZER, "drafter": ("embed_tokens.weight",),
    "t5": ("shared.weight", "encoder.embed_tokens.weight"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Options of a conversion, the same for every model.

    Attributes:
        dtype: float16, bfloat16 or float32, of the stored target, drafter and text encoder.
        neighbours: columns of the neighbour table, at most the number of codes less one.
        neighbour_space: "decoder", codes as the decoder sees them (l2-normalized for LlamaGen), or "raw", the
            stored weights (the published table).
        overwrite: replace a checkpoint that exists.
        weights: which set, of files with several, such as "ema"; None for the one that published scripts read.
        progress: called with the bytes that are written, and those that will be.
    """

    dtype: Any = "bfloat16"
    neighbours: int = NEIGHBOURS
    neighbour_space: str = "decoder"
    overwrite: bool = False
    weights: str | None = None
    progress: Callable[[int, int], None] = lambda done, total: None

    def __post_init__(self):
        check_dtype(self.dtype)
        if self.neighbour_space not in NEIGHBOUR_SPACES:
            raise errors.unknown("neighbour space", self.neighbour_space, NEIGHBOUR_SPACES)
        if self.neighbours < 0:
            raise LanternError(f"{self.neighbours} neighbours are not valid: give a number >= 0")


def open_part(part: str, path: Path, weights: str | None = None) -> Mapping[str, Any]:
    """Opens a part's file as ``open_tensors`` does, without what training programs put in front of all names."""
    tensors = open_tensors(path, weights)
    return without_prefix(tensors, _FIRST[part]) if part in _FIRST else tensors


def without_prefix(tensors: Mapping[str, Any], first: Iterable[str]) -> Mapping[str, Any]:
    """Takes off what all names begin with ("module.", "_orig_mod.") until one is among ``first``, if that helps."""
    found = dict(tensors)
    while not any(name in found for name in first):
        fronts = {name.partition(".")[0] for name in found if "." in name}
        if len(fronts) != 1 or not all("." in name for name in found):
            return tensors
        found = {name.partition(".")[2]: tensor for name, tensor in found.items()}
    return found


def add_drafters(
    checkpoint: Checkpoint,
    drafters: Mapping[str, tuple[Any, PyTree]],
    recipes: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Returns the checkpoint with these drafters in place of any others of their kinds.

    If one of them leads windows from now on, what was fitted to and measured with the drafter that led them before
    is dropped: `train.fit` does both again.

    Args:
        drafters: (config, parameters) by kind.
        recipes: how they were trained, by kind, for the metadata.
    """
    together = {**checkpoint.drafters, **drafters}
    defaults, metadata = dict(checkpoint.defaults), dict(checkpoint.metadata)
    described = {kind: one for kind, one in metadata.pop("drafters", {}).items() if kind not in drafters}
    described |= recipes or {}
    if described:
        metadata["drafters"] = described
    if next((kind for kind in DRAFTERS if kind in together), None) in drafters:
        if TOKENS_PER_PASS in metadata:
            rows = metadata[TOKENS_PER_PASS].items()
            metadata[TOKENS_PER_PASS] = {name: row for name, row in rows if not name.startswith("led")}
        for name in ("sharpness", "mixture"):
            defaults.pop(name, None)
    return dataclasses.replace(checkpoint, drafters=together, defaults=defaults, metadata=metadata)


def check_codes(target: TargetConfig, tokenizer: VQConfig) -> None:
    """Warns of a tokenizer that has as many codes as the target's usual one and draws them in another size."""
    usual = family_of(target).tokenizer()
    alike = usual is not None and usual.codebook_size == tokenizer.codebook_size
    if alike and usual.downsampling != tokenizer.downsampling:
        sizes = f"{tokenizer.downsampling} px, the published one in {usual.downsampling}"
        warnings.warn(f"the tokenizer draws a code in {sizes}: is it this model's?", Assumed, stacklevel=1)
