"""What a checkpoint's ``config.json`` says about its parts: writing its content, and reading it."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from lantern_jax.checkpoints.checkpoint import PARTS, Checkpoint
from lantern_jax.checkpoints.folder import FORMAT, VERSION, Folder
from lantern_jax.devices import kept
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.families.registry import FAMILIES, TargetConfig, family_name
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.quantization import SCALE, quantized_shapes
from lantern_jax.models.t5 import T5Config
from lantern_jax.models.vq import VQConfig
from lantern_jax.text.vocabulary import Vocabulary

# Entry of a codebook -> the array whose rows have that width.
_WIDTHS = {"neighbours": "neighbours", "channels": "codes"}


def config_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the content of a checkpoint's config, without the list of its files."""
    configs = {part: getattr(checkpoint, f"{part}_config") for part in PARTS}
    codebook, vocabulary = checkpoint.codebook, checkpoint.vocabulary
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": checkpoint.model,
        "family": family_name(checkpoint.target_config),
        **{part: None if config is None else dataclasses.asdict(config) for part, config in configs.items()},
        "drafters": {kind: dataclasses.asdict(config) for kind, (config, _) in checkpoint.drafters.items()},
        "codebook": None
        if codebook is None
        else {"neighbours": codebook.neighbours.shape[1], "channels": codebook.codes.shape[1]},
        "vocabulary": None if vocabulary is None else vocabulary.to_json(),
        "defaults": checkpoint.defaults,
        "metadata": checkpoint.metadata,
    }


@dataclasses.dataclass(frozen=True)
class Configs:
    """What a checkpoint's config says about its parts.

    Attributes:
        target, tokenizer, text_encoder: the parts' configs; None for a part that is missing.
        drafters: configs by kind of drafter.
        vocabulary: the words of the demo's prompts, or None.
        codebook: how wide the rows of "neighbours" and "codes" are; empty without a codebook.
    """

    target: TargetConfig
    tokenizer: VQConfig | None
    text_encoder: T5Config | None
    drafters: Mapping[str, Any]
    vocabulary: Vocabulary | None
    codebook: Mapping[str, int]

    @classmethod
    def of(cls, folder: Folder) -> "Configs":
        """Reads the parts' configs from a folder; raises LanternError for entries from which no part can be made."""
        entries = folder.config
        family = entries.get("family")
        if not isinstance(family, str) or family not in FAMILIES:
            given = errors.printable(repr(family), 40)
            raise LanternError(
                f"{folder.path / 'config.json'}: unknown family {given}, expected one of {', '.join(FAMILIES)}: "
                "upgrade lantern-jax or convert the checkpoint again"
            )
        # The class of the target's config depends on its family; that of a drafter's, on its kind.
        classes = {"target": FAMILIES[family].config, "tokenizer": VQConfig, "text_encoder": T5Config}
        made: dict[str, Any] = {}
        for part, config in classes.items():
            with folder.fitting(part):
                made[part] = None if entries.get(part) is None else config(**entries[part])
        with folder.fitting("vocabulary"):
            words = entries.get("vocabulary")
            made["vocabulary"] = None if words is None else Vocabulary.from_json(words)
        with folder.fitting("drafters"):
            made["drafters"] = {
                kind: DRAFTERS.find(kind).read_config(entry) for kind, entry in entries["drafters"].items()
            }
        with folder.fitting("codebook"):
            sizes = entries.get("codebook")
            widths = {} if sizes is None else {array: int(sizes[name]) for name, array in _WIDTHS.items()}
        return cls(**made, codebook=widths)

    def shapes(self, names: Collection[str]) -> dict[str, PyTree]:
        """Returns the shapes of the arrays of all parts but the text encoder.

        Args:
            names: of the stored arrays, which show whether the target's weights are quantized to eight bits.
        """
        widths = {name: (self.target.num_codes, width) for name, width in self.codebook.items()}
        made = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in widths.items()}
        for part, config in {"target": self.target, "tokenizer": self.tokenizer}.items():
            if config is not None:
                made[part] = _shapes(PARTS[part], config)
        for kind, config in self.drafters.items():
            made.setdefault("drafters", {})[kind] = _shapes(DRAFTERS.find(kind).shapes, config)
        if any(name.startswith("target.") and name.endswith(f".{SCALE}") for name in names):
            made["target"] = quantized_shapes(made["target"])
        return made


def _shapes(shapes: Callable[[Any], PyTree], config: Any) -> PyTree:
    """Returns the shapes of a part, traced only once although a checkpoint is first opened and then read."""
    # A plugin's config may be unhashable.
    return shapes(config) if type(config).__hash__ is None else _traced(shapes, config)


@cache
def _traced(shapes: Callable[[Any], PyTree], config: Any) -> PyTree:
    place = kept.place_of(shapes.__module__, shapes.__qualname__, config)
    found = kept.read(place)
    if found is None:
        found = shapes(config)
        kept.write(place, found)
    return found
