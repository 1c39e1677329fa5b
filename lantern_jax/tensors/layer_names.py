"""Published Llama-like checkpoints: names of a layer's tensors, and the order of rotary pairs.

Published rotary pairs are interleaved (elements 2i and 2i + 1 of a head: LlamaGen) or half-split (e and e + E/2:
Chameleon), and may be a head's first elements only (GLM-Image); ours are half-split over the whole head, so rows of
queries and keys are reordered head by head.

Axes: D model width, H heads, K key-value heads, Q queries per group (H / K), E head width, F feed-forward width.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.transformer_config import TransformerConfig
from lantern_jax.tensors.matching import Entry, transpose

# Tables that implementations recompute: never weights.
BUFFERS = (r"freqs_cis", r"(?:.*\.)?rotary_emb\.inv_freq")

# A layer's names in Hugging Face's Llama; models put a prefix in front.
LLAMA_LAYER_NAMES = {
    "attention_norm": "layers.{i}.input_layernorm.weight",
    "feed_forward_norm": "layers.{i}.post_attention_layernorm.weight",
    "q": "layers.{i}.self_attn.q_proj.weight",
    "k": "layers.{i}.self_attn.k_proj.weight",
    "v": "layers.{i}.self_attn.v_proj.weight",
    "out": "layers.{i}.self_attn.o_proj.weight",
    "gate": "layers.{i}.mlp.gate_proj.weight",
    "up": "layers.{i}.mlp.up_proj.weight",
    "down": "layers.{i}.mlp.down_proj.weight",
}
# The norms of queries and keys that Chameleon adds.
HEAD_NORM_NAMES = {
    "query_norm": "layers.{i}.self_attn.q_norm",
    "key_norm": "layers.{i}.self_attn.k_norm",
}


def layer_table(
    names: Mapping[str, str],
    i: int,
    transformer: TransformerConfig,
    *,
    interleaved: bool = False,
    rotated: int | None = None,
    norm_rows: int | None = None,
) -> dict[str, Entry]:
    """Returns {published name: Entry} of layer i.

    Args:
        names: part -> published name with a place for {i}; "qkv" if queries, keys and values are one tensor, "gate_up"
            if gate and up are.
        interleaved: whether the published rotary pairs are interleaved.
        rotated: how many elements of a head are rotated as published, its first ones; None for all.
        norm_rows: rows of the published norms of queries and keys; the heads are shared out evenly among them
            (Lumina-mGPT stores one row for all heads). None means one row per head.
    """
    dim, hidden, heads = transformer.dim, transformer.hidden_dim, transformer.num_heads
    groups, keys, width = transformer.groups, transformer.key_heads, transformer.head_dim
    at = ("transformer", f"layer_{i}")
    order = _order(width, width if rotated is None else rotated, interleaved)
    kernel, whole = (*at, "qkv", "kernel"), (groups + 2, keys, width)
    table = {}
    if "qkv" in names:
        fused = Entry(kernel, (3 * dim, dim), partial(_fused, heads, order))
        table[names["qkv"].format(i=i)] = fused
    else:
        queries = partial(_of_groups, heads, groups, order)
        parts = {
            "q": (heads, queries, slice(0, groups)), "k": (keys, partial(_heads, keys, order), groups),
            "v": (keys, partial(_heads, keys, None), groups + 1),
        }  # fmt: skip
        for part, (count, turn, number) in parts.items():
            place = (slice(None), number)
            name = names[part].format(i=i)
            table[name] = Entry(kernel, (count * width, dim), turn, (dim, *whole), place)
            if transformer.qkv_bias:
                bias = (*at, "qkv", "bias")
                turned = partial(_one_row, turn)
                table[f"{name.removesuffix('weight')}bias"] = Entry(
                    bias, (count * width,), turned, whole, place[1:]
                )
    place, whole = (*at, "gate_up", "kernel"), (dim, 2, hidden)
    entries = {
        "out": Entry((*at, "out", "kernel"), (dim, heads * width), partial(_out_kernel, heads=heads)),
        "down": Entry((*at, "down", "kernel"), (dim, hidden), transpose),
        "feed_forward_norm": Entry((*at, "feed_forward_norm", "scale"), (dim,)),
    }
    if "gate_up" in names:
        entries["gate_up"] = Entry(place, (2 * hidden, dim), partial(_heads, 2, None))
    else:
        entries["gate"] = Entry(place, (hidden, dim), transpose, whole, (slice(None), 0))
        entries["up"] = Entry(place, (hidden, dim), transpose, whole, (slice(None), 1))
    if i > 0 or transformer.input_norm:
        entries["attention_norm"] = Entry((*at, "attention_norm", "scale"), (dim,))
    if transformer.output_norms:
        for part in ("attention_output_norm", "feed_forward_output_norm"):
            entries[part] = Entry((*at, part, "scale"), (dim,))
    table |= {names[part].format(i=i): entry for part, entry in entries.items()}
    for part in HEAD_NORM_NAMES if transformer.qk_norm else ():
        name = names[part].format(i=i)
        if transformer.qk_norm == "rms":
            table[f"{name}.weight"] = Entry((*at, part, "scale"), (width,), partial(_turned, order))
            continue
        rows = norm_rows or heads
        spread = partial(np.repeat, repeats=heads // rows, axis=0)
        table[f"{name}.weight"] = Entry((*at, part, "scale"), (rows, width), spread)
        table[f"{name}.bias"] = Entry((*at, part, "bias"), (rows, width), spread)
    return table


def _order(width: int, rotated: int, interleaved: bool) -> np.ndarray | None:
    """Returns the published place of each element of a head, E of them, in our order: pairs (e, e + E/2), of which the
    first ``rotated`` / 2 are rotated; None if that is the published order."""
    pairs = np.arange(rotated).reshape(-1, 2).T if interleaved else np.arange(rotated).reshape(2, -1)
    order = np.concatenate([pairs, np.arange(rotated, width).reshape(2, -1)], axis=1).ravel()
    return None if (order == np.arange(width)).all() else order


def _turned(order: np.ndarray | None, values: np.ndarray) -> np.ndarray:
    return values if order is None else values[order]


def _heads(heads: int, order: np.ndarray | None, weight: np.ndarray) -> np.ndarray:
    """Turns a weight [H * E, D] into a kernel [D, H, E]."""
    if order is not None:
        weight = weight.reshape(heads, len(order), -1)[:, order].reshape(weight.shape)
    return transpose(weight).reshape(weight.shape[1], heads, -1)


def _of_groups(heads: int, groups: int, order: np.ndarray | None, weight: np.ndarray) -> np.ndarray:
    """Turns a weight [H * E, D] of queries into a kernel [D, Q, K, E]."""
    kernel = _heads(heads, order, weight)
    return kernel.reshape(len(kernel), heads // groups, groups, -1).swapaxes(1, 2)


def _one_row(turn, bias: np.ndarray) -> np.ndarray:
    """Turns a bias as ``turn`` does a kernel with one row."""
    return turn(bias[:, None])[0]


def _fused(heads: int, order: np.ndarray | None, weight: np.ndarray) -> np.ndarray:
    """Turns a weight [3 * H * E, D] into a kernel [D, 3, H, E]."""
    queries, keys, values = np.split(weight, 3)
    return np.stack(
        [_heads(heads, order, queries), _heads(heads, order, keys), _heads(heads, None, values)], axis=1
    )


def _out_kernel(weight: np.ndarray, heads: int) -> np.ndarray:
    """Turns a weight [D, H * E] into a kernel [H, E, D]."""
    return transpose(weight).reshape(heads, -1, weight.shape[0])


def heads_of_norm(shape: tuple[int, ...], dim: int) -> tuple[int, int]:
    """Returns the number of heads of a model of width ``dim`` and the number of rows of its query norm [rows, E].

    Raises:
        LanternError: the heads cannot be shared out evenly among the rows.
    """
    rows, head_dim = shape
    heads = dim // head_dim if head_dim else 0
    if heads * head_dim != dim or not rows or heads % rows:
        raise LanternError(
            f"a norm of queries {list(shape)} does not fit width {dim}: give a published Chameleon model"
        )
    return heads, rows


def buffers(names: Iterable[str]) -> list[str]:
    """Returns the names of tables that are not weights."""
    return [name for name in names if any(re.fullmatch(pattern, name) for pattern in BUFFERS)]


def deciding_shapes(
    tensors: Mapping[str, Any], wanted: Mapping[str, int], what: str
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of tensors that decide a model's sizes, none of them 0; ``wanted`` gives their axis counts."""
    wrong = [
        name
        for name, ndim in wanted.items()
        if name not in tensors or len(tensors[name].shape) != ndim or 0 in tensors[name].shape
    ]
    if wrong:
        raise LanternError(
            f"these tensors are not a {what}: missing or misshapen: {errors.listed(wrong)}; there are "
            f"{errors.listed(tensors, 3, 60)}; give a published one"
        )
    return {name: tuple(tensors[name].shape) for name in wanted}


def count_layers(names: Iterable[str], norm_name: str) -> int:
    """Returns one more than the greatest {i} for which ``norm_name`` is among the names."""
    pattern = re.escape(norm_name).replace(r"\{i\}", r"(\d+)")
    return one_more(match[1] for name in names if (match := re.fullmatch(pattern, name)))


def one_more(numbers: Iterable[str], most: int = 1000) -> int:
    """Returns one more than the greatest number in tensors' names; 0 if there is none.

    Raises:
        LanternError: it is more than ``most``: a file with two tensors may name any number of layers.
    """
    numbers = list(numbers)
    wrong = [number for number in numbers if len(number) > 9 or int(number) >= most]
    if wrong:
        raise LanternError(
            f"these tensors name a part {errors.short(wrong[0], 20)}, expected less than {most}"
        )
    return max((int(number) + 1 for number in numbers), default=0)
