"""Settings of published models: each entry of a ``config.json`` is honoured, known to change nothing here, or refused.

What only a family's files have is its ``Dialect``, beside the names of its weights.
"""

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import check_size

# Names of settings in other implementations' config files.
_ALIASES = {
    "hidden_size": "dim", "n_layer": "num_layers", "num_hidden_layers": "num_layers", "n_head": "num_heads",
    "num_attention_heads": "num_heads", "num_key_value_heads": "kv_heads", "n_kv_head": "kv_heads",
    "head_dim": "head_width", "intermediate_size": "hidden_dim", "rms_norm_eps": "norm_eps", "rope_theta": "rope_base",
}  # fmt: skip
# Settings that all models have and some configs derive -> what derives them.
_DERIVED = {"head_width": "head_dim", "kv_heads": "key_heads"}
# Why an entry changes nothing here with any value -> such entries.
_HARMLESS_BY_REASON = {
    "the library's notes about the file": """_name_or_path _commit_hash transformers_version torch_dtype dtype auto_map
        architectures model_type _attn_implementation attn_implementation _attn_implementation_autoset
        _flash_attn_2_enabled torchscript use_bfloat16 tokenizer_class task_specific_params problem_type id2label
        label2id finetuning_task prefix output_past tf_legacy_loss is_encoder_decoder""",
    "what the library returns and how it splits work": """return_dict use_return_dict output_hidden_states
        output_attentions output_scores use_cache chunk_size_feed_forward pretraining_tp model_parallel_size""",
    "training": """initializer_range initializer_factor attention_dropout dropout dropout_rate classifier_dropout
        hidden_dropout z_loss_weight gradient_checkpointing class_dropout_p token_dropout_p attn_dropout_p
        resid_dropout_p ffn_dropout_p drop_path_rate""",
    "the longest text: rotations have no limit, and prompts are checked": """max_position_embeddings n_positions
        max_sequence_length max_seq_len model_max_length max_batch_size tokenizer_padding_side""",
    "ids and sampling of text: the tokenizer's file and our settings have them": """bos_token_id eos_token_id
        pad_token_id sep_token_id decoder_start_token_id boi_token_id eoi_token_id image_token_id img_token_id
        vocabulary_map mask_image_logits do_sample temperature top_k top_p num_beams max_length""",
}  # fmt: skip
# Widths of a head between which num_heads is plausible.
_WIDTHS = (8, 256)
_HARMLESS = {name for names in _HARMLESS_BY_REASON.values() for name in names.split()}
# Entry -> the values with which it changes nothing; null never does.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",), "hidden_activation": ("silu",), "attention_bias": (False,), "mlp_bias": (False,),
    "tie_word_embeddings": (False,), "use_sliding_window": (False,), "use_bidirectional_attention": (False,),
    "partial_rotary_factor": (1,), "swin_norm": (False,),
}  # fmt: skip
# Names of GELU in its tanh form.
TANH_GELU = ("gelu_pytorch_tanh", "gelu_new")
_ROTATION: Mapping[str, tuple[Any, ...]] = {
    "rope_type": ("default",), "type": ("default",), "partial_rotary_factor": (1,),
}  # fmt: skip
# Parts of a file about the language model, of which there is at most one.
_LANGUAGE = ("text_config", "language_config")


@dataclasses.dataclass(frozen=True, eq=False)
class Dialect:
    """What is known of the ``config.json`` of a config's published models.

    Attributes:
        config: the class of configs.
        model_types, architectures: patterns of those entries, in the file and in its part about the language model.
        aliases: entry -> field, beside those that all families share.
        values: entry -> function from its value to the field's.
        only: entry -> the values with which it changes nothing, likewise.
        harmless: entries that shapes or another file decide.
        kept: entries of ``only`` that readers of the family's weights look at.
        parts: objects about other parts of the model -> ``only`` for entries in them.
        rotation: entry of the rotation -> the values that are computed here, beside those that all families share.
    """

    config: type
    model_types: str = ".*"
    architectures: str = ".*"
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    values: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    harmless: str = ""
    kept: tuple[str, ...] = ()
    parts: Mapping[str, Mapping[str, tuple[Any, ...]]] = dataclasses.field(default_factory=dict)
    rotation: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    @property
    def fields(self) -> set[str]:
        """The names of the config's fields."""
        return {field.name for field in dataclasses.fields(self.config)}


def side_of(area: Any) -> Any:
    """Returns the side of a square of that many codes; anything but a number as it is."""
    return math.isqrt(area) if isinstance(area, int) and area > 0 else area


