"""Drafting a tree with an EAGLE-style drafter (arXiv 2401.15077): level by level, each level in one pass.

Axes: G guidance rows, B batch, N tree nodes (root included), M nodes of a level, R pending tokens at most,
S = R - 1 + L positions, L = max depth + 1, V codes, D feature width.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, Self

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.drafting.growing import AtRoot, DynamicTree, grow_dynamic, grow_static
from lantern_jax.decoding.drafting.guessing import Guessing, ModelParts
from lantern_jax.decoding.echo import MIXTURE, Echo, Memory, mixed, nothing, remember
from lantern_jax.decoding.fields import SHARPNESS, ByPlatform, Made, Switch, field, whole
from lantern_jax.decoding.protocols import MOST_RECORDS, Drafting, Outcome, Pending
from lantern_jax.decoding.sampling import process_logits
from lantern_jax.decoding.tree import MOST_DEPTH, MOST_NODES, TREE, DraftTree, GuessTree, resolve_tree
from lantern_jax.io.errors import LanternError


@dataclass(frozen=True)
class Drafter:
    """The small model of EAGLE, which predicts the target's next feature from a token and the feature before it.

    Attributes:
        init: (params, Prefix, slots, span, nodes) -> state. ``slots`` as in ``Target``; ``span`` is S, the most
            positions that ``absorb`` takes; ``nodes`` the most that ``expand`` adds in a round.
        absorb: (params, state, features [G, B, S, D], tokens [B, S], count [B]) -> (state, logits [B, V]): takes
            in the target's features at newly committed positions, each with the token that followed, and gives the
            logits of the position after the last. Starts a new, empty set of expanded nodes.
        expand: (params, state, tokens [B, M], parents [B, M]) -> (state, logits [B, M, V]): adds nodes below
            already expanded ones (0 = the root, then in order of expansion). The state keeps its shapes.
        refine: (params, state, root [B], tokens [B, M], ``Stale``, predicted) -> (logits [B, M, V], predicted): passes
            over a chain of guesses below the expanded node ``root``, all of them together, and gives the logits after
            each; nothing is expanded. The feature before a token is the target's own where ``Stale`` has it, else what
            the previous such pass predicted; that pass's ``predicted`` is handed on (None for the first). The field is
            None for a drafter that leads no window.

    Example:
        >>> from lantern_jax.drafters.eagle import eagle_drafter
        >>> from lantern_jax.drafters.sequence import DrafterConfig
        >>> config = DrafterConfig(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, grid=4)
        >>> drafter = eagle_drafter(config)
        >>> lantern_jax.draftings.eagle(drafter, lantern_jax.DraftTree.chain(4)).max_depth
        4
    """

    init: Callable[..., Any]
    absorb: Callable[..., Any]
    expand: Callable[..., Any]
    refine: Callable[..., Any] | None = None


class Stale(NamedTuple):
    """The target's features before the tokens of a chain, each from an older, slightly wrong context.

    Attributes:
        features: [G, B, M, D]; those before the first token are not read.
        known: bool [B, M], where they are better than what the drafter predicts.
    """

    features: Float[Array, "G B M D"]
    known: Bool[Array, "B M"]


@flax.struct.dataclass
class Committed:
    """A drafter's state, and what it still has to absorb.

    Attributes:
        drafter: its state as of the last ``absorb``, without any expanded node.
        features, tokens, count: what the last round committed, as in ``Outcome``.
    """

    drafter: Any
    features: Float[Array, "G B S D"]
    tokens: Int[Array, "B S"]
    count: Int[Array, " B"]

    @classmethod
    def begin(cls, drafter: Drafter, params, prefix, slots: int, span: int, nodes: int) -> "Committed":
        """Makes the state before the first round; arguments as in ``Drafter.init``."""
        last = prefix.features[:, :, -1:]
        batch = last.shape[1]
        return cls(
            drafter=drafter.init(params, prefix, slots, span, nodes),
            features=jnp.pad(last, ((0, 0), (0, 0), (0, span - 1), (0, 0))),
            tokens=jnp.zeros((batch, span), jnp.int32),
            count=jnp.ones(batch, jnp.int32),
        )

    def after(self, outcome: Outcome) -> "Committed":
        """Returns the state with what a round committed."""
        return self.replace(features=outcome.features, tokens=outcome.tokens, count=outcome.count)


def catch_up(drafter: Drafter, params, state: Committed, pending: Pending) -> tuple[Committed, AtRoot]:
    """Absorbs what the last round committed and walks to the root: returns (committed state, ``AtRoot``)."""
    longest, span = pending.tokens.shape[1], state.tokens.shape[1]
    first = jnp.take_along_axis(pending.tokens, longest - pending.count[:, None], axis=1)
    following = jnp.roll(state.tokens, -1, axis=1)
    last = jnp.arange(span, dtype=jnp.int32)[None] == state.count[:, None] - 1
    following = jnp.where(last, first, following)
    absorbed, logits = drafter.absorb(params, state.drafter, state.features, following, state.count)
    return state.replace(drafter=absorbed), _walk_pending(drafter, params, absorbed, logits, pending)


def _walk_pending(drafter: Drafter, params, state, logits: Float[Array, "B V"], pending: Pending) -> AtRoot:
    """Expands the forced tokens after the first pending one, a chain whose features are not known yet."""
    longest = pending.tokens.shape[1]

    def step(i, carry):
        state, logits, root = carry
        where = jnp.clip(longest - pending.count + i, 0, longest - 1)
        token = jnp.take_along_axis(pending.tokens, where[:, None], axis=1)
        state, after = drafter.expand(params, state, token, root[:, None])
        there = i < pending.count
        logits = jnp.where(there[:, None], after[:, 0], logits)
        return AtRoot(state, logits, jnp.where(there, jnp.int32(i), root))

    # fori_loop's own counter would be of the default width.
    carry = AtRoot(state, logits, jnp.zeros_like(pending.count))
    return lax.fori_loop(jnp.int32(1), jnp.int32(longest), step, carry) if longest > 1 else carry


@flax.struct.dataclass
class EagleState:
    """What a tree's drafting carries from round to round.

    Attributes:
        committed: the drafter's part of the state.
        memory: ``echo.Memory`` of the last round's nodes; None without echo.
    """

    committed: Committed
    memory: Memory | None


def eagle(drafter: Drafter, tree: DraftTree | DynamicTree | str, echo: Echo | None = None) -> Drafting:
    """Makes the drafting of a static tree (EAGLE, LANTERN++) or of a dynamic one (EAGLE-2, DDD).

    Child r of a node is the code of rank r in log q as the coupling perturbs it.

    Args:
        tree: a DraftTree with at least one node below the root, the name of a shipped one, or a DynamicTree.
        echo: mixes what the target said after the last round's nodes into log q; None leaves it out.

    Raises:
        LanternError: an unknown name, or a tree of the root alone.

    Example:
        >>> from lantern_jax.drafters.eagle import eagle_drafter
        >>> from lantern_jax.drafters.sequence import DrafterConfig
        >>> config = DrafterConfig(dim=16, num_heads=2, hidden_dim=32, vocab_size=64, grid=4)
        >>> drafter = eagle_drafter(config)
        >>> lantern_jax.draftings.eagle(drafter, "mc_sim_7b_63").max_depth
        5
        >>> lantern_jax.draftings.eagle(drafter, lantern_jax.draftings.DynamicTree(nodes=25, depth=8)).max_depth
        8
    """
    tree = tree if isinstance(tree, GuessTree) else resolve_tree(tree)
    if not tree.max_depth:
        raise LanternError("the tree has no node below its root: leave the drafting out to decode plainly")
    return _drafting_of(drafter, tree, echo)


@lru_cache(MOST_RECORDS)
def _drafting_of(drafter: Drafter, tree: DraftTree | DynamicTree, echo: Echo | None) -> Drafting:
    grow = grow_static if tree.is_static else grow_dynamic

    def init(params, prefix, slots, span) -> EagleState:
        chain = span - 1 - tree.max_depth
        committed = Committed.begin(drafter, params, prefix, slots, span, chain + sum(tree.expanded))
        if echo is None:
            return EagleState(committed, None)
        given = committed.drafter, committed.features, committed.tokens, committed.count
        _, logits = jax.eval_shape(drafter.absorb, params, *given)
        return EagleState(committed, nothing(*logits.shape[:1], tree.num_nodes, logits.shape[-1]))

    def propose(params, state: EagleState, pending: Pending, draws, sampling):
        committed, start = catch_up(drafter, params, state.committed, pending)

        def log_q_below(logits, history, depth):
            log_q = process_logits(logits, sampling)
            if echo is None:
                return log_q
            positions = jnp.broadcast_to((pending.position + depth)[:, None], history.shape[:2])
            return mixed(echo, state.memory, log_q, history, positions)

        draft = grow(tree, partial(drafter.expand, params), log_q_below, start, pending, draws)
        return draft, state.replace(committed=committed)

    def observe(params, state: EagleState, outcome: Outcome) -> EagleState:
        return EagleState(state.committed.after(outcome), None if echo is None else remember(outcome))

    return Drafting(init, propose, observe, tree.max_depth)


@dataclass(frozen=True)
class _Drafted(Guessing):
    """A tree that a drafter fills.

    Attributes:
        drafter: the kind of the checkpoint's drafter; None for its first.
        echo: whether what the target said of refused nodes is mixed into the draft (ours).
        mixture: a and b of echo for old nodes that agree in position, token, parent, grandparent too; fitted.
    """

    drafter: str | None = field(None, Made("the kind of a drafter", str))
    echo: bool = field(False, Switch())
    mixture: Echo | None = field(None, MIXTURE, fitted=True, otherwise=Echo())
    drafts: ClassVar[bool] = True

    def settled(self, platform: str, fitted: dict[str, Any]) -> Self:
        made = super().settled(platform, fitted)
        return made if self.echo else dataclasses.replace(made, mixture=None)

    def make(self, parts: ModelParts) -> Drafting:
        return eagle(parts.drafter, self.tree, self.mixture)


# Small trees win where a round is bound by arithmetic, large ones where it is bound by reading the weights. On two
# cores at LlamaGen-XL size a round takes as long as 1.7 plain steps with the chain, and 3.2 with mc_sim_7b_63.
_USUAL = ByPlatform("chain", "naive_extend_57", "mc_sim_7b_63")


@dataclass(frozen=True)
class Tree(_Drafted):
    """Fills a static tree with a drafter's best guesses (EAGLE, arXiv 2401.15077; LANTERN++, arXiv 2502.06352).

    Attributes:
        tree: a name, paths such as 0.0+1, or a JSON file of paths; fitted, else a small tree on CPUs, a large one
            elsewhere.

    Example:
        >>> lantern_jax.draftings.Tree(tree="0.0+1").tree.paths
        ((0,), (1,), (0, 0))
    """

    tree: Any = field(None, TREE, fitted=True, otherwise=_USUAL)


@dataclass(frozen=True)
class Dynamic(DynamicTree, _Drafted):
    """Grows a tree in each round by what its nodes are worth (EAGLE-2, arXiv 2406.16858; DDD, arXiv 2409.00142).

    Attributes:
        sharpness: beta of the gap: a node is worth softmax(beta (log q + g)) over the codes; fitted, else 2.

    Example:
        >>> lantern_jax.draftings.Dynamic(nodes=25).settled("cpu", {}).tree.drafts
        710
    """

    nodes: int | ByPlatform = whole(ByPlatform(16, 58, 26), 1, MOST_NODES)
    depth: int = whole(8, 1, MOST_DEPTH)
    sharpness: float | None = field(None, SHARPNESS, fitted=True, otherwise=2.0)

    @property
    def tree(self) -> DynamicTree:
        """The sizes of the tree."""
        names = (one.name for one in dataclasses.fields(DynamicTree))
        return DynamicTree(**{name: getattr(self, name) for name in names})
