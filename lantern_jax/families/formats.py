"""The formats of ``lantern convert``, and the options they take. Needs no JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lantern_jax.io.plugins import Late, at


@dataclass(frozen=True)
class File:
    """A file option of a format.

    Attributes:
        option: its name on the command line; the function's argument is the same with underscores.
        help: what the file is.
        required: whether the format cannot do without it.
        repository: whether ``--from-hub`` without this option takes the whole repository for it.

    Example:
        >>> lantern_jax.File("t5-tokenizer", "T5's spiece.model").argument
        't5_tokenizer'
    """

    option: str
    help: str
    required: bool = False
    repository: bool = False

    @property
    def argument(self) -> str:
        """The function's argument."""
        return self.option.replace("-", "_")


@dataclass(frozen=True)
class Choice:
    """An option of a format that takes a word, of a few the first by default.

    Attributes:
        option, help: as in ``File``; the function's argument is the option's name.
        values: () -> the words; none for any word, by default None.
    """

    option: str
    help: str
    values: Callable[[], tuple[str, ...]] = tuple


@dataclass(frozen=True, eq=False)
class Format(Late):
    """What one ``lantern convert FORMAT`` takes.

    Attributes:
        help: one line.
        function: writes the checkpoint: takes the files, ``fixed`` and choices by name, ``out``, ``dtype``,
            ``overwrite`` and ``progress``, as ``checkpoints.convert.convert_llamagen`` does.
        files: its options that are files.
        fixed: arguments that the format decides.
        choices: its other options.

    Example:
        >>> files = (lantern_jax.File("model", "the model: a tensor file", required=True),)
        >>> lantern_jax.Format("mine: model", lambda model, out, **options: out, files).files[0].argument
        'model'
    """

    help: str
    function: Callable[..., Any]
    files: tuple[File, ...]
    fixed: tuple[tuple[str, Any], ...] = ()
    choices: tuple[Choice, ...] = ()


TENSORS = "a tensor file, an index or a folder"
DRAFTER = File("drafter", f"LANTERN's drafter: {TENSORS}")
CONFIG = File("config", "JSON, or a file of it, with what shapes do not tell")
WEIGHTS = Choice("weights", "of a file with several sets of weights, the one to take, such as ema")
T5 = File("t5", f"Flan-T5's encoder: {TENSORS}")
T5_TOKENIZER = File("t5-tokenizer", "T5's spiece.model or tokenizer.json")

LLAMAGEN = Format(
    "LlamaGen: GPT, VQ tokenizer, drafter, T5",
    at("lantern_jax.apps.convert.convert:convert_llamagen"),
    (
        File("gpt", f"the GPT: {TENSORS}", required=True, repository=True),
        File("vq", f"the VQ tokenizer: {TENSORS}"),
        DRAFTER,
        T5,
        T5_TOKENIZER,
        CONFIG,
    ),
    choices=(WEIGHTS,),
)


def guided_format(family: str, help_text: str, *tokenizers: File) -> Format:
    """Returns the format of a model in ``families.published``; ``tokenizers`` are files of its picture tokenizer."""
    files = (
        File("model", f"the model: {TENSORS}", required=True, repository=True),
        File("text-tokenizer", "the model's tokenizer.json", required=True),
        *tokenizers,
        CONFIG,
    )
    function = at("lantern_jax.apps.convert.convert:convert_guided_files")
    return Format(help_text, function, files, (("family", family),), (WEIGHTS,))


# Its picture tokenizer is among the model's tensors.
JANUS = guided_format("janus", "Janus-Pro-1B and 7B: model, tokenizer")
EMU3 = guided_format(
    "emu3",
    "Emu3-Gen: model, tokenizer",
    File("vqgan", "Emu3-VisionTokenizer, if not among the model's tensors"),
)
LUMINA2 = guided_format(
    "lumina2", "Lumina-mGPT-2.0: model, MoVQGAN", File("vqgan", "MoVQGAN's movqgan_270M.ckpt")
)
LIQUID = guided_format("liquid", "Liquid-7B: model, VQGAN", File("vqgan", "Chameleon's vqgan.ckpt"))


def chameleon_format(model: str, layout: str) -> Format:
    """Returns the format of a published Chameleon model, named ``model`` in its help."""
    files = (
        File("model", f"the model: {TENSORS}", required=True, repository=True),
        File("text-tokenizer", "Chameleon's text_tokenizer.json", required=True),
        File("vqgan", "Chameleon's vqgan.ckpt"),
        DRAFTER,
        CONFIG,
    )
    function = at("lantern_jax.apps.convert.convert:convert_chameleon_files")
    return Format(f"{model}: model, VQGAN, drafter", function, files, (("layout", layout),), (WEIGHTS,))
