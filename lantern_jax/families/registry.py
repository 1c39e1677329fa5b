"""The model families: everything that the rest of the library looks up about a target by the class of its config.

Nothing else asks which family a config belongs to: a new one is a file and an entry here. Needs no JAX.

Axes: D width, V codes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lantern_jax.families.formats import Format
from lantern_jax.io.plugins import Late, Table, at

if TYPE_CHECKING:
    from lantern_jax.decoding.protocols import Target
    from lantern_jax.text.encoders import PromptEncoder, PromptParts


class TargetConfig(Protocol):
    """A config of any family: sizes of a model, a frozen dataclass."""

    dim: int
    num_heads: int
    num_codes: int
    vocab_size: int
    grid: int
    num_tokens: int
    shared_with_drafter: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Family(Late):
    """One family of targets.

    Attributes:
        config: the class of its configs. Raises TypeError or LanternError for an unknown field or an invalid value.
        shapes: config -> the abstract parameter tree.
        target: (config, dtype, taps=()) -> the target record; the same arguments give the same record. With taps its
            features are the states entering those layers, side by side.
        prompts: the parts of a checkpoint that concern prompts -> their encoder.
        random_conditioning: (config, n) -> conditioning for n different prompts, leaves [n, ...] on the host.
        head: parameters -> the head that turns features into logits, which a drafter shares: a kernel [D, V] or the
            parameters of a ``HiddenHead``.
        published_order: (config, text tokenizer's file or None) -> the published token id of every row of our
            embedding table, or None where they are the same. Raises LanternError where the file is needed and missing
            or damaged.
        published_residual: config -> the ``residual`` of the rejection coupling that its published code uses.
        text_width: config -> width of the text encoder's features that it takes; 0 for none.
        classes: config -> how many class numbers can be prompts; 0 if prompts are text.
        shaped: (config, rows, columns of codes) -> the config for pictures of that shape; raises LanternError for one
            that the model cannot draw. None if it draws pictures of its own shape alone.
        tokenizer: -> config of the VQ tokenizer that its published models have; None where none is known.
        formats: another package's formats that ``lantern convert`` reads, by name.

    Example:
        >>> family = lantern_jax.Family(
        ...     lantern_jax.LlamaGenConfig, shapes=dict, target=lantern_jax.llamagen_target,
        ...     prompts=lambda parts: None, random_conditioning=lambda config, count: None,
        ... )
        >>> family.head({"params": {"head": {"kernel": 1}}}), family.formats
        (1, {})
    """

    config: type
    shapes: Callable[[Any], Any]
    target: Callable[..., "Target"]
    prompts: Callable[["PromptParts"], "PromptEncoder"]
    random_conditioning: Callable[[Any, int], Any]
    head: Callable[[Any], Any] = lambda params: params["params"]["head"]["kernel"]
    published_order: Callable[[Any, Path | None], Any] = lambda config, text_tokenizer: None
    published_residual: Callable[[Any], str] = lambda config: "published"
    text_width: Callable[[Any], int] = lambda config: 0
    classes: Callable[[Any], int] = lambda config: 0
    shaped: Callable[[Any, int, int], Any] | None = None
    tokenizer: Callable[[], Any] = lambda: None
    formats: Mapping[str, Format] = field(default_factory=dict)


FAMILIES: Table[Family] = Table(
    "family",
    {
        "llamagen": Family(
            config=at("lantern_jax.models.llamagen:LlamaGenConfig"),
            shapes=at("lantern_jax.families.llamagen_weights:gpt_shapes"),
            target=at("lantern_jax.models.llamagen:llamagen_target"),
            prompts=at("lantern_jax.text.encoders:llamagen_encoder"),
            random_conditioning=at("lantern_jax.families.llamagen_weights:random_conditioning"),
            text_width=lambda config: config.caption_dim,
            classes=lambda config: max(config.num_labels - 1, 0),
            tokenizer=at("lantern_jax.models.vq:VQConfig"),
        ),
        "chameleon": Family(
            config=at("lantern_jax.models.chameleon:ChameleonConfig"),
            shapes=at("lantern_jax.families.chameleon_weights:chameleon_shapes"),
            target=at("lantern_jax.models.chameleon:chameleon_target"),
            prompts=at("lantern_jax.text.encoders:TokenEncoder"),
            random_conditioning=at("lantern_jax.families.chameleon_weights:random_conditioning"),
            published_order=at("lantern_jax.families.chameleon_weights:published_order"),
            published_residual=lambda config: (
                "published_lumina" if config.layout == "lumina" else "published"
            ),
            tokenizer=at("lantern_jax.families.chameleon_weights:tokenizer"),
        ),
        "janus": Family(
            config=at("lantern_jax.models.janus:JanusConfig"),
            shapes=at("lantern_jax.families.janus_weights:janus_shapes"),
            target=at("lantern_jax.models.janus:janus_target"),
            prompts=at("lantern_jax.text.guided:JanusEncoder"),
            random_conditioning=at("lantern_jax.families.token_weights:random_conditioning"),
            head=lambda params: params["params"]["head"],
            tokenizer=at("lantern_jax.models.vq:VQConfig"),
        ),
        "emu3": Family(
            config=at("lantern_jax.models.emu3:Emu3Config"),
            shapes=at("lantern_jax.families.token_weights:model_shapes"),
            target=at("lantern_jax.models.emu3:emu3_target"),
            prompts=at("lantern_jax.text.guided:Emu3Encoder"),
            random_conditioning=at("lantern_jax.families.token_weights:random_conditioning"),
            published_order=at("lantern_jax.families.token_weights:published_order"),
            shaped=at("lantern_jax.models.tokens:shaped"),
            tokenizer=at("lantern_jax.families.emu3_vq_weights:emu3_tokenizer"),
        ),
        "liquid": Family(
            config=at("lantern_jax.models.liquid:LiquidConfig"),
            shapes=at("lantern_jax.families.token_weights:model_shapes"),
            target=at("lantern_jax.models.liquid:liquid_target"),
            prompts=at("lantern_jax.text.guided:LiquidEncoder"),
            random_conditioning=at("lantern_jax.families.token_weights:random_conditioning"),
            published_order=at("lantern_jax.families.token_weights:published_order"),
            tokenizer=at("lantern_jax.families.chameleon_weights:tokenizer"),
        ),
        "lumina2": Family(
            config=at("lantern_jax.models.lumina2:Lumina2Config"),
            shapes=at("lantern_jax.families.token_weights:model_shapes"),
            target=at("lantern_jax.models.lumina2:lumina2_target"),
            prompts=at("lantern_jax.text.lumina2:Lumina2Encoder"),
            random_conditioning=at("lantern_jax.families.token_weights:random_conditioning"),
            published_order=at("lantern_jax.families.token_weights:published_order"),
            shaped=at("lantern_jax.models.tokens:shaped"),
            tokenizer=at("lantern_jax.families.lumina2_weights:movqgan"),
        ),
    },
    "families",
)


def family_name(config: TargetConfig) -> str:
    """Returns the name in ``FAMILIES`` of the family that a config belongs to."""
    return FAMILIES.named(lambda family: type(config) is family.config)


def family_of(config: TargetConfig) -> Family:
    """Returns the family that a config belongs to."""
    return FAMILIES[family_name(config)]
