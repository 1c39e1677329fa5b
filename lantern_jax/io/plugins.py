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


class _At(str):
    """The place of a value: ``module:name``."""

    __slots__ = ()


def at(place: str) -> Any:
    """Returns a placeholder for the value at ``module:name`` in a kind's record, which is imported when it is read.

    Example:
        >>> config = lantern_jax.at("lantern_jax.models.drafter:DrafterConfig")
        >>> kind = lantern_jax.DrafterKind(config, shapes=lambda config: {}, make=lantern_jax.eagle_drafter)
        >>> kind.config is lantern_jax.DrafterConfig
        True
    """
    return _At(place)


def imported(place: str) -> Any:
    """Imports the value at ``module:name``."""
    module, _, path = place.partition(":")
    return attrgetter(path)(importlib.import_module(module))


class Late:
    """A record whose fields may be given as ``at("module:name")``; reading such a field imports its value."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return imported(value) if type(value) is _At else value

    def has(self, name: str) -> bool:
        """Tells whether a field is given, without importing its value."""
        return super().__getattribute__(name) is not None


class Table(Mapping[str, Kind], Generic[Kind]):
    """The kinds of one sort by name. It iterates over those known; an unknown name is looked for in other packages.

    Args:
        what: the sort, in messages.
        ours: the kinds of this package.
        group: of the entry points that name other packages' kinds, below ``lantern_jax``; empty for none.
        beside: returns more of them.
    """

    def __init__(
        self, what: str, ours: Mapping[str, Kind], group: str = "", beside: Callable[[], Mapping[str, Kind]] = dict
    ):  # fmt: skip
        self.what, self.group, self._ours, self._beside = what, group, ours, beside
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

    @property
    def known(self) -> dict[str, Kind]:
        """The kinds that were imported or need no import."""
        return {**vars(self).get("theirs", {}), **self._beside(), **self._ours}

    def __getitem__(self, name: str) -> Kind:
        known = self.known
        return known[name] if name in known else self.theirs[name]

    def __repr__(self) -> str:
        return f"<Table of {self.what}s>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def find(self, name: str) -> Kind:
        """Returns the kind of a name; raises LanternError for an unknown one."""
        if name not in self:
            raise errors.unknown(self.what, name, self)
        return self[name]

    def named(self, fits: Callable[[Kind], bool]) -> str:
        """Returns the name of the first kind that fits; raises LanternError if none of any package does."""
        for kinds in (self.known, self.theirs):
            for name, kind in kinds.items():
                if fits(kind):
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
