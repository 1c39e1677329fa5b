"""CLIP's published weights, named as by Hugging Face or as by OpenAI and open_clip, to the parameters of ``Clip``.

OpenAI's own ``.pt`` files are programs (TorchScript) and are not read: the same weights are on the Hugging Face hub.
HPSv2's files have open_clip's names.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.metrics.clip import ClipConfig, Tower
from lantern_jax.tensors.layer_names import count_layers, deciding_shapes
from lantern_jax.tensors.matching import Entry, convolution, identity, read_tensors, transpose
from lantern_jax.tensors.tensor_files import open_tensors

WHAT = "CLIP with a vision transformer"
# Position ids, and the temperature of training, which cosines do without.
_UNREAD = re.compile(r"(?:.*\.)?position_ids|logit_scale")
# Numbers that only OpenAI's own state dicts carry.
_OPENAI_MARKS = ("input_resolution", "context_length", "vocab_size")
# Head widths of published vision towers other than the usual, by their width.
_HEAD_WIDTHS = {1280: 80, 1408: 88, 1664: 104}
_USUAL_HEAD_WIDTH = 64
_TOWERS = ("vision", "text")
# Names on the hub of weights that the configs beside them describe.
_HUB_NAMES = re.compile(r"(?:open_clip_)?(?:pytorch_)?model\b.*")


@dataclass(frozen=True)
class ClipLayout:
    """How a publisher names the tensors.

    Attributes:
        layers: tower -> the start of its layers' names, with a place for {i}.
        parts: part of a layer -> what follows, before "weight" or "bias".
        norms: (tower, our norm) -> the start of its names.
        single: (tower, our name) -> the whole name.
        linear: projections are stored [F, D] like linear layers, not [D, F].
    """

    layers: Mapping[str, str]
    parts: Mapping[str, str]
    norms: Mapping[tuple[str, str], str]
    single: Mapping[tuple[str, str], str]
    linear: bool


HUGGING_FACE = ClipLayout(
    layers={tower: f"{tower}_model.encoder.layers.{{i}}." for tower in _TOWERS},
    parts={
        "attention_norm": "layer_norm1.", "q": "self_attn.q_proj.", "k": "self_attn.k_proj.",
        "v": "self_attn.v_proj.", "out": "self_attn.out_proj.", "feed_forward_norm": "layer_norm2.",
        "up": "mlp.fc1.", "down": "mlp.fc2.",
    },
    norms={
        ("vision", "norm_before"): "vision_model.pre_layrnorm.",
        ("vision", "norm_after"): "vision_model.post_layernorm.",
        ("text", "norm_after"): "text_model.final_layer_norm.",
    },
    single={
        ("vision", "class_embedding"): "vision_model.embeddings.class_embedding",
        ("vision", "patches"): "vision_model.embeddings.patch_embedding.weight",
        ("vision", "positions"): "vision_model.embeddings.position_embedding.weight",
        ("vision", "projection"): "visual_projection.weight",
        ("text", "tokens"): "text_model.embeddings.token_embedding.weight",
        ("text", "positions"): "text_model.embeddings.position_embedding.weight",
        ("text", "projection"): "text_projection.weight",
    },
    linear=True,
)  # fmt: skip
OPENAI = ClipLayout(
    layers={"vision": "visual.transformer.resblocks.{i}.", "text": "transformer.resblocks.{i}."},
    parts={
        "attention_norm": "ln_1.", "qkv": "attn.in_proj_", "out": "attn.out_proj.",
        "feed_forward_norm": "ln_2.", "up": "mlp.c_fc.", "down": "mlp.c_proj.",
    },
    norms={
        ("vision", "norm_before"): "visual.ln_pre.",
        ("vision", "norm_after"): "visual.ln_post.",
        ("text", "norm_after"): "ln_final.",
    },
    single={
        ("vision", "class_embedding"): "visual.class_embedding",
        ("vision", "patches"): "visual.conv1.weight",
        ("vision", "positions"): "visual.positional_embedding",
        ("vision", "projection"): "visual.proj",
        ("text", "tokens"): "token_embedding.weight",
        ("text", "positions"): "positional_embedding",
        ("text", "projection"): "text_projection",
    },
    linear=False,
)  # fmt: skip


def read_clip(weights: str | Path, activation: str | None = None) -> tuple[ClipConfig, dict[str, Any]]:
    """Reads the config and ``{"params": ...}`` of a CLIP from its file or folder.

    What shapes do not tell comes from ``activation``; else from the ``config.json`` (Hugging Face) or
    ``open_clip_config.json`` of a folder as on the hub; else from numbers that only OpenAI's own files hold. Heads that
    no config tells are 64 wide, in the vision towers of ViT-H, g and bigG 80, 88 and 104.

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
        tensors: {name: array}; position ids and the temperature among them are left out.
        told: what shapes do not tell: "activation", "vision_heads" and "text_heads"; and "vision_width" and
            "text_width", which are checked against shapes.

    Raises:
        LanternError: one line that lists every missing, unexpected and misshapen tensor, or asks for the activation.
    """
    layout = _layout(tensors)
    config = clip_config_from_shapes(tensors, layout, told or {})
    ignored = [name for name in tensors if _UNREAD.fullmatch(name) or name in _OPENAI_MARKS]
    params = read_tensors(tensors, clip_table(config, layout), what=WHAT, ignored=ignored)
    for tower in params.values():
        for layer in tower.values():
            _join_pieces(layer)
    return config, {"params": params}


def clip_config_from_shapes(
    tensors: Mapping[str, Any], layout: ClipLayout, told: Mapping[str, Any]
) -> ClipConfig:
    """Returns the config by names and shapes (anything with ``.shape``); ``told`` as in ``convert_clip``."""
    single = layout.single
    ups = {tower: layout.layers[tower].format(i=0) + layout.parts["up"] + "weight" for tower in _TOWERS}
    axes = {name: {"class_embedding": 1, "patches": 4}.get(part, 2) for (_, part), name in single.items()}
    shapes = deciding_shapes(tensors, axes | dict.fromkeys(ups.values(), 2), WHAT)

    def tower(name: str) -> Tower:
        width = shapes[single[name, "positions"]][1]
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
        first = layout.layers[name] + layout.parts["attention_norm"] + "weight"
        layers = count_layers(tensors, first)
        return Tower(width, layers, width // usual if heads is None else heads, shapes[ups[name]][0])

    cells, patch = shapes[single["vision", "positions"]][0] - 1, shapes[single["vision", "patches"]][2]
    if math.isqrt(max(cells, 0)) ** 2 != cells or cells < 1:
        raise LanternError(f"these tensors are not a {WHAT}: {cells} patches are not a square")
    projection = shapes[single["vision", "projection"]]
    return ClipConfig(
        vision=tower("vision"),
        text=tower("text"),
        activation=_activation(tensors, told),
        patch=patch,
        side=math.isqrt(cells) * patch,
        embedding=projection[0 if layout.linear else 1],
        vocab_size=shapes[single["text", "tokens"]][0],
        context=shapes[single["text", "positions"]][0],
    )


def clip_table(config: ClipConfig, layout: ClipLayout) -> dict[str, Entry]:
    """Returns {published name: Entry} of a CLIP; queries, keys and values that come apart are joined later."""
    towers = {"vision": config.vision, "text": config.text}
    cells = (config.side // config.patch) ** 2
    table = {
        layout.single["vision", "class_embedding"]: Entry(
            ("vision", "class_embedding"), (config.vision.width,)
        ),
        layout.single["vision", "patches"]: Entry(
            ("vision", "patches", "kernel"), (config.vision.width, 3, config.patch, config.patch), convolution
        ),
        layout.single["text", "tokens"]: Entry(
            ("text", "tokens", "embedding"), (config.vocab_size, config.text.width)
        ),
    }
    for name, count in (("vision", 1 + cells), ("text", config.context)):
        width = towers[name].width
        table[layout.single[name, "positions"]] = Entry((name, "positions"), (count, width))
        shape, turn = (width, config.embedding), identity
        if layout.linear:
            shape, turn = shape[::-1], transpose
        table[layout.single[name, "projection"]] = Entry((name, "projection", "kernel"), shape, turn)
    for (name, norm), start in layout.norms.items():
        table |= norm_entries(start, (name, norm), towers[name].width)
    for name, tower in towers.items():
        for i in range(tower.layers):
            table |= _layer_entries(layout, (name, f"layer_{i}"), layout.layers[name].format(i=i), tower)
    return table


def norm_entries(start: str, path: tuple[str, ...], width: int) -> dict[str, Entry]:
    """Returns the entries of a layer norm at ``path``, published as ``start`` and "weight" or "bias"."""
    return {
        f"{start}weight": Entry((*path, "scale"), (width,)),
        f"{start}bias": Entry((*path, "bias"), (width,)),
    }


def linear_entries(
    start: str, path: tuple[str, ...], shape: tuple[int, int], piece: tuple[str, ...] = ()
) -> dict[str, Entry]:
    """Returns the entries of a linear layer of published shape [out, in]; ``piece`` names a part to be joined."""
    return {
        f"{start}weight": Entry((*path, "kernel", *piece), shape, transpose),
        f"{start}bias": Entry((*path, "bias", *piece), shape[:1]),
    }


def _layer_entries(layout: ClipLayout, path: tuple[str, ...], start: str, tower: Tower) -> dict[str, Entry]:
    width, hidden, entries = tower.width, tower.hidden, {}
    sizes = {"qkv": (3 * width, width), "up": (hidden, width), "down": (width, hidden)}
    for part, middle in layout.parts.items():
        if part.endswith("norm"):
            entries |= norm_entries(start + middle, (*path, part), width)
            continue
        piece = (part,) if part in ("q", "k", "v") else ()
        place = (*path, "qkv" if piece else part)
        entries |= linear_entries(start + middle, place, sizes.get(part, (width, width)), piece)
    return entries


def _join_pieces(layer: Any) -> None:
    """Joins queries, keys and values of a layer that were read apart, in place; leaves all else as it is."""
    if isinstance(layer, dict) and "qkv" in layer:
        for name, pieces in layer["qkv"].items():
            if isinstance(pieces, dict):
                layer["qkv"][name] = np.concatenate([pieces[part] for part in "qkv"], axis=-1)


def _layout(tensors: Mapping[str, Any]) -> ClipLayout:
    for layout in (HUGGING_FACE, OPENAI):
        if layout.single["vision", "class_embedding"] in tensors:
            return layout
    raise LanternError(
        f"these tensors are not a {WHAT}: give one in Hugging Face's, OpenAI's or open_clip's layout"
    )


def _activation(tensors: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    if "activation" in told:
        return told["activation"]
    if all(name in tensors for name in _OPENAI_MARKS):
        return "quick_gelu"
    raise LanternError(
        "tensors do not tell the activation: give quick_gelu (OpenAI's weights) or gelu (LAION's, HPSv2's), "
        "or put its config.json beside it"
    )


def _told_beside(weights: Path) -> dict[str, Any]:
    """Returns what the configs of a folder tell, for ``convert_clip``; nothing for a file not named as on the hub."""
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
    # Configs may leave out what is transformers' default.
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
