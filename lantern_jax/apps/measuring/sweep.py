"""What a benchmark measures: every combination of the given lists."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lantern_jax.apps.measuring.rows import PLAIN
from lantern_jax.decoding.methods import METHODS, Method
from lantern_jax.io import errors
from lantern_jax.settings.settings import NUMBERS

# The options of which a benchmark takes lists.
SWEPT = ("method", "rule", "batch", "guidance")


@dataclass(frozen=True)
class Configuration:
    """A method and its setting, as asked for.

    Attributes:
        method: its text.
        options: other options of decoding that were given, by name.
        batch: pictures decoded together.
        guidance: the scale; None for the model's.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1
    guidance: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """All options, as ``resolve_settings`` takes them."""
        return {"method": self.method, **self.options, "batch": self.batch, "guidance": self.guidance}

    def __str__(self) -> str:
        options = "".join(f", {name} {value}" for name, value in self.options.items())
        guidance = "" if self.guidance is None else f", guidance {self.guidance:g}"
        return f"{self.method}{options}, batch {self.batch}{guidance}"


def expand(
    methods: Iterable[str],
    *,
    rules: Sequence[str] = (),
    batches: Sequence[int] = (1,),
    guidances: Sequence[float | None] = (None,),
    options: Mapping[str, Any] | None = None,
) -> list[Configuration]:
    """Returns every combination once; rows that are compared with the same plain decoding stand together.

    Args:
        methods: their texts (``check_methods``).
        rules: their texts, for all methods but plain decoding; empty for the method's own.
        options: other options, of all configurations.
    """
    found: dict[str, Configuration] = {}
    for batch, guidance, method in itertools.product(batches, guidances, methods):
        for rule in rules if rules and method != PLAIN else (None,):
            given = dict(options or {}) | ({} if rule is None else {"rule": rule})
            one = Configuration(method, given, batch, guidance)
            found.setdefault(str(one), one)
    return list(found.values())


def check_methods(texts: Sequence[str]) -> list[str]:
    """Returns the texts of methods, all that there are for none; raises LanternError for one that is not valid."""
    for text in texts:
        if "," in text.partition(":")[0]:
            raise errors.invalid("--methods", text, "methods with spaces between them: led:nodes=9 jacobi")
        Method.of(text)
    return list(texts) or [name for name in METHODS if name != "auto"]


def parse_list(name: str, text: str) -> list[Any]:
    """Returns the values of an option's list, ``1,4,8``; LanternError if one is not valid or there is none."""
    allowed = NUMBERS[name].metadata["allowed"]
    values = [allowed.read(name, part.strip()) for part in text.split(",") if part.strip()]
    if not values:
        raise errors.invalid(f"--{name}", text, "one value or several with commas")
    return values
