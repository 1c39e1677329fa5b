"""What converters have in common, above all those of ``GuidedTokens`` models: a published Llama among other parts.

Each ``convert_*`` takes published tensors {name: array} of any layout, the model's config, and the ``dtype`` and
``shapes`` of ``read_tensors``; it returns the config and ``{"params": ...}``. Each ``*_config_from_shapes`` infers
the config from names and shapes (anything with ``.shape``), and from settings. Both raise LanternError: one line that
lists every missing, unexpected and misshapen tensor, or says which setting is unknown or contradicts the shapes.

Axes: D model width, E head width, V codes.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from lantern_jax.decoding.protocols import GuidedTokens, TokenConditioning
from lantern_jax.families.config_files import Dialect, config_from, normalize_settings
from lantern_jax.families.registry import Family
from lantern_jax.models.sizes import check_size
from lantern_jax.models.targets import stream_target
from lantern_jax.models.tokens import GuidedTokensConfig, TokenModel, shaped
from lantern_jax.models.transformer import layers_alike
from lantern_jax.tensors.layer_names import (
    HEAD_NORM_NAMES,
    LLAMA_LAYER_NAMES,
    buffers,
    count_layers,
    deciding_shapes,
    layer_table,
)
from lantern_jax.tensors.matching import Entry, read_tensors, reordered_rows, transpose

# Tokens per made-up prompt, as many as in a caption.
_PROMPT_TOKENS = 64


def language_names(prefix: str, head: str = "lm_head.weight") -> dict[str, str]:
    """Returns {part: published name} of a Llama whose names begin with a prefix."""
    names = {"tokens": "embed_tokens.weight", "norm": "norm.weight", **LLAMA_LAYER_NAMES, **HEAD_NORM_NAMES}
    return {part: f"{prefix}{name}" for part, name in names.items()} | {"head": head}


def language_sizes(tensors: Mapping[str, Any], names: Mapping[str, str], what: str) -> dict[str, Any]:
    """Returns the config fields that names and shapes determine; ``vocab_size`` is the number of published rows.

    Raises:
        LanternError: tensors that decide a size are missing.
    """
    joined = "gate_up" in names
    gate = names["gate_up" if joined else "gate"].format(i=0)
    shapes = deciding_shapes(tensors, {names["tokens"]: 2, gate: 2}, what)
    (rows, dim), hidden = shapes[names["tokens"]], shapes[gate][0] // (2 if joined else 1)
    layers = count_layers(tensors, names["attention_norm"])
    return {"dim": dim, "vocab_size": rows, "hidden_dim": hidden, "num_layers": layers}


def language_config(
    dialect: Dialect,
    names: Mapping[str, str],
    what: str,
    tensors: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    **found: Any,
) -> Any:
    """Infers the config of a Llama whose number of heads settings say, or else its class.

    Args:
        found: fields beside those that ``language_sizes`` finds, or in their place.
    """
    heads = normalize_settings(settings or {}, dialect).get("num_heads", dialect.config.num_heads)
    check_size("num_heads", heads)
    found = language_sizes(tensors, names, what) | found
    query, key = (names[part].format(i=0) for part in ("q", "k"))
    shapes = deciding_shapes(tensors, {query: 2, key: 2}, what)
    shared = max(1, heads * shapes[key][0] // shapes[query][0])
    found["kv_heads"] = None if shared == heads else shared
    if "head_width" in dialect.fields:
        found["head_width"] = shapes[query][0] // heads
    return config_from(dialect, found, settings, heads)


def language_table(
    names: Mapping[str, str], config: GuidedTokensConfig, **layer: int | None
) -> dict[str, Entry]:
    """Lists {published name: Entry} of the layers and the final norm; ``layer``: as in ``layer_table``."""
    table = {names["norm"]: Entry(("transformer", "norm", "scale"), (config.dim,))}
    for i in range(config.num_layers):
        table |= layer_table(names, i, config.transformer, **layer)
    return table


def code_columns(config: GuidedTokensConfig, rows: int) -> Entry:
    """Returns the Entry of a published head [rows, D] whose first rows are the codes; other rows are never sampled."""
    return Entry(("head", "kernel"), (rows, config.dim), lambda weight: transpose(weight[: config.num_codes]))


def published_table(
    names: Mapping[str, str],
    config: Any,
    *,
    order: Int[np.ndarray, " vocab"] | None = None,
    norm_rows: int | None = None,
) -> dict[str, Entry]:
    """Lists {published name: Entry} of a model.

    Args:
        order: published id of every row of our table; None where codes' ids follow the text's.
        norm_rows: as in ``layer_table``.
    """
    order, shape = published_order(config) if order is None else order, (config.vocab_size, config.dim)
    codes = reordered_rows(order[: config.num_codes])
    table = {
        names["tokens"]: Entry(("tokens", "embedding"), shape, reordered_rows(order)),
        names["head"]: Entry(("head", "kernel"), shape, lambda weight: transpose(codes(weight))),
    }
    return table | language_table(names, config, norm_rows=norm_rows)


def read_model(
    tensors: Mapping[str, Any],
    table: Mapping[str, Entry],
    what: str,
    others: tuple[str, ...] = (),
    **reading: Any,
) -> dict[str, Any]:
    """Reads ``{"params": ...}`` as ``read_tensors`` does; ``others`` begin the names of what is left out on purpose."""
    ignored = [*buffers(tensors), *(name for name in tensors if name.startswith(others))]
    return {"params": read_tensors(tensors, table, what=what, ignored=ignored, **reading)}


def read_language(
    names: Mapping[str, str],
    what: str,
    tensors: Mapping[str, Any],
    config: GuidedTokensConfig,
    order: Int[np.ndarray, " vocab"] | None = None,
    **reading: Any,
) -> tuple[Any, dict[str, Any]]:
    """Converts a model that is all in a ``published_table``; ``order`` as there, ``reading`` as for ``read_model``."""
    return config, read_model(tensors, published_table(names, config, order=order), what, **reading)


def published_order(
    config: GuidedTokensConfig, text_tokenizer: Path | None = None
) -> Int[np.ndarray, " vocab"]:
    """Returns the published id of every row of the table where codes' ids follow the text's, as
    ``Family.published_order`` requires.
    """
    ids = np.arange(config.vocab_size, dtype=np.int32)
    codes = slice(config.text_size, config.text_size + config.num_codes)
    return np.concatenate([ids[codes], np.delete(ids, codes)])


@layers_alike
def token_shapes(model: type[TokenModel], config: Any) -> dict[str, Any]:
    """Returns the shapes of the parameters that ``model(config).init`` makes."""
    tokens = jax.ShapeDtypeStruct((1, 1), np.int32)
    conditioning = TokenConditioning(tokens, jax.ShapeDtypeStruct((1, 1), np.bool_))
    return jax.eval_shape(model(config).init, jax.random.key(0), conditioning)


def random_conditioning(config: GuidedTokensConfig, count: int) -> GuidedTokens:
    """Returns conditioning for ``count`` made-up prompts, each as long as a caption, guided by rows of one word."""
    words = np.random.default_rng(0).integers(config.num_codes, config.vocab_size, (count, _PROMPT_TOKENS))
    words, mask = words.astype(np.int32), np.ones(words.shape, bool)
    return GuidedTokens(words, mask, np.full_like(words, config.num_codes), mask)


def token_family(config: type, prompts: Any, model: type[TokenModel] = TokenModel, **more: Any) -> Family:
    """Returns the family of a ``TokenModel``: shapes, target and made-up prompts follow from the class.

    It draws pictures of any shape if the class of configs has ``most_codes`` (``models.tokens.shaped``).

    Args:
        config: the class of its configs.
        prompts: its encoder's class.
        more: other fields of ``Family``.
    """
    shapes, target = partial(token_shapes, model), partial(stream_target, model)
    more = {"shaped": shaped if hasattr(config, "most_codes") else None} | more
    return Family(config, shapes, target, prompts, random_conditioning, **more)
