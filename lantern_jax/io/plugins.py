"""Tables of kinds by name, which other packages can add to.

A package names a function under the entry point group ``lantern_jax.plugins``; when called, it registers what the
package brings (``lantern_jax.register_family`` and the like). Entry points load lazily: on an unknown name or
a full listing.
"""

import importlib
import re
import threading
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
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
        >>> make = lantern_jax.at("lantern_jax.models.drafter:eagle_drafter")
        >>> kind = lantern_jax.DrafterKind(lantern_jax.DrafterConfig, shapes=lambda config: {}, make=make)
        >>> kind.make is lantern_jax.eagle_drafter
        True
    """
    return _At(place)


class Late:
    """A record whose fields may be given as ``at("module:name")``; reading such a field imports its value."""

    def __getattribute__(self, name: str) -> Any:
        return _imported(super().__getattribute__(name))

    def has(self, name: str) -> bool:
        """Tells whether a field is given, without importing its value."""
        return super().__getattribute__(name) is not None


def _imported(value: Any) -> Any:
    """Returns a value itself, or imports the one that ``at`` stands for."""
    if type(value) is not _At:
        return value
    module, _, path = value.partition(":")
    return attrgetter(path)(importlib.import_module(module))


def called(value: Any) -> str:
    """Names a kind in messages: its name, or the class of an object that was given in place of one."""
    return errors.short(value) if isinstance(value, str) else type(value).__name__


class Table(Mapping[str, Kind], Generic[Kind]):
    """The kinds of one sort by name. It iterates over those known; an unknown name is looked for in other packages.

    Args:
        wrap: makes a kind from an object that is given in place of a name, or returns None; may be ``at(...)``.

    Attributes:
        what: the sort, in messages.
        ours: the kinds of this package.
        theirs: those that other packages registered.
    """

    def __init__(
        self, what: str, ours: Mapping[str, Kind], beside: Callable[[], Mapping[str, Kind]] = dict,
        wrap: Any = lambda value: None,
    ):  # fmt: skip
        self.what, self.ours, self._beside, self._wrap = what, ours, beside, wrap
        self.theirs: dict[str, Kind] = {}
        _tables.append(self)

    def _known(self) -> dict[str, Kind]:
        return {**self._beside(), **self.ours, **self.theirs}

    def __getitem__(self, name: Any) -> Kind:
        if not isinstance(name, str):
            kind = None if name is None else _imported(self._wrap)(name)
            if kind is None:
                raise KeyError(name)
            return kind
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

    def items(self) -> ItemsView[str, Kind]:
        return self._known().items()

    def values(self) -> ValuesView[Kind]:
        return self._known().values()

    def find(self, name: Any) -> Kind:
        """Returns the kind of a name; raises LanternError for an unknown one."""
        if isinstance(name, type):
            raise errors.invalid(self.what, name.__name__, f"an object of that class, {name.__name__}(...)")
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
