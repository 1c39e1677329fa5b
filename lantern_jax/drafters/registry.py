"""The kinds of drafter that a checkpoint may hold, one of each. Needs no JAX until a kind is read.

A drafter of any kind is a config, parameters ``{"params": ...}`` and the ``Drafter`` record that decoding calls; the
record's parameters are ``{"drafter": those, "head": kernel [D, V] of the target}``. A new kind is a file with these
three and a line in ``DRAFTERS``; its name also names a drafting, that of its trees.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lantern_jax.io.plugins import Table

if TYPE_CHECKING:
    from lantern_jax.decoding.drafting.eagle import Drafter
    from lantern_jax.families.config_files import Dialect


@dataclass(frozen=True, eq=False)
class DrafterKind:
    """One kind of drafter.

    Attributes:
        config: the class of its configs; subclasses do not count. Fields named in the target's
            ``shared_with_drafter``, and ``num_codes``, are the target's; ``taps``, if there are any, are the target's
            layers whose states the drafter reads (``Family.target``).
        shapes: config -> the abstract parameter tree.
        make: (config, dtype) -> the drafter record; the same arguments give the same record.
        read: published tensors -> (config, parameters), called as ``convert_drafter``; None where none are published.
        dialect: what is known of the ``config.json`` beside the tensors; None if it is not read.
        one_pass: whether one pass of it drafts all levels.
        usual: the target's config -> the config of a drafter for models that have none to read, such as published sizes
            with random weights; None if such a model gets none of this kind.

    Example:
        >>> from lantern_jax.drafters.eagle import eagle_drafter
        >>> from lantern_jax.drafters.registry import DrafterKind
        >>> from lantern_jax.drafters.sequence import DrafterConfig
        >>> kind = DrafterKind(
        ...     DrafterConfig, shapes=lambda config: {}, make=eagle_drafter
        ... )
        >>> kind.read is None, kind.one_pass
        (True, False)
    """

    config: type
    shapes: Callable[[Any], Any]
    make: Callable[[Any, Any], "Drafter"]
    read: Callable[..., tuple[Any, Any]] | None = None
    dialect: "Dialect | None" = None
    one_pass: bool = False
    usual: Callable[[Any], Any] | None = None

    def read_config(self, values: Mapping[str, Any]) -> Any:
        """Returns a JSON object's values as a config; raises TypeError or LanternError for invalid ones."""
        # JSON has no tuples, and configs are hashed.
        return self.config(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        )


DRAFTERS: Table[DrafterKind] = Table(
    "kind of drafter",
    {
        "eagle": "lantern_jax.drafters.eagle:KIND",
        "eagle3": "lantern_jax.drafters.eagle3:KIND",
        "medusa": "lantern_jax.drafters.medusa:KIND",
        "parallel": "lantern_jax.drafters.parallel:KIND",
    },
    "drafters",
)


def kind_name(config: Any) -> str:
    """Returns the name of the kind of drafter that a config belongs to."""
    return DRAFTERS.named(lambda kind: kind.config is type(config))


def usual_drafters(target: Any) -> dict[str, Any]:
    """Returns a config of every kind of drafter that a target with this config usually has, by kind."""
    return {name: kind.usual(target) for name, kind in DRAFTERS.items() if kind.usual is not None}


def misfits(config: Any, target: Any) -> list[tuple[str, Any, Any]]:
    """Lists (name, the drafter's, the target's) for settings that the target decides and that differ in the drafter."""
    shared = {"num_codes": target.num_codes, **target.shared_with_drafter}
    found = [
        (name, getattr(config, name), theirs)
        for name, theirs in shared.items()
        if getattr(config, name, theirs) != theirs
    ]
    taps = getattr(config, "taps", ())
    if any(tap >= target.num_layers for tap in taps):
        found.append(("taps", taps, f"layers 0 to {target.num_layers - 1}"))
    return found
