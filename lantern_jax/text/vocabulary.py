"""Prompts as attributes: a small vocabulary between words and a model's label ids.

A vocabulary is plain data that a checkpoint carries as JSON: attributes with their values, a table word -> (attribute,
value), and ignored words. Case and punctuation do not matter; plurals have their own entries.

Label ids share one embedding table: for each attribute in turn, the ids of its values, then its "unspecified" id. In
the unconditional row of guidance, every attribute is unspecified.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

UNSPECIFIED = -1
# Words that deny one that follows; they reach over unknown words, but then no further than to a word of place.
_NEGATIONS = "avoid avoiding except excluding lacking minus neither never no non nor not without"
_PLACES = "above at behind below beside by in near on over under with"
# Signs between words; others, such as emoji, are unknown words.
_SIGNS = ",.;:!?'\"()_/-\u2013\u2014\u2018\u2019\u201c\u201d\u2026"
# An attribute and some of its values.
AttributeValues = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Vocabulary:
    """Words, attributes and label ids; A is the number of attributes.

    Attributes:
        attributes: attribute -> its values, in the order of the model's condition tokens.
        words: word or phrase (lower case, single spaces) -> (attribute, value).
        ignored: words without an attribute that a prompt may contain.
        usual: attribute -> its value if a prompt leaves it open; the model chooses the values of other attributes.
        impossible: pairs of (attribute, values): no picture has a value of the first and one of the second together.
    """

    attributes: Mapping[str, tuple[str, ...]]
    words: Mapping[str, tuple[str, str]]
    ignored: frozenset[str] = frozenset()
    usual: Mapping[str, str] = field(default_factory=dict)
    impossible: tuple[tuple[AttributeValues, AttributeValues], ...] = ()

    def __post_init__(self):
        named = [(f"word {word!r}", *meaning) for word, meaning in self.words.items()]
        named += [("usual", *pair) for pair in self.usual.items()]
        parts = [part for pair in self.impossible for part in pair]
        named += [("impossible", attribute, value) for attribute, values in parts for value in values]
        for where, attribute, value in named:
            if value not in self.attributes.get(attribute, ()):
                raise LanternError(f"vocabulary: {where} names the unknown value {value!r} of {attribute!r}")

    @property
    def num_attributes(self) -> int:
        return len(self.attributes)

    @property
    def num_labels(self) -> int:
        """Rows of the label embedding: all values and an "unspecified" id per attribute."""
        return sum(len(values) + 1 for values in self.attributes.values())

    def parse(self, text: str, strict: bool = True) -> tuple[int, ...]:
        """Returns the value index of each attribute in a prompt, -1 where it is not named.

        Raises LanternError for an unknown word, if ``strict``; for a prompt without a meaningful word; for a negation
        before a known word, which would be drawn all the same; or for two words that contradict each other.
        """
        self._check_negations(text)
        named: dict[str, str] = {}
        of_word: dict[str, str] = {}
        for word in self._split(text):
            attribute, value = self.words.get(word, (None, None))
            if attribute and named.setdefault(attribute, value) != value:
                raise LanternError(
                    f"prompt: {of_word[attribute]!r} and {word!r} contradict each other ({attribute}); keep one"
                )
            of_word.setdefault(attribute, word)
        unknown = self.unknown(text)
        if unknown and (strict or not named):
            names = self._with_advice(unknown)
            raise LanternError(f"prompt: unknown word {names}; known words: {self._known()}")
        if not named:
            raise LanternError(f"empty prompt: expected at least one of the words: {self._known()}")
        return self._indices(named)

    def unknown(self, text: str) -> list[str]:
        """Returns the words of a prompt that are neither known nor ignored, and its emoji and the like, each once."""
        signs = (sign for sign in text if unicodedata.category(sign)[0] in "SP" and sign not in _SIGNS)
        words = dict.fromkeys([*self._split(text), *signs])
        return [word for word in words if word not in self.words and word not in self.ignored]

    def ignored_of(self, prompts: Iterable[str]) -> str:
        """Returns a line about the unknown words of prompts, or "" if there are none."""
        unknown = [*dict.fromkeys(word for prompt in prompts for word in self.unknown(prompt))]
        return f"ignored, the model does not know: {self._with_advice(unknown)}" if unknown else ""

    def _with_advice(self, unknown: Sequence[str]) -> str:
        """Lists unknown words, the first ones, which are shown, with the known words that may be meant."""

        def shown(word: str) -> str:
            values = self.attributes.get(word)
            near = f"say which: {', '.join(values)}" if values else errors.nearest(word, self.words).rstrip()
            return f"{word!r} ({near})" if near else repr(word)

        most = 5
        return errors.listed([*map(shown, unknown[:most]), *unknown[most:]], most)

    def _check_negations(self, text: str) -> None:
        for part in re.split(r"[.;:!?]", text):
            negation, passed = "", False
            for word in self._split(part):
                if word in self.words and negation:
                    raise LanternError(
                        f"prompt: {negation!r} before {word!r} is not understood: leave both out, and give {word!r} as "
                        "negative_prompt (--negative)"
                    )
                if word in _NEGATIONS.split() or word.endswith("n't"):
                    negation, passed = word, False
                elif passed and word in _PLACES.split():
                    negation = ""
                else:
                    passed |= word not in self.ignored

    @cached_property
    def _impossible(self) -> set[frozenset[tuple[str, str]]]:
        """The impossible pairs, value by value."""
        return {
            frozenset([(one, value), (other, another)])
            for (one, values), (other, others) in self.impossible
            for value, another in itertools.product(values, others)
        }

    def clashes(self, first: tuple[str, str], second: tuple[str, str]) -> bool:
        """Tells whether two (attribute, value) pairs are impossible together."""
        return frozenset([first, second]) in self._impossible

    def check_possible(self, named: Mapping[str, str], what: str = "prompt") -> None:
        """Raises LanternError if two of the named attributes have values that are impossible together."""
        for first, second in itertools.combinations(named.items(), 2):
            if self.clashes(first, second):
                raise LanternError(
                    f"{what}: {first[0]} {first[1]!r} and {second[0]} {second[1]!r} are impossible together; "
                    "leave one out"
                )

    def completed(self, parsed: Sequence[int]) -> tuple[int, ...]:
        """Returns a parsed prompt that has, where it names none, the usual values or else the first possible ones.

        Raises LanternError if it names two values that are impossible together.
        """
        found = self.labels(parsed)
        self.check_possible(found)
        for name, values in self.attributes.items():
            if name in self.usual and name not in found:
                likely = (self.usual[name], *values)
                possible = (
                    value
                    for value in likely
                    if not any(self.clashes((name, value), other) for other in found.items())
                )
                found[name] = next(possible, likely[0])
        return self._indices(found)

    def _indices(self, named: Mapping[str, str]) -> tuple[int, ...]:
        """Returns the index of each attribute's named value, as ``parse`` does."""
        return tuple(
            values.index(named[name]) if name in named else UNSPECIFIED
            for name, values in self.attributes.items()
        )

    @staticmethod
    def tokens(text: str) -> list[str]:
        """Splits a text into words in lower case, without punctuation."""
        return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower().replace("\u2019", "'"))

    def _split(self, text: str) -> list[str]:
        """Splits a prompt into words and the longest known phrases."""
        tokens = self.tokens(text)
        longest = max((len(word.split()) for word in self.words), default=1)
        words, start = [], 0
        while start < len(tokens):
            for length in range(min(longest, len(tokens) - start), 0, -1):
                phrase = " ".join(tokens[start : start + length])
                if length == 1 or phrase in self.words:
                    words.append(phrase)
                    start += length
                    break
        return words

    def grouped(self) -> dict[str, dict[str, list[str]]]:
        """Returns attribute -> value -> the words that mean it, the value itself first."""

        def meaning(*sought: str) -> list[str]:
            words = (word for word, meaning in self.words.items() if tuple(meaning) == sought)
            return sorted(words, key=lambda word: (word != sought[1], word))

        return {
            name: {value: meaning(name, value) for value in values}
            for name, values in self.attributes.items()
        }

    def _known(self) -> str:
        """Returns a line with a word for each value, attribute by attribute, and how many more there are."""
        lines = []
        for name, values in self.grouped().items():
            first = [words[0] for words in values.values() if words]
            more = [word for words in values.values() for word in words[1:]]
            lines.append(f"{name}: {errors.listed(first + more, len(values))}")
        return "; ".join(lines)

    def labels(self, parsed: Sequence[int]) -> dict[str, str]:
        """Returns the named attributes of a parsed prompt: attribute -> value."""
        named = zip(self.attributes.items(), parsed, strict=True)
        return {name: values[index] for (name, values), index in named if index != UNSPECIFIED}

    def null_labels(self) -> np.ndarray:
        """Returns the label ids of the unconditional row, every attribute unspecified, int32 [A]."""
        sizes = [len(values) + 1 for values in self.attributes.values()]
        return np.cumsum(sizes, dtype=np.int32) - np.int32(1)

    def label_ids(self, parsed: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the label ids, int32 [..., A] in [0, num_labels), of parsed prompts [..., A].

        Raises LanternError for an index without a value, or another number of attributes.
        """
        indices, null = np.asarray(parsed, dtype=np.int32), self.null_labels()
        sizes = np.array([len(values) for values in self.attributes.values()], dtype=np.int32)
        if indices.shape[-1:] != sizes.shape or (indices < UNSPECIFIED).any() or (indices >= sizes).any():
            raise LanternError(
                f"attributes: got shape {indices.shape}, expected (..., {len(sizes)}) with entries from -1 "
                f"to below {sizes.tolist()}; take them from parse() or from the data set"
            )
        return np.where(indices == UNSPECIFIED, null, null - sizes + indices)

    def to_json(self) -> dict:
        """Returns plain dictionaries, lists and strings, for a checkpoint's config."""
        return {
            "attributes": {name: list(values) for name, values in self.attributes.items()},
            "words": {word: list(meaning) for word, meaning in self.words.items()},
            "ignored": sorted(self.ignored),
            "usual": dict(self.usual),
            "impossible": [[[name, list(values)] for name, values in pair] for pair in self.impossible],
        }

    @classmethod
    def from_json(cls, data: dict) -> "Vocabulary":
        """Reads what ``to_json`` gives; raises LanternError for a missing or malformed entry, or an unknown value."""
        try:
            parts = (
                {name: tuple(values) for name, values in data["attributes"].items()},
                {word: (attribute, value) for word, (attribute, value) in data["words"].items()},
                frozenset(data["ignored"]),
                dict(data.get("usual", {}).items()),
                tuple(
                    ((one, tuple(values)), (other, tuple(others)))
                    for (one, values), (other, others) in data.get("impossible", [])
                ),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise LanternError(f"vocabulary: malformed ({error}): give what to_json wrote") from None
        return cls(*parts)
