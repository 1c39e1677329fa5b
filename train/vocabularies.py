"""The vocabularies of landscapes, by the names under which a tokenizer's config, token files and runs know them.

The name is said once, in the tokenizer's config; what is made of its pictures takes it from there. What has no name yet
was made with the released one.
"""

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.text.landscapes import LANDSCAPES as RELEASED
from lantern_jax.text.landscapes import Vocabulary
from train.painter.vocabulary import LANDSCAPES as PAINTER

FIRST = "released"
VOCABULARIES = {FIRST: RELEASED, "painter": PAINTER}


def vocabulary_named(name: str) -> Vocabulary:
    """Returns the vocabulary of a name. Raises LanternError for an unknown one."""
    if name not in VOCABULARIES:
        raise errors.unknown("vocabulary", name, VOCABULARIES)
    return VOCABULARIES[name]


def name_of(vocabulary: Vocabulary | None) -> str:
    """Returns the name of the vocabulary whose attributes, and so labels, a checkpoint's has.

    Raises LanternError if it has none, or one of other attributes.
    """
    for name, known in VOCABULARIES.items():
        if vocabulary is not None and list(vocabulary.attributes.items()) == list(known.attributes.items()):
            return name
    found = "none" if vocabulary is None else f"one of {errors.listed(vocabulary.attributes)}"
    raise LanternError(
        f"the checkpoint's vocabulary is {found}: expected that of landscapes, {' or '.join(VOCABULARIES)}; "
        "give the demo or one trained like it"
    )
