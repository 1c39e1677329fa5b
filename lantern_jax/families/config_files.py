"""Settings of published models: what a ``config.json`` says that our configs have, or that is not computed here.

What only a family's files have is its ``Dialect``, beside the names of its weights. Most entries of such a file change
no picture (how it was trained, what wrote it), and are passed over.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# Names of settings in other implementations' config files.
_ALIASES = {
    "hidden_size": "dim", "n_layer": "num_layers", "num_hidden_layers": "num_layers", "n_head": "num_heads",
    "num_attention_heads": "num_heads", "num_key_value_heads": "kv_heads", "n_kv_head": "kv_heads",
    "head_dim": "head_width", "intermediate_size": "hidden_dim", "rms_norm_eps": "norm_eps", "rope_theta": "rope_base",
}  # fmt: skip
# Entry that changes what is computed -> the values that are computed here; null is the same as no entry.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",), "hidden_activation": ("silu",), "attention_bias": (False,), "mlp_bias": (False,),
    "tie_word_embeddings": (False,), "use_sliding_window": (False,), "use_bidirectional_attention": (False,),
    "rope_type": ("default",), "partial_rotary_factor": (1,), "swin_norm": (False,), "quantization_config": (),
    "attn_logit_softcapping": (), "final_logit_softcapping": (),
}  # fmt: skip
# Names of GELU in its tanh form.
TANH_GELU = ("gelu_pytorch_tanh", "gelu_new")
# Parts of a file about the language model, of which there is at most one.
_LANGUAGE = ("text_config", "language_config")


@dataclasses.dataclass(frozen=True, eq=False)
class Dialect:
    """What is known of the ``config.json`` of a config's published models.

    Attributes:
        config: the class of configs.
        model_types: pattern of that entry, in the file and in its part about the language model.
        aliases: entry -> field, beside those that all families share.
        values: entry -> function from its value to the field's.
        only: entry -> the values that are computed here, likewise.
        harmless: entries with a field's name that mean something else.
    """

    config: type
    model_types: str
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    values: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    harmless: tuple[str, ...] = ()

    @property
    def fields(self) -> set[str]:
        """The names of the config's fields."""
        return {field.name for field in dataclasses.fields(self.config)}


def side_of(area: Any) -> Any:
    """Returns the side of a square of that many codes; anything but a number as it is."""
    return math.isqrt(area) if isinstance(area, int) and area > 0 else area


def normalize_settings(settings: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Returns settings under the names of the config's fields.

    Those of a published ``config.json``, which has ``model_type`` or ``architectures``, may be in a part of it.

    Raises:
        LanternError: an entry asks for what is not computed here; or there is an unknown one among settings of
            no published ``config.json``.
    """
    published = bool({"model_type", "architectures"} & set(settings))
    fields, only = dialect.fields, {**_ONLY, **dialect.only}
    known, wrong, unknown = {}, _of_another_type(settings, dialect), []
    for name, value in _flat(settings).items():
        field = name if name in fields else {**_ALIASES, **dialect.aliases}.get(name, name)
        if (published and name in dialect.harmless) or (value is None and (published or name not in fields)):
            continue
        if name in only:
            wrong += [] if value in only[name] else [_said(name, value, only[name])]
        elif field in fields:
            value = dialect.values[name](value) if name in dialect.values else value
            known |= {} if value is None and name not in fields else {field: value}
        elif not published:
            unknown.append(name)
    if wrong:
        raise LanternError(f"not computed here: {'; '.join(wrong[:8])}: give weights that need none of it")
    if unknown:
        raise LanternError(
            f"unknown setting {errors.listed(unknown)}: choose from {', '.join(sorted(fields))}"
        )
    return known


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings on one level: those of the language model's own part and of its rotation replace others."""
    flat = {name: value for name, value in settings.items() if name not in _LANGUAGE}
    flat |= _language_part(settings)
    for name in ("rope_scaling", "rope_parameters"):
        rotation = flat.pop(name, None)
        if isinstance(rotation, Mapping):
            flat |= {"rope_type": rotation.get("type"), **rotation}
    return flat


def _language_part(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    part = next((name for name in _LANGUAGE if settings.get(name)), None)
    nested = {} if part is None else settings[part]
    if not isinstance(nested, Mapping):
        raise errors.invalid(part, nested, "an object of settings")
    return nested


def _of_another_type(settings: Mapping[str, Any], dialect: Dialect) -> list[str]:
    """Lists types of other models in a file or its part about the language model."""
    given = (settings.get("model_type"), _language_part(settings).get("model_type"))
    return [
        _said("model_type", one) for one in given if one and not re.fullmatch(dialect.model_types, str(one))
    ]


def _said(name: str, value: Any, expected: tuple[Any, ...] = ()) -> str:
    wanted = f", expected {' or '.join(map(repr, expected))}" if expected else ""
    return f"{errors.short(name, 60)} is {errors.quoted(value, 80)}{wanted}"


def config_from(
    dialect: Dialect, found: dict[str, Any], settings: Mapping[str, Any] | None, heads: int | None = None
):
    """Makes a config from the sizes that shapes show and from settings, which must not contradict them.

    Args:
        heads: the number of heads unless settings say it; None if nothing else does.
    """
    settings = normalize_settings(settings or {}, dialect)
    values = {"num_heads": heads} | found | settings
    if values["num_heads"] is None:
        raise LanternError(
            f"the number of heads of a model of width {values['dim']} is not known from shapes: give num_heads in "
            f"the config, or all files if a part of its layers is missing ({values.get('num_layers')} are here)"
        )
    # As many as query heads are None in our configs.
    if settings.get("kv_heads") == values["num_heads"]:
        settings["kv_heads"] = values["kv_heads"] = None
    clashes = [
        f"{name} is {errors.quoted(value)} in the config and {found[name]} in the tensors"
        for name, value in settings.items()
        if name in found and value != found[name]
    ]
    if clashes:
        raise LanternError(f"{'; '.join(clashes)}: give the matching config")
    return dialect.config(**values)
