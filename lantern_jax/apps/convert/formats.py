"""The formats of ``lantern convert``: the files that each takes, and the function that reads them. Needs no JAX."""

from dataclasses import replace

from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.families.formats import Choice, File, Format
from lantern_jax.families.registry import FAMILIES
from lantern_jax.io.plugins import Table, at

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
    """Returns the format of a model in ``PUBLISHED``; ``tokenizers`` are files of its picture tokenizer."""
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


_OLD = File("checkpoint", "the checkpoint directory to add it to", required=True)


def _of_families() -> dict[str, Format]:
    """Returns the formats that families of other packages bring."""
    return {name: kind for family in FAMILIES.values() for name, kind in family.formats.items()}


def _drafter_kinds() -> tuple[str, ...]:
    """Returns the kinds of drafters that can be read from published tensors."""
    return tuple(name for name, kind in DRAFTERS.items() if kind.has("read"))


_FORMATS = {
    "llamagen": LLAMAGEN,
    "anole": chameleon_format("Anole-7B", "anole"),
    "lumina": chameleon_format("Lumina-mGPT-7B", "lumina"),
    "janus": JANUS,
    "emu3": EMU3,
    "liquid": LIQUID,
    "lumina2": LUMINA2,
    "drafter": Format(
        "a drafter, into a checkpoint that exists",
        at("lantern_jax.apps.convert.convert:add_drafter"),
        (_OLD, File("drafter", f"the drafter: {TENSORS}", required=True, repository=True), CONFIG),
        choices=(
            Choice("kind", "what drafter it is, in place of an old one of its kind", _drafter_kinds),
            WEIGHTS,
        ),
    ),
    "t5": Format(
        "a text encoder, into a caption-conditional checkpoint that exists",
        at("lantern_jax.apps.convert.convert:add_text_encoder"),
        (
            _OLD,
            replace(T5, required=True, repository=True),
            replace(T5_TOKENIZER, required=True),
            CONFIG,
        ),
        choices=(WEIGHTS,),
    ),
}
FORMATS: Table[Format] = Table("format", _FORMATS, beside=_of_families)
