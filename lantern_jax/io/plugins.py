"""Tables of kinds by name, which other packages can add to.

A package names a function under the entry point group ``lantern_jax.plugins``; when called, it registers what the
package brings (``lantern_jax.register_family`` and the like). Entry points load on an unknown name.
"""

import importlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Generic, TypeVar

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

GROUP = "lantern_jax.plugins"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,63}")

Kind = TypeVar("Kind")
_tables: list["Table"] = []


class _At(str):
    """The place where a value stands: ``module:name``."""

    __slots__ = ()


def at(place: str) -> Any:
    """Returns what stands for the value at ``module:name`` in a kind's record; the value is imported when it is read.

    Example:
        >>> config = lantern_jax.at("lantern_jax.models.drafter:DrafterConfig")
        >>> kind = lantern_jax.DrafterKind(config, shapes=lambda config: {}, make=lantern_jax.eagle_drafter)
        >>> kind.config is lantern_jax.DrafterConfig
        True
    """
    return _At(place)


class Late:
    """A record whose fields may be given as ``at("module:name")``; reading such a field imports its value."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if type(value) is not _At:
            return value
        module, _, path = value.partition(":")
        return attrgetter(path)(importlib.import_module(module))

    def has(self, name: str) -> bool:
        """Tells whether a field is given, without importing its value."""
        return super().__getattribute__(name) is not None


class Table(Mapping[str, Kind], Generic[Kind]):
    """The kinds of one sort by name. It iterates over those known; an unknown name is looked for in other packages.

    Attributes:
        what: the sort, in messages.
        ours: the kinds of this package.
        beside: returns more of them.
        theirs: those that other packages registered.
    """

    def __init__(self, what: str, ours: Mapping[str, Kind], beside: Callable[[], Mapping[str, Kind]] = dict):
        self.what, self.ours, self.beside = what, ours, beside
        self.theirs: dict[str, Kind] = {}
        _tables.append(self)

    def _known(self) -> dict[str, Kind]:
        return {**self.beside(), **self.ours, **self.theirs}

    def __getitem__(self, name: str) -> Kind:
        known = self._known()
        if name not in known:
            broken = load()
            known = self._known()
            if name not in known and broken:
                raise LanternError(broken[0])
        return known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def find(self, name: str) -> Kind:
        """Returns the kind of a name; raises LanternError for an unknown one."""
        if name not in self:
            raise errors.unknown(self.what, name, self)
        return self[name]

    def named(self, fits: Callable[[Kind], bool]) -> str:
        """Returns the name of the first kind that fits; raises LanternError if none of any package does."""
        for look in (dict, load):
            look()
            for name, kind in self.items():
                if fits(kind):
                    return name
        raise LanternError(f"this is no {self.what} of {', '.join(self)}: register yours first")

    def add(self, name: str, kind: Kind) -> None:
        """Registers a kind; raises LanternError for a name that is taken or that a command line cannot hold."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise errors.invalid(self.what, name, "a name of small letters, digits and _.+-")
        if name in self._known():
            raise LanternError(f"there is a {self.what} {name} already: give yours another name")
        self.theirs[name] = kind


_lock = threading.RLock()
# Lines about packages that failed; None before the entry points are read.
_broken: list[str] | None = None


def load() -> list[str]:
    """Lets every package register what it brings, once; returns a line for each package that failed."""
    global _broken
    with _lock:
        if _broken is None:
            _broken = []
            from importlib.metadata import entry_points

            for point in entry_points(group=GROUP):
                try:
                    point.load()()
                except Exception as error:
                    package = getattr(point.dist, "name", None) or point.value
                    why = errors.printable(f"{type(error).__name__}: {error}", 300)
                    _broken.append(f"the plug-in package {package} failed ({why}): mend or uninstall it")
        return _broken


def registered() -> bool:
    """Tells whether other packages have registered anything."""
    return any(table.theirs for table in _tables)
