"""The ways of guessing that can be chosen: frozen records, each beside its algorithm, that make a ``Drafting``."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from lantern_jax.decoding import fields
from lantern_jax.decoding.protocols import Drafting, Target
from lantern_jax.decoding.tree import DraftTree, GuessTree
from lantern_jax.io.errors import LanternError

_INSTEAD = "decode plainly (method ar), without a drafter (method jacobi), or convert one with it"


class ModelParts(NamedTuple):
    """What a drafting is made for.

    Attributes:
        target: the model.
        columns: codes in a row of its picture.
        drafter: the record of the drafter that guesses, or None.
        coupling: the coupling that it goes with.
        preview_of: as in ``Family``.
    """

    target: Target
    columns: int
    drafter: Any
    coupling: Any
    preview_of: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Guessing(ABC):
    """The base of such records, whose fields are declared with ``decoding.fields``.

    A None among them, and a value that differs by platform, is settled before ``make``.

    Attributes:
        couplings: names of the couplings that it goes with; empty for all.
        drafts: whether it needs a drafter; then a field ``drafter`` names its kind, None for the checkpoint's first.
        verifies: whether guesses are verified by a rule and a coupling.

    Example:
        >>> lantern_jax.draftings.Jacobi(nodes=8).settled("cpu", {}).tree.num_nodes
        9
    """

    couplings: ClassVar[tuple[str, ...]] = ()
    drafts: ClassVar[bool] = False
    drafter: ClassVar[str | None] = None
    verifies: ClassVar[bool] = True

    def __post_init__(self):
        fields.check_fields(self)

    def settled(self, platform: str, fitted: dict[str, Any]) -> Self:
        """Does what ``fields.settled`` does."""
        return fields.settled(self, platform, fitted)

    def with_drafter(self, there: Collection[str]) -> Self:
        """Returns the record with the kind of drafter that it takes of those that are there; raises LanternError."""
        if not self.drafts:
            return self
        kind = self.drafter or next(iter(there), None)
        if kind in there:
            return dataclasses.replace(self, drafter=kind)
        has = f"its drafters are: {', '.join(there)}" if there else "this checkpoint has no drafter"
        raise LanternError(f"{kind or 'a drafter'} is wanted to guess, and {has}: {_INSTEAD}")

    @property
    def tree(self) -> GuessTree:
        """The tree of a round, the root alone where there is none."""
        return DraftTree.empty()

    @abstractmethod
    def make(self, parts: ModelParts) -> Drafting:
        """Returns the drafting; the same arguments give the same one."""


@dataclass(frozen=True)
class Given(Guessing):
    """A drafting that was given as a record of functions."""

    drafting: Drafting

    def make(self, parts: ModelParts) -> Drafting:
        return self.drafting
