"""From CLIP's published weights, named as by Hugging Face or as by OpenAI and open_clip, to ``Clip``'s parameters.

OpenAI's own ``.pt`` files are programs (TorchScript) and are not read: the same weights are on the Hugging Face hub.
HPSv2's files have open_clip's names.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.apps.metrics.clip import ClipConfig, Tower, clip_shapes
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.tensors.layer_names import count_layers, deciding_shapes
from lantern_jax.tensors.matching import Entry, Names, module_table, named_by, read_tensors

WHAT = "CLIP with a vision transformer"
# Position ids, and the temperature of training, which cosines do not need.
_UNREAD = re.compile(r"(?:.*\.)?position_ids|logit_scale")
# Head widths of published vision towers where they differ from the usual one, by the tower's width.
_HEAD_WIDTHS = {1280: 80, 1408: 88, 1664: 104}
_USUAL_HEAD_WIDTH = 64
_TOWERS = ("vision", "text")
# Names on the hub of weight files that the configs beside them describe.
_HUB_NAMES = re.compile(r"(?:open_clip_)?(?:pytorch_)?model\b.*")


def _layout(starts: Mapping[str, str], layer: Names, others: Names) -> Names:
    """Returns the published names of a CLIP's parts; ``starts`` are the prefixes of each tower's layers."""
    layers: dict[str, str | tuple[str, ...]] = {}
    for tower, start in starts.items():
        for part, name in layer.items():
            whole = start + name if isinstance(name, str) else tuple(start + piece for piece in name)
            layers[f"{tower}.layer_{{i}}.{part}"] = whole
    return layers | dict(others)


HUGGING_FACE = _layout(
    {tower: f"{tower}_model.encoder.layers.{{i}}." for tower in _TOWERS},
    {
        "attention_norm": "layer_norm1", "feed_forward_norm": "layer_norm2", "up": "mlp.fc1", "down": "mlp.fc2",
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "out": "self_attn.out_proj",
    },
    {
        "vision.class_embedding": "vision_model.embeddings.class_embedding",
        "vision.patches": "vision_model.embeddings.patch_embedding",
        "vision.positions": "vision_model.embeddings.position_embedding.weight",
        "vision.norm_before": "vision_model.pre_layrnorm",
        "vision.norm_after": "vision_model.post_layernorm",
        "vision_projection": "visual_projection",
        "text.tokens": "text_model.embeddings.token_embedding",
        "text.positions": "text_model.embeddings.position_embedding.weight",
        "text.norm_after": "text_model.final_layer_norm",
        "text.projection": "text_projection",
    },
)  # fmt: skip
# Projections are stored as [D, F] here.
OPENAI = _layout(
    {"vision": "visual.transformer.resblocks.{i}.", "text": "transformer.resblocks.{i}."},
    {
        "attention_norm": "ln_1", "feed_forward_norm": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj",
        "qkv.kernel": "attn.in_proj_weight", "qkv.bias": "attn.in_proj_bias", "out": "attn.out_proj",
    },
    {
        "vision.class_embedding": "visual.class_embedding",
        "vision.patches": "visual.conv1",
        "vision.positions": "visual.positional_embedding",
        "vision.norm_before": "visual.ln_pre",
        "vision.norm_after": "visual.ln_post",
        "vision_projection.kernel": "visual.proj",
        "text.tokens": "token_embedding",
        "text.positions": "positional_embedding",
        "text.norm_after": "ln_final",
        "text.projection.kernel": "text_projection",
    },
)  # fmt: skip


def read_clip(weights: str | Path, activation: str | None = None) -> tuple[ClipConfig, dict[str, Any]]:
    """Reads the config and ``{"params": ...}`` of a CLIP from its file or folder.

    What shapes do not tell comes from ``activation``, or from the ``config.json`` (Hugging Face) or
    ``open_clip_config.json`` of a folder as on the hub. Unless a config says otherwise, heads are 64 wide; in the
    vision towers of ViT-H, g and bigG they are 80, 88 and 104 wide.

    Args:
        weights: anything ``open_tensors`` reads.
        activation: "quick_gelu" (OpenAI's weights) or "gelu" (LAION's, HPSv2's).

    Raises:
        LanternError: the file cannot be read or is not such a CLIP, or its activation is unknown.
    """
    weights = Path(weights)
    tensors = open_tensors(weights)
    told = _told_beside(weights)
    if activation is not None:
        told["activation"] = activation
    try:
        return convert_clip(tensors, told)
    except ValueError as error:
        raise LanternError(f"{weights}: {error}") from error


def convert_clip(
    tensors: Mapping[str, Any], told: Mapping[str, Any] | None = None
) -> tuple[ClipConfig, dict[str, Any]]:
    """Converts the published tensors of a CLIP, in either layout, to its config and ``{"params": ...}``.

    Args:
        tensors: {name: array}; position ids and the temperature among them are ignored.
        told: what shapes do not tell: "activation", "vision_heads" and "text_heads"; and "vision_width" and
            "text_width", which are checked against shapes.

    Raises:
        LanternError: one line that lists every missing, unexpected and misshapen tensor, or asks for the activation.
    """
    published = "vision.class_embedding"
    layout = next((layout for layout in (HUGGING_FACE, OPENAI) if layout[published] in tensors), None)
    if layout is None:
        raise LanternError(
            f"these tensors are not a {WHAT}: give one in Hugging Face's, OpenAI's or open_clip's layout"
        )
    config = clip_config_from_shapes(tensors, layout, told or {})
    ignored = [name for name in tensors if _UNREAD.fullmatch(name)]
    return config, {"params": read_tensors(tensors, clip_table(config, layout), what=WHAT, ignored=ignored)}


def clip_config_from_shapes(tensors: Mapping[str, Any], layout: Names, told: Mapping[str, Any]) -> ClipConfig:
    """Reads the config off names and shapes (anything with ``.shape``); ``told`` is as in ``convert_clip``."""
    if "activation" not in told:
        raise LanternError("tensors do not tell the activation: put its config.json beside it")
    name_of = named_by(layout)
    axes = {"vision.class_embedding": 1, "vision.patches.kernel": 4, "text.tokens.embedding": 2}
    axes |= {f"{tower}.{part}": 2 for tower in _TOWERS for part in ("positions", "layer_0.up.kernel")}
    axes |= {"vision_projection.kernel": 2, "text.projection.kernel": 2}
    found = deciding_shapes(tensors, {name_of(part): count for part, count in axes.items()}, WHAT)
    shapes = {part: found[name_of(part)] for part in axes}

    def tower(name: str) -> Tower:
        width = shapes[f"{name}.positions"][1]
        stated = told.get(f"{name}_width")
        if stated not in (None, width):
            raise LanternError(
                f"the config beside it is of a {name} tower of width {stated}, the tensors of {width}: "
                "give the matching one"
            )
        usual = _HEAD_WIDTHS.get(width, _USUAL_HEAD_WIDTH) if name == "vision" else _USUAL_HEAD_WIDTH
        heads = told.get(f"{name}_heads")
        if heads is None and width % usual:
            raise LanternError(
                f"shapes do not tell how many heads a {name} tower of width {width} has: "
                "put its config.json beside it"
            )
        layers = count_layers(tensors, name_of(f"{name}.layer_{{i}}.attention_norm.scale"))
        hidden = shapes[f"{name}.layer_0.up.kernel"][0]
        return Tower(width, layers, width // usual if heads is None else heads, hidden)

    patch, projection = shapes["vision.patches.kernel"][2], shapes["vision_projection.kernel"]
    # The first position is the class token's.
    patches = shapes["vision.positions"][0] - 1
    side = math.isqrt(max(patches, 0))
    if side**2 != patches or not side:
        raise LanternError(f"these tensors are not a {WHAT}: {patches} patches are not a square")
    return ClipConfig(
        vision=tower("vision"),
        text=tower("text"),
        activation=told["activation"],
        patch=patch,
        side=patch * side,
        embedding=projection[0 if "vision_projection" in layout else 1],
        vocab_size=shapes["text.tokens.embedding"][0],
        context=shapes["text.positions"][0],
    )


def clip_table(config: ClipConfig, layout: Names) -> dict[str, Entry]:
    """Returns {published name: Entry} of a CLIP."""
    return module_table(clip_shapes(config)["params"], named_by(layout))


def _told_beside(weights: Path) -> dict[str, Any]:
    """Returns what a folder's configs tell ``convert_clip``; nothing for a file that is not named as on the hub."""
    if not weights.is_dir() and not _HUB_NAMES.fullmatch(weights.name):
        return {}
    folder = weights if weights.is_dir() else weights.parent
    for name, tell in (("config.json", _tell_hugging_face), ("open_clip_config.json", _tell_open_clip)):
        path = folder / name
        if path.is_file():
            try:
                told = tell(read_json(path, 10**6))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise LanternError(f"{path} is not the config of a CLIP ({error}): fetch it again") from error
            if told:
                return told
    return {}


def _tell_hugging_face(config: Mapping[str, Any]) -> dict[str, Any]:
    if "vision_config" not in config:
        return {}
    towers = {tower: config[f"{tower}_config"] for tower in _TOWERS}
    # Configs may leave out transformers' defaults.
    activations = {tower.get("hidden_act", "quick_gelu") for tower in towers.values()}
    if len(activations) > 1:
        raise LanternError("its towers have different activations")
    told = {"activation": activations.pop()}
    for name, tower in towers.items():
        told |= {f"{name}_heads": tower.get("num_attention_heads"), f"{name}_width": tower.get("hidden_size")}
    return told


def _tell_open_clip(config: Mapping[str, Any]) -> dict[str, Any]:
    model = config["model_cfg"]
    vision, text = model["vision_cfg"], model["text_cfg"]
    return {
        "activation": "quick_gelu" if model.get("quick_gelu", False) else "gelu",
        "vision_heads": vision["width"] // vision.get("head_width", _USUAL_HEAD_WIDTH),
        "vision_width": vision["width"],
        "text_heads": text.get("heads"),
        "text_width": text.get("width"),
    }
