"""LlamaGen's published GPTs and the drafters released for them, to our parameter trees.

Two layouts of the GPT: the original one (``layers.{i}.attention.wqkv.weight``) and the Hugging Face-style one of
LlamaGen-T2I (``model.layers.{i}.self_attn.q_proj.weight``). Published rotary pairs are interleaved, elements 2i
and 2i + 1 of a head; ours are (e, e + E/2), so the rows of queries and keys are reordered head by head.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.checkpoints.strict import Entry, read_tensors, transpose
from lantern_jax.models.drafter import DrafterConfig, DrafterModel
from lantern_jax.models.llamagen import SIZES, CaptionConditioning, LlamaGen, LlamaGenConfig

# Tables that implementations recompute: never weights.
BUFFERS = (r"freqs_cis", r"(?:.*\.)?rotary_emb\.inv_freq")

ORIGINAL_NAMES = {
    "tokens": "tok_embeddings.weight",
    "labels": "cls_embedding.embedding_table.weight",
    "unconditional": "cls_embedding.uncond_embedding",
    "fc1": "cls_embedding.cap_proj.fc1.weight",
    "fc2": "cls_embedding.cap_proj.fc2.weight",
    "norm": "norm.weight",
    "head": "output.weight",
    "attention_norm": "layers.{i}.attention_norm.weight",
    "feed_forward_norm": "layers.{i}.ffn_norm.weight",
    "qkv": "layers.{i}.attention.wqkv.weight",
    "out": "layers.{i}.attention.wo.weight",
    "gate": "layers.{i}.feed_forward.w1.weight",
    "up": "layers.{i}.feed_forward.w3.weight",
    "down": "layers.{i}.feed_forward.w2.weight",
}
_LLAMA_LAYER_NAMES = {
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
HUGGING_FACE_NAMES = {
    "tokens": "model.embed_tokens.weight",
    "labels": "model.cls_embedding.embedding_table.weight",
    "unconditional": "model.cls_embedding.uncond_embedding",
    "fc1": "model.cls_embedding.cap_proj.fc1.weight",
    "fc2": "model.cls_embedding.cap_proj.fc2.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    **{part: f"model.{name}" for part, name in _LLAMA_LAYER_NAMES.items()},
}
DRAFTER_NAMES = {"tokens": "embed_tokens.weight", **_LLAMA_LAYER_NAMES}

# Settings as other implementations' config files call them.
_ALIASES = {
    "hidden_size": "dim",
    "n_layer": "num_layers",
    "num_hidden_layers": "num_layers",
    "n_head": "num_heads",
    "num_attention_heads": "num_heads",
    "intermediate_size": "hidden_dim",
    "rms_norm_eps": "norm_eps",
    "rope_theta": "rope_base",
}


def convert_gpt(
    tensors: Mapping[str, np.ndarray],
    config: LlamaGenConfig | Mapping[str, Any] | None = None,
    dtype: Any = np.float32,
) -> tuple[LlamaGenConfig, dict[str, Any]]:
    """The config and ``{"params": ...}`` of a LlamaGen GPT from its published tensors, either layout.

    Args:
        tensors: {name: array}, class- or caption-conditional.
        config: what shapes do not tell: the number of heads (found from the shapes for published sizes) and the
            grid (16 unless given), as a mapping of ``LlamaGenConfig`` fields; or the whole config.
        dtype: of the returned NumPy arrays.

    Raises:
        ValueError: one line that lists every missing, unexpected and misshapen tensor, or says which setting
            is missing or contradicts the shapes.
    """
    names = gpt_names(tensors)
    if not isinstance(config, LlamaGenConfig):
        config = gpt_config_from_shapes(tensors, config)
    params = read_tensors(
        tensors, gpt_table(config, names), what="LlamaGen GPT", ignored=_buffers(tensors), dtype=dtype
    )
    return config, {"params": _fused(params)}


def gpt_names(tensors: Iterable[str]) -> dict[str, str]:
    """The names of the layout that the tensors are in."""
    hugging_face = HUGGING_FACE_NAMES["tokens"] in tensors or HUGGING_FACE_NAMES["head"] in tensors
    return HUGGING_FACE_NAMES if hugging_face else ORIGINAL_NAMES


def gpt_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> LlamaGenConfig:
    """The config of a GPT from names and shapes (anything with ``.shape``), and ``settings`` for the rest.

    Raises:
        ValueError: tensors that decide a size are missing; the number of heads is not known; a setting is
            unknown or contradicts the shapes.
    """
    names = gpt_names(tensors)
    gate = names["gate"].format(i=0)
    wanted = {names["tokens"]: 2, gate: 2}
    conditioning = "labels" if names["labels"] in tensors else "unconditional"
    wanted[names[conditioning]] = 2
    vocab_size, dim = _shapes(tensors, wanted, "LlamaGen GPT")[names["tokens"]]
    layers = _count_layers(tensors, names["attention_norm"])
    found: dict[str, Any] = {
        "dim": dim, "num_layers": layers, "vocab_size": vocab_size, "hidden_dim": tensors[gate].shape[0],
    }  # fmt: skip
    if conditioning == "labels":
        found["num_labels"] = tensors[names["labels"]].shape[0]
    else:
        found["caption_length"], found["caption_dim"] = tensors[names["unconditional"]].shape
    heads = {(depth, width): count for depth, count, width in SIZES.values()}.get((layers, dim))
    return _config(LlamaGenConfig, found, settings, heads)


def gpt_table(config: LlamaGenConfig, names: Mapping[str, str]) -> dict[str, Entry]:
    """{published name: Entry} of a GPT; what is fused in our tree is left in pieces, joined after reading."""
    dim, transformer = config.dim, config.transformer
    table = {names["tokens"]: Entry(("tokens", "embedding"), (config.vocab_size, dim))}
    if config.num_labels:
        table[names["labels"]] = Entry(("labels", "embedding"), (config.num_labels, dim))
    else:
        shape = (config.caption_length, config.caption_dim)
        table[names["unconditional"]] = Entry(("caption", "unconditional"), shape)
        table[names["fc1"]] = Entry(("caption", "fc1", "kernel"), (dim, config.caption_dim), transpose)
        table[names["fc2"]] = Entry(("caption", "fc2", "kernel"), (dim, dim), transpose)
    for i in range(config.num_layers):
        table |= _layer_table(names, i, transformer, input_norm=True)
    table[names["norm"]] = Entry(("transformer", "norm", "scale"), (dim,))
    table[names["head"]] = Entry(("head", "kernel"), (config.vocab_size, dim), transpose)
    return table


def convert_drafter(
    tensors: Mapping[str, np.ndarray],
    config: DrafterConfig | Mapping[str, Any] | None = None,
    *,
    target: LlamaGenConfig | None = None,
    dtype: Any = np.float32,
) -> tuple[DrafterConfig, dict[str, Any]]:
    """The config and ``{"params": ...}`` of a released drafter from its tensors.

    Args:
        tensors: {name: array}.
        config: the drafter's ``config.json`` or a mapping of ``DrafterConfig`` fields; or the whole config.
        target: the GPT it drafts for: grid, prefix length and (unless ``config`` has it) the number of heads.
        dtype: of the returned NumPy arrays.

    Raises:
        ValueError: as ``convert_gpt``; also a drafter of another width or vocabulary than the target's.
    """
    if not isinstance(config, DrafterConfig):
        config = drafter_config_from_shapes(tensors, config, target)
    if target is not None:
        for name in ("dim", "vocab_size", "grid", "prefix_length"):
            ours, theirs = getattr(config, name), getattr(target, name)
            if ours != theirs:
                raise ValueError(
                    f"the drafter's {name} is {ours}, the target's {theirs}: give the drafter of this target"
                )
    params = read_tensors(
        tensors, drafter_table(config), what="LlamaGen drafter", ignored=_buffers(tensors), dtype=dtype
    )
    return config, {"params": _fused(params)}


def drafter_config_from_shapes(
    tensors: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    target: LlamaGenConfig | None = None,
) -> DrafterConfig:
    """The config of a drafter from shapes, its ``config.json`` and its target."""
    gate = DRAFTER_NAMES["gate"].format(i=0)
    shapes = _shapes(tensors, {DRAFTER_NAMES["tokens"]: 2, gate: 2}, "LlamaGen drafter")
    vocab_size, dim = shapes[DRAFTER_NAMES["tokens"]]
    found: dict[str, Any] = {"dim": dim, "vocab_size": vocab_size, "hidden_dim": shapes[gate][0]}
    if target is not None:
        found |= {"grid": target.grid, "prefix_length": target.prefix_length}
    return _config(DrafterConfig, found, settings, None if target is None else target.num_heads)


def drafter_table(config: DrafterConfig) -> dict[str, Entry]:
    """{published name: Entry} of a drafter."""
    return {
        DRAFTER_NAMES["tokens"]: Entry(("tokens", "embedding"), (config.vocab_size, config.dim)),
        "fc.weight": Entry(("fc", "kernel"), (config.dim, 2 * config.dim), transpose),
        "fc.bias": Entry(("fc", "bias"), (config.dim,)),
        **_layer_table(DRAFTER_NAMES, 0, config.transformer, input_norm=False),
    }


def gpt_shapes(config: LlamaGenConfig) -> dict[str, Any]:
    """The abstract parameter tree of a GPT: what ``LlamaGen(config).init`` makes, as shapes."""
    if config.num_labels:
        conditioning: Any = jnp.zeros((1, config.label_slots), jnp.int32)
    else:
        features = jax.ShapeDtypeStruct((1, config.caption_length, config.caption_dim), jnp.float32)
        mask = jax.ShapeDtypeStruct(features.shape[:2], jnp.bool_)
        conditioning = CaptionConditioning(features, mask, jax.ShapeDtypeStruct((1,), jnp.bool_))
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(LlamaGen(config).init, jax.random.key(0), conditioning, tokens)


def drafter_shapes(config: DrafterConfig) -> dict[str, Any]:
    """The abstract parameter tree of a drafter."""
    features = jax.ShapeDtypeStruct((1, 1, config.dim), jnp.float32)
    rotary = jax.ShapeDtypeStruct((1, 1, config.transformer.head_dim // 2, 2), jnp.float32)
    tokens, mask = jax.ShapeDtypeStruct((1, 1), jnp.int32), jax.ShapeDtypeStruct((1, 1, 1), jnp.bool_)
    return jax.eval_shape(DrafterModel(config).init, jax.random.key(0), features, tokens, rotary, mask)


def _layer_table(names, i, transformer, input_norm) -> dict[str, Entry]:
    dim, hidden = transformer.dim, transformer.hidden_dim
    at = ("transformer", f"layer_{i}")
    pairs = partial(_halves, heads=transformer.num_heads)
    if "qkv" in names:
        attention = {
            "qkv": Entry((*at, "qkv", "kernel"), (3 * dim, dim), partial(_fused_halves, pairs=pairs))
        }
    else:
        turns = {"q": pairs, "k": pairs, "v": transpose}
        attention = {
            part: Entry((*at, "qkv", "kernel", part), (dim, dim), turn) for part, turn in turns.items()
        }
    entries = attention | {
        "out": Entry((*at, "out", "kernel"), (dim, dim), transpose),
        "gate": Entry((*at, "gate_up", "kernel", "gate"), (hidden, dim), transpose),
        "up": Entry((*at, "gate_up", "kernel", "up"), (hidden, dim), transpose),
        "down": Entry((*at, "down", "kernel"), (dim, hidden), transpose),
        "feed_forward_norm": Entry((*at, "feed_forward_norm", "scale"), (dim,)),
    }
    if input_norm:
        entries["attention_norm"] = Entry((*at, "attention_norm", "scale"), (dim,))
    return {names[part].format(i=i): entry for part, entry in entries.items()}


def _halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """A query or key weight [H * E, D], pairs interleaved, to a kernel [D, H * E], pairs (e, e + E/2)."""
    rows = weight.reshape(heads, -1, 2, weight.shape[1])
    return transpose(rows.swapaxes(1, 2).reshape(weight.shape))


def _fused_halves(weight: np.ndarray, pairs) -> np.ndarray:
    queries, keys, values = np.split(weight, 3)
    return np.concatenate([pairs(queries), pairs(keys), transpose(values)], axis=1)


def _fused(params: dict[str, Any]) -> dict[str, Any]:
    """Joins kernels that were read in pieces, in place, so that no second copy of all weights exists."""
    for layer in params["transformer"].values():
        for name in ("qkv", "gate_up"):
            if name in layer and isinstance(layer[name]["kernel"], dict):
                layer[name]["kernel"] = np.concatenate(list(layer[name]["kernel"].values()), axis=1)
    return params


def _buffers(names: Iterable[str]) -> list[str]:
    return [name for name in names if any(re.fullmatch(pattern, name) for pattern in BUFFERS)]


def _shapes(tensors: Mapping[str, Any], wanted: Mapping[str, int], what: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that decide the sizes; ``wanted`` gives their numbers of axes."""
    wrong = [name for name, ndim in wanted.items() if name not in tensors or len(tensors[name].shape) != ndim]
    if wrong:
        raise ValueError(
            f"these tensors are not a {what}: missing or misshapen: {', '.join(wrong)}; give a published one"
        )
    return {name: tuple(tensors[name].shape) for name in wanted}