def normalize_settings(settings: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Returns settings under the names of the config's fields and of what the config derives (``_DERIVED``).

    Those of a published ``config.json``, which has ``model_type`` or ``architectures``, may be in a part of it.

    Raises:
        LanternError: an entry asks for what is not computed here, or is unknown; its value and what to do are named.
    """
    published = bool({"model_type", "architectures"} & set(settings))
    fields, aliases, only = dialect.fields, _ALIASES | dict(dialect.aliases), {**_ONLY, **dialect.only}
    decided_elsewhere = dialect.harmless.split() if published else ()
    known, wrong, unknown = {}, _of_another_type(settings, dialect), []
    for name, value in _flat(settings, wrong, dialect).items():
        field = name if name in fields else aliases.get(name, name)
        if name in decided_elsewhere or (value is None and (published or name not in fields)):
            continue
        if field in fields or field in _DERIVED:
            value = dialect.values.get(name, lambda value: value)(value)
            known |= {} if value is None and name not in fields else {field: value}
        elif name in only or field in only:
            wrong += _strays({name: value}, {name: only.get(name, only.get(field, ()))})
            known |= {name: value} if name in dialect.kept else {}
        elif name in dialect.parts:
            part = value.get("params", value) if isinstance(value, Mapping) else None
            inside = part if isinstance(part, Mapping) else {}
            limited = {entry: inside[entry] for entry in dialect.parts[name] if entry in inside}
            wrong += _strays(limited, dialect.parts[name], f"{name}.")
        elif published and name not in _HARMLESS:
            wrong += [f"{_said(name, value)}, an unknown entry"]
        elif name not in _HARMLESS:
            unknown.append(name)
    if known.get("kv_heads") == known.get("num_heads"):
        known.pop("kv_heads", None)
    if wrong:
        raise LanternError(
            f"not computed here: {'; '.join(wrong[:8])}: give weights that need none of it, or take entries that "
            "change nothing out of their config.json"
        )
    if unknown:
        raise LanternError(
            f"unknown setting {errors.listed(unknown)}: choose from {', '.join(sorted(fields))}"
        )
    return known


def _flat(settings: Mapping[str, Any], wrong: list[str], dialect: Dialect) -> dict[str, Any]:
    """Returns settings on one level, the language model's own part first; appends rotations that are not computed."""
    nested = _language_part(settings)
    flat = {name: value for name, value in settings.items() if name not in _LANGUAGE} | dict(nested)
    for name in ("rope_scaling", "rope_parameters"):
        value = flat.pop(name, None)
        rotation = dict(value) if isinstance(value, Mapping) else {"rope_type": value}
        # What a config has a field for.
        known = {"rope_theta", *(dialect.aliases.keys() & rotation.keys())}
        flat |= {entry: rotation.pop(entry) for entry in known if rotation.get(entry) is not None}
        wrong += [_said(name, value)] if _strays(rotation, {**_ROTATION, **dialect.rotation}) else []
    return flat


def _language_part(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    part = next((name for name in _LANGUAGE if settings.get(name)), None)
    nested = {} if part is None else settings[part]
    if not isinstance(nested, Mapping):
        raise errors.invalid(part, nested, "an object of settings")
    return nested


def _of_another_type(settings: Mapping[str, Any], dialect: Dialect) -> list[str]:
    """Lists types of other models in a file or its part about the language model."""
    found = []
    for name, pattern in (("model_type", dialect.model_types), ("architectures", dialect.architectures)):
        for given in (settings.get(name), _language_part(settings).get(name)):
            names = given if isinstance(given, list | tuple) else [given] if given else []
            found += [_said(name, one) for one in names if not re.fullmatch(pattern, str(one))]
    return found


def _strays(given: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], where: str = "") -> list[str]:
    """Lists entries whose values are neither null nor among the allowed ones."""
    return [
        _said(f"{where}{name}", value, *only.get(name, ()))
        for name, value in given.items()
        if value is not None and value not in only.get(name, ())
    ]


def _said(name: str, value: Any, *expected: Any) -> str:
    wanted = f", expected {' or '.join(map(repr, expected))}" if expected else ""
    return f"{errors.short(name, 60)} is {errors.quoted(value, 80)}{wanted}"


def heads_of(settings: Mapping[str, Any], dialect: Dialect) -> int:
    """Returns the number of heads in settings, by which shapes are divided, or the config's default if there is none.

    Raises:
        LanternError: it is not a number of heads, or another setting is wrong.
    """
    heads = normalize_settings(settings, dialect).get("num_heads", dialect.config.num_heads)
    check_size("num_heads", heads)
    return heads


def config_from(
    dialect: Dialect, found: dict[str, Any], settings: Mapping[str, Any] | None, heads: int | None = None
):
    """Makes a config from the sizes that shapes show and from settings, which must not contradict them.

    Args:
        heads: the number of heads unless settings say it; None if nothing else does.
    """
    settings = normalize_settings(settings or {}, dialect)
    settings = {name: value for name, value in settings.items() if name not in dialect.kept}
    derived = {
        name: settings.pop(name)
        for name in _DERIVED
        if name in settings and (name in found or name not in dialect.fields)
    }
    values = {"num_heads": heads} | found | settings
    if values["num_heads"] is None:
        raise LanternError(
            f"the number of heads of a model of width {values['dim']} is not known from shapes: give num_heads in "
            f"the config, or all files if a part of its layers is missing ({values.get('num_layers')} are here)"
        )
    if values.get("kv_heads") == values["num_heads"]:
        values["kv_heads"] = None
    clashes = [
        (name, value, found[name])
        for name, value in settings.items()
        if name in found and value != found[name]
    ]
    config = None if clashes else dialect.config(**values)
    # T5's heads have a width of their own.
    layers = getattr(config, "transformer", config)
    for name, value in derived.items() if config else ():
        made = getattr(layers, _DERIVED[name], None)
        clashes += [(name, value, made)] if value not in (None, made) else []
    if clashes:
        wrong = (
            f"{name} is {errors.quoted(value)} in the config and {size} in the tensors"
            for name, value, size in clashes
        )
        raise LanternError(f"{'; '.join(wrong)}: give the matching config")
    width = layers.head_dim
    if not _WIDTHS[0] <= width <= _WIDTHS[1]:
        warnings.warn(
            f"num_heads {config.num_heads} makes heads {width} wide: is it right?",
            errors.Assumed,
            stacklevel=1,
        )
    return config
