"""What users choose by name: rules, draftings and couplings, each a class of records beside its algorithm.

As text a record is ``name`` or ``name:field=value,field=value``, in commands, requests, files and Python alike. Another
package adds a class by an entry point of the group ``lantern_jax.rules``, ``.draftings`` or ``.couplings`` that names
it; entry points are read when a name is unknown here, or all names are wanted. Needs no JAX until a class is read.
"""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

from lantern_jax.decoding.fields import allowed_in, read_field, written
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.plugins import Table, imported

# The most characters of a text, which may write out a tree.
MOST = 40_000


class Choices(Table[type]):
    """The classes of one sort by name: this package's, then those of others.

    Args:
        what: the sort, in messages.
        base: the class that they derive from, ``module:name`` below this package.
        places: likewise this package's, by name; they are imported when they are looked up.
    """

    def __init__(self, what: str, base: str, places: Mapping[str, str]):
        ours = {name: f"{__package__}.{place}" for name, place in places.items()}
        super().__init__(what, ours, f"{what}s")
        self._base = f"{__package__}.{base}"

    def name_of(self, record: Any) -> str:
        """Returns the name of a record's class; empty if it has none."""
        return next((name for name, kind in self.items() if kind is type(record)), "")

    def read(self, text: str) -> Any:
        """Returns the record that a text describes; raises LanternError for an unknown name or field, a field that is
        given twice, or a value that it may not hold."""
        name, given = split(text, self.what)
        (record,) = with_fields(f"{self.what} {name}", [self.find(name)()], given)
        return record

    def text(self, record: Any) -> str:
        """Returns a record as text, with the fields that differ from their defaults; its class for an own one."""
        name = self.name_of(record)
        if not name:
            return errors.short(repr(record)) if dataclasses.is_dataclass(record) else type(record).__name__
        values = {
            field: (getattr(record, field), one.default) for field, one in allowed_in(type(record)).items()
        }
        given = [f"{field}={written(value)}" for field, (value, usual) in values.items() if value != usual]
        return f"{name}:{','.join(given)}" if given else name

    def checked(self, value: Any) -> Any:
        """Returns a record as it is, and the one that a text describes; raises LanternError for anything else."""
        if isinstance(value, str):
            return self.read(value)
        if isinstance(value, type):
            raise errors.invalid(self.what, value.__name__, f"an object of that class, {value.__name__}(...)")
        if not isinstance(value, imported(self._base)):
            raise errors.unknown(self.what, value, self)
        return value


def split(text: str, what: str) -> tuple[str, dict[str, str]]:
    """Returns the name in a text ``name:field=value,field=value``, and its fields' values by name; raises LanternError
    for a text of another form, or a field that is given twice."""
    form = f"{what} {errors.quoted(text, 120)} is not valid: give name:field=value,field=value"
    if not isinstance(text, str) or len(text) > MOST:
        raise LanternError(form)
    name, colon, rest = text.partition(":")
    given: dict[str, str] = {}
    for pair in rest.split(",") if colon else ():
        field, equals, value = pair.partition("=")
        if not (equals and field and value):
            raise LanternError(form)
        if field in given:
            raise LanternError(f"{what} {errors.quoted(name)} has {errors.quoted(field)} twice: give it once")
        given[field] = value
    return name, given


def with_fields(what: str, records: list[Any], given: Mapping[str, str]) -> list[Any]:
    """Returns records with fields set from text, each in the record that has it; raises LanternError as ``read``."""
    rest, known, made = dict(given), [], []
    for record in records:
        fields = allowed_in(type(record))
        values = {name: read_field(one, rest.pop(name)) for name, one in fields.items() if name in rest}
        made.append(dataclasses.replace(record, **values) if values else record)
        known += fields
    for field in rest:
        advice = f"choose one of {', '.join(dict.fromkeys(known))}" if known else "it has none"
        near = errors.nearest(field, known)
        raise LanternError(f"{what} has no field {errors.quoted(field, 60)}: {near}{advice}")
    return made


def meanings(kind: type) -> dict[str, str]:
    """Returns what a class's docstring says of each of its fields."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        attributes = inspect.cleandoc(vars(base).get("__doc__") or "").partition("\nAttributes:\n")[2]
        for entry in re.split(r"\n(?=    \S)", attributes.partition("\n\n")[0]):
            names, _, words = " ".join(entry.split()).partition(": ")
            found |= dict.fromkeys(names.split(", "), words)
    return {name: found.get(name, "") for name in allowed_in(kind)}


RULES = Choices("rule", "acceptance:Rule", {
    "strict": "acceptance:Strict", "lantern": "acceptance:Lantern", "lantern++": "acceptance:LanternPlusPlus",
    "near": "rules.near:Near", "typical": "rules.typical:Typical", "tolerance": "rules.typical:Tolerance",
    "cool": "rules.cool:Cool", "gsd": "rules.grouped:Grouped",
})  # fmt: skip
DRAFTINGS = Choices("drafting", "drafting.guessing:Guessing", {
    "plain": "drafting.plain:Plain", "tree": "drafting.eagle:Tree", "dynamic": "drafting.eagle:Dynamic",
    "led": "drafting.led:Led", "jacobi": "drafting.jacobi:Jacobi", "zipar": "zipar:ZipAR",
})  # fmt: skip
COUPLINGS = Choices("coupling", "verification:Coupling", {
    "gumbel": "gumbel:Gumbel", "rejection": "rejection:Rejection", "block": "block:Block",
})  # fmt: skip


def coupling_name(coupling: Any) -> str:
    """Returns the name of a coupling's class, or of the one that it derives from; "" for any other."""
    return next((name for name, kind in COUPLINGS.items() if isinstance(coupling, kind)), "")
