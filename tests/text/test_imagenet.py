"""ImageNet's class names."""

import pytest

from lantern_jax.families.llamagen.imagenet import IMAGENET_CLASSES, class_names, class_number
from tests.refused import refused


def test_a_class_has_one_number():
    assert len(class_names()) == IMAGENET_CLASSES
    shared = {"crane", "maillot", "cardigan"}
    for number, names in enumerate(class_names()):
        if names[0].lower() not in shared:
            assert class_number(names[0]) == number
            assert class_number(names[0].upper()) == number
        if len(names) > 1:
            assert class_number(", ".join(names)) == number


# "partridge" is also a name of the ruffed grouse, 82, but not its first.
NUMBERS = {
    "tench": 0, "golden_retriever": 207, "  Golden   RETRIEVER ": 207, "jinrikisha": 612, "tank suit": 639,
    "Cardigan Welsh corgi": 264, "partridge": 86, "Great White Shark": 2, "toilet tissue": 999,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_any_name_of_a_class_gives_its_number(name):
    assert class_number(name) == NUMBERS[name]


@pytest.mark.parametrize(("name", "match"), [
    ("crane", r"134 \(crane, the animal\) or 517 \(crane\)"),
    ("Maillot", r"638 \(maillot\) or 639 \(maillot, tank suit\)"), ("panda", r"387 .* or 388"),
    ("goldn retriver", r"did you mean 'golden retriever' \(207\)"), ("bear", r"did you mean .*'brown bear' \(294\)"),
    ("zzz", r"'zzz': give its number, 0 to 999"), ("", "empty class name"), ("[", "empty class name"),
])  # fmt: skip
def test_names_of_no_class_or_of_two_are_refused(name, match):
    with refused(match):
        class_number(name)
