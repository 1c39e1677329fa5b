"""The model families: a folder each, whose record says all that the rest of the library looks up about its targets.

Nothing else asks which family a config belongs to. Needs no JAX until a family is read.

Axes: D width, V codes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lantern_jax.io.plugins import Table

if TYPE_CHECKING:
    from lantern_jax.decoding.protocols import Target
    from lantern_jax.families.config_files import Dialect
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


@dataclass(frozen=True)
class File:
    """A file option of a format.

    Attributes:
        option: its name on the command line; the argument in Python is the same with underscores.
        help: what the file is.
        required: whether the format cannot do without it.
        repository: whether ``--from-hub`` without this option takes the whole repository for it.

    Example:
        >>> from lantern_jax.families.registry import File
        >>> File("t5-tokenizer", "T5's spiece.model").argument
        't5_tokenizer'
    """

    option: str
    help: str
    required: bool = False
    repository: bool = False

    @property
    def argument(self) -> str:
        """The argument in Python."""
        return self.option.replace("-", "_")


# Where a conversion has a grid from if no file or name has it.
ASSUMED = "assumed"
# What the files of several formats are.
TENSORS = "a tensor file, an index or a folder"
MODEL = File("model", f"the model: {TENSORS}", required=True, repository=True)
TOKENIZER_JSON = File("text-tokenizer", "the model's tokenizer.json", required=True)
DRAFTER = File("drafter", f"LANTERN's drafter: {TENSORS}")


@dataclass(frozen=True, eq=False)
class Format:
    """What one ``lantern convert FORMAT`` takes.

    Attributes:
        help: one line.
        files: its options that are files, first the model.
        settings: settings of the config that the format decides unless other settings do.
        function: writes the checkpoint: takes the files and choices by name, ``out``, ``dtype``, ``overwrite`` and
            ``progress``; None where the family's ``Published`` says how.
        choices: its other options: name -> (help, words that it takes, the first by default; none for any word).

    Example:
        >>> from lantern_jax.families.registry import File, Format
        >>> files = (File("model", "the model: a tensor file", required=True),)
        >>> Format("mine: model", files, function=lambda model, out, **options: out).files[0].argument
        'model'
    """

    help: str
    files: tuple[File, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    choices: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class Published:
    """How a family's published files become a checkpoint.

    Attributes:
        dialect: what is known of its ``config.json``.
        sizes: (tensors, settings) -> config, inferred from names and shapes, and from settings.
        read: (tensors, config, dtype=, shapes=) -> (config, parameters); with ``order=`` too, where the family has a
            ``published_order``.
        read_tokenizer: tensors -> (``VQConfig``, ``VQModel`` parameters) of its picture tokenizer; None
            where pictures are not drawn here.
        inside: what begins the picture tokenizer's tensor names where they are among the model's.
        model: config -> the model's name, for people.
        defaults: config -> the settings that it is usually sampled with.
        more_settings: paths by argument -> settings from files other than the model's, or from their names, which those
            of ``config.json`` replace; and where the grid is from: "" as published, ``ASSUMED`` with a warning.
        repositories: repository of the Hugging Face hub, in lower case -> the words after ``lantern convert`` that make
            a checkpoint of its files, as in docs/models; or a repository with the same model in another layout.
    """

    dialect: "Dialect"
    sizes: Callable[..., Any]
    read: Callable[..., tuple[Any, Any]]
    read_tokenizer: Callable[..., tuple[Any, Any]] | None = None
    inside: tuple[str, ...] = ()
    model: Callable[[Any], str]
    defaults: Callable[[Any], Mapping[str, float]]
    more_settings: Callable[[Mapping[str, Path]], tuple[Mapping[str, Any], str]] = lambda files: ({}, "")
    repositories: Mapping[str, str] = field(default_factory=dict)

    def tokenizer_inside(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the picture tokenizer's tensors among a model's, under the tokenizer's own names."""
        return {
            name.removeprefix(prefix): tensor
            for prefix in self.inside
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }


@dataclass(frozen=True, eq=False)
class Family:
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
        preview_of: config -> [T], for each stream position the preview's that shows the same part of the picture, -1
            for none; None for models that sample no preview.
        product: (config, codes [n, T]) -> what other software draws pictures from, as arrays by name; None for models
            whose pictures are drawn here.
        sizes: name of a published size -> its config.
        published: how its published files are read; None where ``formats`` have functions of their own.
        formats: what ``lantern convert`` reads, by name.

    Example:
        >>> from lantern_jax.families.llamagen.model import LlamaGenConfig
        >>> from lantern_jax.families.registry import Family, target_of
        >>> family = Family(
        ...     LlamaGenConfig, shapes=dict, target=target_of,
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
    preview_of: Callable[[Any], tuple[int, ...] | None] = lambda config: None
    product: Callable[[Any, Any], Mapping[str, Any]] | None = None
    sizes: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    published: Published | None = None
    formats: Mapping[str, Format] = field(default_factory=dict)


FAMILIES: Table[Family] = Table(
    "family",
    {
        "llamagen": "lantern_jax.families.llamagen:FAMILY",
        "chameleon": "lantern_jax.families.chameleon:FAMILY",
        "janus": "lantern_jax.families.janus:FAMILY",
        "emu3": "lantern_jax.families.emu3:FAMILY",
        "liquid": "lantern_jax.families.liquid:FAMILY",
        "lumina2": "lantern_jax.families.lumina2:FAMILY",
        "glm_image": "lantern_jax.families.glm_image:FAMILY",
        "x_omni": "lantern_jax.families.x_omni:FAMILY",
        "emu3_5": "lantern_jax.families.emu3_5:FAMILY",
    },
    "families",
)


def family_name(config: TargetConfig) -> str:
    """Returns the name in ``FAMILIES`` of the family that a config belongs to."""
    return FAMILIES.named(lambda family: type(config) is family.config)


def family_of(config: TargetConfig) -> Family:
    """Returns the family that a config belongs to."""
    return FAMILIES[family_name(config)]


def target_of(config: TargetConfig, dtype: Any = "float32", taps: tuple[int, ...] = ()) -> "Target":
    """Returns the target record of a model of any family.

    Its conditioning is label ids, int32 [B, C] or, with the unconditional row's, [B, 2, C], or a CaptionConditioning
    for LlamaGen; GuidedTokens [B, P] for the others, or a TokenConditioning [B, P] without guidance.

    With ``taps``, its features are the inputs of these layers side by side [..., taps * D], where the number of layers
    stands for the final features; without, they are the final features. The same arguments return the same record, so
    compiled programs are reused. Raises LanternError for a tap that is not a layer, or a config of no family.

    Example:
        >>> from lantern_jax.families.emu3.model import Emu3Config
        >>> from lantern_jax.families.llamagen.model import published_config
        >>> from lantern_jax.families.registry import target_of
        >>> target = target_of(published_config("XL", "caption", grid=32))
        >>> target.vocab_size, target.num_tokens
        (16384, 1024)
        >>> target = target_of(Emu3Config())
        >>> target.forced_tokens[90] - target.vocab_size  # the end of the first row, as published
        151846
    """
    return family_of(config).target(config, dtype, taps)


def conversion_of(repository: str) -> str | None:
    """Returns the command that makes a checkpoint of a repository's published weights; None for an unknown one."""
    known = {
        name: words
        for family in FAMILIES.values()
        if family.published is not None
        for name, words in family.published.repositories.items()
    }
    words = known.get(repository.lower())
    words = known.get(words, words)
    return None if words is None else f"lantern convert {words}"
