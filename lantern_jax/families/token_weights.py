"""What the converters of ``GuidedTokens`` models have in common: a published Llama among other parts.

Axes: D model width, E head width, V codes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from lantern_jax.decoding.protocols import GuidedTokens, TokenConditioning
from lantern_jax.io import errors
from lantern_jax.models.sizes import check_size
from lantern_jax.models.tokens import GuidedTokensConfig, TokenModel
from lantern_jax.models.transformer import layers_alike
from lantern_jax.tensors.layer_names import (
    LLAMA_LAYER_NAMES,
    count_layers,
    deciding_shapes,
    layer_table,
    normalize_settings,
)
from lantern_jax.tensors.matching import Entry, reordered_rows, transpose

# Tokens per made-up prompt, as many as in a caption.
_PROMPT_TOKENS = 64


def language_names(prefix: str, head: str = "lm_head.weight") -> dict[str, str]:
    """Returns {part: published name} of a Llama whose names begin with a prefix."""
    layers = {part: f"{prefix}{name}" for part, name in LLAMA_LAYER_NAMES.items()}
    return {
        "tokens": f"{prefix}embed_tokens.weight",
        "norm": f"{prefix}norm.weight",
        "head": head,
        **layers,
    }


def language_sizes(tensors: Mapping[str, Any], names: Mapping[str, str], what: str) -> dict[str, Any]:
    """Returns the config fields that names and shapes determine; ``vocab_size`` is the number of published rows.

    Raises:
        LanternError: tensors that decide a size are missing.
    """
    gate = names["gate"].format(i=0)
    shapes = deciding_shapes(tensors, {names["tokens"]: 2, gate: 2}, what)
    rows, dim = shapes[names["tokens"]]
    layers = count_layers(tensors, names["attention_norm"])
    return {"dim": dim, "vocab_size": rows, "hidden_dim": shapes[gate][0], "num_layers": layers}


def language_settings(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a ``config.json``'s settings of its language model, whether that stands alone or beside another model.

    Rows of the vocabulary are left to the shapes; a number of key-value heads equal to that of heads is the default.
    """
    settings = dict(settings or {})
    part = next((name for name in ("text_config", "language_config") if settings.get(name)), None)
    nested = {} if part is None else settings[part]
    if not isinstance(nested, Mapping):
        raise errors.invalid(part, nested, "an object of settings")
    # A file of the hub may hold anything else.
    kept = {} if "model_type" not in settings else {"model_type": settings["model_type"]}
    settings = {**(kept if nested else settings), **nested}
    rope = settings.pop("rope_parameters", None)
    if isinstance(rope, Mapping) and "rope_theta" in rope:
        settings["rope_theta"] = rope["rope_theta"]
    if "model_type" in settings:
        settings.pop("vocab_size", None)
        if settings.get("num_key_value_heads") == settings.get("num_attention_heads"):
            settings.pop("num_key_value_heads", None)
    return settings


def heads_of(settings: Mapping[str, Any], kind: type) -> int:
    """Returns the number of heads in the settings, by which shapes are divided, or ``kind``'s default if there is none.

    Raises:
        LanternError: it is not a number of heads, or a setting is unknown.
    """
    heads = normalize_settings(settings, kind).get("num_heads", kind.num_heads)
    check_size("num_heads", heads)
    return heads


def language_table(
    names: Mapping[str, str], config: GuidedTokensConfig, norm_rows: int | None = None
) -> dict[str, Entry]:
    """Lists {published name: Entry} of the layers and the final norm; ``norm_rows`` as in ``layer_table``."""
    table = {names["norm"]: Entry(("transformer", "norm", "scale"), (config.dim,))}
    for i in range(config.num_layers):
        table |= layer_table(names, i, config.transformer, interleaved=False, norm_rows=norm_rows)
    return table


def published_table(
    names: Mapping[str, str], config: GuidedTokensConfig, *, tied: bool = False, norm_rows: int | None = None
) -> dict[str, Entry]:
    """Lists {published name: Entry} of a model whose codes' ids follow the text's; a ``tied`` head has no entry."""
    order, shape = published_order(config), (config.vocab_size, config.dim)
    table = {names["tokens"]: Entry(("tokens", "embedding"), shape, reordered_rows(order))}
    if not tied:
        codes = reordered_rows(order[: config.num_codes])
        table[names["head"]] = Entry(("head", "kernel"), shape, lambda weight: transpose(codes(weight)))
    return table | language_table(names, config, norm_rows)


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
def token_shapes(model: type[TokenModel], config: GuidedTokensConfig) -> dict[str, Any]:
    """Returns the shapes of the parameters that ``model(config).init`` makes."""
    tokens = jax.ShapeDtypeStruct((1, 1), np.int32)
    conditioning = TokenConditioning(tokens, jax.ShapeDtypeStruct((1, 1), np.bool_))
    return jax.eval_shape(model(config).init, jax.random.key(0), conditioning)


def random_conditioning(config: GuidedTokensConfig, count: int) -> GuidedTokens:
    """Returns conditioning for ``count`` made-up prompts, each as long as a caption, guided by rows of one word."""
    words = np.random.default_rng(0).integers(config.num_codes, config.vocab_size, (count, _PROMPT_TOKENS))
    words, mask = words.astype(np.int32), np.ones(words.shape, bool)
    return GuidedTokens(words, mask, np.full_like(words, config.num_codes), mask)
