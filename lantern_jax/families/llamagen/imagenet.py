"""ImageNet's 1000 classes by name: the ILSVRC 2012 synsets (WordNet), in the order of the class numbers."""

import difflib
import json
import re
from functools import cache
from importlib import resources

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

IMAGENET_CLASSES = 1000
# Classes below this number are animals, which distinguishes two classes of one name.
NUM_ANIMALS = 398


def class_number(name: str) -> int:
    """Returns the number, 0 to 999, of an ImageNet class.

    Args:
        name: any of the class's names, or all of them as ImageNet lists them; case, spaces, underscores and
            punctuation do not matter. Of two classes that share a name, the one that lists it first is meant.

    Raises LanternError if no class or two classes have the name.
    """
    key = _key(name)
    if not key:
        raise LanternError(
            "empty class name: give an ImageNet class, such as 'golden retriever', or its number"
        )
    first, others = _tables()
    found = first.get(key) or others.get(key)
    if not found:
        raise LanternError(f"no ImageNet class is called {errors.quoted(name)}: {_suggestion(name)}")
    if len(found) > 1:
        animal = {number: ", the animal" if number < NUM_ANIMALS else "" for number in found}
        candidates = (f"{number} ({', '.join(class_names()[number])}{animal[number]})" for number in found)
        raise LanternError(
            f"two ImageNet classes are called {errors.quoted(name)}: give the number, {' or '.join(candidates)}"
        )
    return found[0]


@cache
def class_names() -> tuple[tuple[str, ...], ...]:
    """Reads the names of every class, the usual one first."""
    content = (
        resources.files("lantern_jax.families.llamagen")
        .joinpath("imagenet_classes.json")
        .read_text(encoding="utf-8")
    )
    return tuple(tuple(names) for names in json.loads(content))


@cache
def _tables() -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Indexes classes by their first name or whole list of names, and by all names."""
    first: dict[str, list[int]] = {}
    others: dict[str, list[int]] = {}
    for number, names in enumerate(class_names()):
        for key in {_key(names[0]), _key(", ".join(names))}:
            first.setdefault(key, []).append(number)
        for key in {_key(name) for name in names}:
            others.setdefault(key, []).append(number)
    return first, others


def _key(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def _suggestion(name: str, limit: int = 5) -> str:
    """Suggests names that contain the word, then names spelled alike, one per class."""
    numbers = {one: number for number, names in enumerate(class_names()) for one in reversed(names)}
    keys = {_key(one): one for one in numbers}
    word = re.compile(rf"\b{re.escape(name.strip())}\b", re.IGNORECASE)
    near = [one for one in numbers if word.search(one)]
    near += [keys[key] for key in difflib.get_close_matches(_key(name), keys, n=limit, cutoff=0.7)]
    chosen: dict[int, str] = {}
    for one in near:
        chosen.setdefault(numbers[one], one)
    if not chosen:
        return f"give its number, 0 to {IMAGENET_CLASSES - 1}"
    return f"did you mean {', '.join(f'{one!r} ({i})' for i, one in list(chosen.items())[:limit])}?"
