"""The formats of ``lantern convert``: the files that each takes, and the function that reads them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lantern_jax.apps.convert.convert import add_parts, convert_published
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.families.registry import FAMILIES, TENSORS, Family, File, Format

CONFIG = File("config", "JSON, or a file of it, with what shapes do not show")
WEIGHTS = {"weights": ("of a file with several sets of weights, the one to take, such as ema", ())}
_OLD = File("checkpoint", "the checkpoint directory to add it to", required=True)


def formats() -> dict[str, Format]:
    """Returns the formats by name: those of families, then those that add a part to a checkpoint."""
    found = {
        name: _whole(family, form) for family in FAMILIES.values() for name, form in family.formats.items()
    }
    kinds = tuple(name for name, kind in DRAFTERS.items() if kind.read is not None)
    return found | {
        "drafter": Format(
            "a drafter, into a checkpoint that exists",
            (_OLD, File("drafter", f"the drafter: {TENSORS}", required=True, repository=True), CONFIG),
            function=add_parts,
            choices={"kind": ("what drafter it is, in place of an old one of its kind", kinds)} | WEIGHTS,
        ),
        "t5": Format(
            "a text encoder, into a caption-conditional checkpoint that exists",
            (
                _OLD,
                File("t5", f"Flan-T5's encoder: {TENSORS}", required=True, repository=True),
                File("t5-tokenizer", "T5's spiece.model or tokenizer.json", required=True),
                CONFIG,
            ),
            function=add_parts,
            choices=WEIGHTS,
        ),
    }


def convert(name: str, **given: Any) -> Path:
    """Converts published files as ``lantern convert NAME`` does; returns the checkpoint's directory.

    Args:
        name: of a format.
        given: as for ``convert_published``.
    """
    return formats()[name].function(**given)


def _whole(family: Family, form: Format) -> Format:
    """Returns a format with its function, and the options that all those of a ``Published`` have."""
    if form.function is not None:
        return form
    function = partial(convert_published, family, form)
    return replace(form, files=(*form.files, CONFIG), function=function, choices=WEIGHTS)
