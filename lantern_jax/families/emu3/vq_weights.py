"""Converts Emu3's published video tokenizer (original or transformers' layout) to `VQModel` parameters for pictures.

Names are those of taming-transformers, plus `encoder.time_conv.{i}`, `encoder.time_res_stack.{i}` and the decoder's
counterparts for the layers over time (`models.vq_clip`). Attention in transformers' layout has linear layers, ours has
1x1 convolutions.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lantern_jax.families.vq_weights import VQLayout, read_vq, taming_place
from lantern_jax.models.vq import VQConfig
from lantern_jax.tensors.matching import Entry, convolution, transpose

_CLIPS = {"encoder_clip": "encoder", "decoder_clip": "decoder"}
_PARTS = {"conv": "time_conv", "res": "time_res_stack"}


def _place(path: tuple[str, ...], levels: int) -> str:
    if path[0] in ("quant_conv", "post_quant_conv"):
        return f"{path[0]}.conv"
    if path[0] not in _CLIPS:
        return taming_place(path, levels)
    kind, _, number = path[1].rpartition("_")
    inner = {"conv1": ["conv1", "conv"], "conv2": ["conv2", "conv"]}
    last = (
        ["conv", "conv"]
        if kind == "conv"
        else [name for part in path[2:] for name in inner.get(part, [part])]
    )
    return ".".join([_CLIPS[path[0]], _PARTS[kind], number, *last])


def _hugging_face_place(path: tuple[str, ...], levels: int) -> str:
    place = _place(path, levels)
    for old, new in (
        (r"^(encoder)\.down\.", r"\1.down_block.down."),
        (r"^(decoder)\.up\.", r"\1.up_block.up."),
        (r"\.mid\.", ".middle_block."),
        (r"\.attn_1\.norm", ".attn_norm"),
        (r"\.attn\.(\d+)\.norm", r".attn_norms.\1"),
        (r"\.(attn_1|attn\.\d+)\.([qkv])$", r".\1.\2_proj"),
        (r"\.(attn_1|attn\.\d+)\.proj_out$", r".\1.out_proj"),
    ):
        place = re.sub(old, new, place)
    return place


def _stored(entry: Entry) -> Entry:
    """Adapts the entry of a kernel over time to its published form."""
    path, shape = entry.path, entry.shape
    over_time = path[0] in (*_CLIPS, "quant_conv", "post_quant_conv") and len(shape) == 4
    if not over_time:
        doubled = path[:2] == ("encoder_clip", "conv_0")
        return dataclasses.replace(entry, shape=(shape[0] // 2,), transform=_twice) if doubled else entry
    if path[0] == "encoder_clip" and path[1].startswith("conv_"):
        width = min(shape[:2])
        return dataclasses.replace(entry, shape=(width, width, 4, *shape[2:]), transform=_HALVINGS[path[1]])
    return dataclasses.replace(entry, shape=(*shape[:2], 3, *shape[2:]), transform=_last_step)


def _hugging_face_stored(entry: Entry) -> Entry:
    entry = _stored(entry)
    if len(entry.shape) == 4 and any(part in entry.path for part in ("q", "k", "v", "proj_out")):
        return dataclasses.replace(
            entry, shape=entry.shape[:2], transform=lambda weight: transpose(weight)[None, None]
        )
    return entry


def _twice(bias: np.ndarray) -> np.ndarray:
    return np.concatenate([bias, bias])


def _last_step(weight: np.ndarray) -> np.ndarray:
    """Keeps the time step that meets the first frame: before it there are only zeros."""
    return convolution(weight[:, :, -1])


def _first_halving(weight: np.ndarray) -> np.ndarray:
    """Makes the kernel that turns four equal frames, preceded by two of zeros, into two: the first sees two of them."""
    weight = np.asarray(weight, np.float32)
    frames = (weight[:, :, 2:].sum(axis=2), weight.sum(axis=2))
    return convolution(np.concatenate(frames, axis=0))


def _second_halving(weight: np.ndarray) -> np.ndarray:
    """Makes the kernel that turns two frames, preceded by two of zeros, into one."""
    return convolution(np.concatenate([weight[:, :, 2], weight[:, :, 3]], axis=1))


_HALVINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "conv_0": _first_halving, "conv_1": _second_halving,
}  # fmt: skip
_IGNORED = (r".*\.num_batches_tracked",)
ORIGINAL = VQLayout("Emu3 tokenizer", _place, False, _IGNORED, _stored)
HUGGING_FACE = VQLayout("Emu3 tokenizer", _hugging_face_place, False, _IGNORED, _hugging_face_stored)


def emu3_tokenizer() -> VQConfig:
    """Returns the config of the published tokenizer, for pictures."""
    return VQConfig(
        ch=256, ch_mult=(1, 2, 2, 4), z_channels=4, codebook_size=32768, codebook_dim=4, l2_norm=False,
        code_norm=True, clip_blocks=2,
    )  # fmt: skip


def convert_emu3_vq(tensors: Mapping[str, Any]) -> tuple[VQConfig, dict[str, Any]]:
    """Converts the tokenizer's tensors, in either layout, as ``read_vq`` does."""
    layout = HUGGING_FACE if "encoder.middle_block.attn_norm.weight" in tensors else ORIGINAL
    return read_vq(tensors, layout=layout)