def _count_layers(names: Iterable[str], norm_name: str) -> int:
    pattern = re.escape(norm_name).replace(r"\{i\}", r"(\d+)")
    return max((int(match[1]) + 1 for name in names if (match := re.fullmatch(pattern, name))), default=0)


def _config(kind, found: dict[str, Any], settings: Mapping[str, Any] | None, heads: int | None):
    """Sizes from shapes together with settings, which must not contradict them."""
    settings = normalise_settings(settings or {}, kind)
    clashes = [
        f"{name} is {value} in the config and {found[name]} in the tensors"
        for name, value in settings.items()
        if name in found and value != found[name]
    ]
    if clashes:
        raise ValueError(f"{'; '.join(clashes)}: give the matching config")
    values = {"num_heads": heads} | found | settings
    if values["num_heads"] is None:
        raise ValueError(
            f"the number of heads of a model of width {values['dim']} cannot be told from shapes: "
            "give num_heads in the config"
        )
    return kind(**values)


def normalise_settings(settings: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Settings under the names of ``kind``'s fields.

    A Hugging Face ``config.json`` (it says ``model_type`` or ``architectures``) may hold other entries too;
    otherwise an unknown one raises ValueError.
    """
    fields = {field.name for field in dataclasses.fields(kind)}
    known, unknown = {}, []
    for name, value in settings.items():
        field = _ALIASES.get(name, name)
        if name == "block_size" and "grid" in fields and isinstance(value, int):
            field, value = "grid", math.isqrt(value)
        if field in fields:
            known[field] = value
        else:
            unknown.append(name)
    if unknown and not {"model_type", "architectures"} & set(settings):
        raise ValueError(f"unknown setting {', '.join(unknown)}: choose from {', '.join(sorted(fields))}")
    return known
