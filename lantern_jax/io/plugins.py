"""Tables of kinds by name, which other packages can add to.

A package adds a kind by an entry point of a group, ``lantern_jax.families`` say, that names it. Entry points are
read when a name is unknown here.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any, Generic, TypeVar

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

Kind = TypeVar("Kind")
_tables: list["Table"] = []


def imported(place: str) -> Any:
    """Imports the value at ``module:name``."""
    module, _, path = place.partition(":")
    return attrgetter(path)(importlib.import_module(module))


class Table(Mapping[str, Kind], Generic[Kind]):
    """The kinds of one sort by name. It iterates over those known; an unknown name is looked for in other packages.

    Args:
        what: the sort, in messages.
        ours: the kinds of this package, or where each is, ``module:name``: it is imported when it is looked up.
        group: of the entry points that name other packages' kinds, below ``lantern_jax``; empty for none.
    """

    def __init__(self, what: str, ours: Mapping[str, Kind | str], group: str = ""):
        self.what, self.group, self._ours = what, group, dict(ours)
        _tables.append(self)

    @cached_property
    def theirs(self) -> dict[str, Kind]:
        """Other packages' kinds; raises LanternError for a package that cannot be imported."""
        found = {}
        for point in entry_points(group=f"lantern_jax.{self.group}") if self.group else ():
            try:
                found[point.name] = point.load()
            except Exception as error:
                package = getattr(point.dist, "name", None) or point.value
                why = errors.printable(f"{type(error).__name__}: {error}", 300)
                line = f"the plug-in package {package} failed ({why}): fix or uninstall it"
                raise LanternError(line) from None
        return found

    def __getitem__(self, name: str) -> Kind:
        kind = self._ours[name] if name in self._ours else self.theirs[name]
        if isinstance(kind, str):
            kind = self._ours[name] = imported(kind)
        return kind

    def __repr__(self) -> str:
        return f"<Table of {self.what}s>"

    def __iter__(self) -> Iterator[str]:
        return iter({**self._ours, **vars(self).get("theirs", {})})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def find(self, name: str) -> Kind:
        """Returns the kind of a name; raises LanternError for an unknown one."""
        if name not in self:
            raise errors.unknown(self.what, name, self)
        return self[name]

    def named(self, fits: Callable[[Kind], bool]) -> str:
        """Returns the name of the first kind that fits; raises LanternError if none of any package does."""
        for names in (self, self.theirs):
            for name in names:
                if fits(self[name]):
                    return name
        raise LanternError(
            f"this is no {self.what} of {', '.join(self)}: a package can add yours by an entry point"
        )


def load() -> bool:
    """Reads all entry points; tells whether any package brings a kind. Raises LanternError as ``Table.theirs``."""
    return any([bool(table.theirs) for table in _tables])


def registered() -> bool:
    """Tells whether a kind of another package has been imported."""
    return any(vars(table).get("theirs") for table in _tables)
