"""Whether a target keeps what its record promises: a tree scored at once against its paths token by token.

Axes: B batch, N nodes (root included), S positions of a path, V codes.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lantern_jax.decoding import checks
from lantern_jax.decoding.protocols import Target
from lantern_jax.decoding.tree import DraftTree

_TREE = DraftTree.from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
_CHAIN = DraftTree.chain(3)


def check_target(
    target: Target,
    params: Any,
    conditioning: Any,
    *,
    guidance: float | None = None,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> float:
    """Tries a target on random tokens; returns the largest difference in its logits that was seen.

    In float32 good records differ by some 1e-6 and broken ones by 0.1 and more; in bfloat16 give a tolerance of 0.1.

    Args:
        conditioning: leaves [B, ...]; of at least two sequences, so that mixing them shows.
        guidance: a scale, for targets that have unconditional rows; None leaves those out.
        tolerance: the largest difference between logits that should be the same.
        seed: of the tokens.

    Raises:
        ValueError: one line that names the broken part and what it should do.

    Example:
        >>> def apply(params, tokens, positions, mask, past):  # what follows a code depends on it alone
        ...     return params[tokens], None, tokens
        >>> target = lantern_jax.target_from_apply(apply, num_codes=4, num_tokens=16)
        >>> table = jnp.log(jnp.array([[0.1, 0.7, 0.1, 0.1]] * 2 + [[0.1, 0.1, 0.1, 0.7]] * 2))
        >>> prompts = jnp.array([[0], [3]])
        >>> lantern_jax.check_target(target, table, prompts) < 1e-5
        True
    """
    trial = _Trial(target, params, conditioning, guidance, tolerance, seed)
    trial.check_guidance()
    trial.check_sight()
    trial.check_chain()
    trial.check_commit()
    return trial.worst


class _Trial:
    """One target with random tokens, and the largest difference so far."""

    def __init__(self, target, params, conditioning, guidance, tolerance, seed):
        self.target, self.params, self.conditioning = target, params, conditioning
        self.batch = len(jax.tree.leaves(conditioning)[0])
        if self.batch < 2:
            raise ValueError(
                f"conditioning has {self.batch} sequence: give at least two, so that mixing them shows"
            )
        if target.num_tokens < 2 * _TREE.num_nodes:
            raise ValueError(
                f"a stream of {target.num_tokens} tokens is too short to try: {2 * _TREE.num_nodes} are needed"
            )
        self.guidance = None if guidance is None else jnp.full(self.batch, guidance, jnp.float32)
        self.tolerance, self.worst = tolerance, 0.0
        self.random = np.random.default_rng(seed)
        self.cache, self.first = self._prefill(self.guidance)
        self._score = jax.jit(self._scored)
        self._commit = jax.jit(target.commit)

    def check_guidance(self) -> None:
        """A scale of 1 is the conditional row."""
        if self.guidance is None:
            return
        _, alone = self._prefill(None)
        _, one = self._prefill(jnp.ones(self.batch, jnp.float32))
        self._same(one, alone, "prefill", "with a guidance of 1 the logits are those of the conditional rows")

    def check_sight(self) -> None:
        """A node's logits depend on the nodes above it, in whatever order they come, and on no other sequence."""
        tokens = self._tokens(_TREE.depth)
        whole = self._logits(self.cache, tokens, _TREE.depth, _TREE.ancestors)
        other = np.where(_TREE.ancestors[5], tokens, self._tokens(_TREE.depth))
        again = self._logits(self.cache, other, _TREE.depth, _TREE.ancestors)
        rule = "a node sees itself and its ancestors in the block, and no other node: take the mask from `ancestors`"
        self._same(again[:, 5], whole[:, 5], "score", rule)
        order = np.r_[0, 1 + self.random.permutation(_TREE.num_nodes - 1)]
        turned = self._logits(
            self.cache, tokens[:, order], _TREE.depth[order], _TREE.ancestors[order][:, order]
        )
        rule = (
            "the order of a block's nodes means nothing: a node's position is `depth` behind the cache's end"
        )
        self._same(turned, whole[:, order], "score", rule)
        mixed = np.concatenate([tokens[:1], self._tokens(_TREE.depth)[1:]])
        rule = "sequences of a batch do not see each other"
        self._same(self._logits(self.cache, mixed, _TREE.depth, _TREE.ancestors)[0], whole[0], "score", rule)

    def check_chain(self) -> None:
        """A chain at once is its tokens one after the other."""
        tokens = self._tokens(_CHAIN.depth)
        at_once = self._logits(self.cache, tokens, _CHAIN.depth, _CHAIN.ancestors)
        rule = "a block's root stands at the cache's end, at depth 0, and sees itself"
        one_by_one = self._one_by_one(tokens)
        self._same(at_once[:, 0], one_by_one[:, 0], "score", rule)
        others = np.concatenate([self._tokens(_CHAIN.depth)[:, :1], tokens[:, 1:2]], axis=1)
        if np.array_equal(self._one_by_one(others)[:, 1], one_by_one[:, 1]):
            # So it may be: of a Markov chain, say. Then the block's nodes see nothing before them either.
            rule = "what was committed is seen by what comes after: append the block's rows"
            self._same(at_once, one_by_one, "commit", rule)
        rule = (
            "a node at depth d stands where it would with d more tokens committed: its position is length + d"
        )
        self._same(at_once, one_by_one, "score", rule)

    def check_commit(self) -> None:
        """Paths through a block, fewer rows than there are, none, and twice."""
        tokens, deepest = self._tokens(_TREE.depth), _TREE.num_nodes - 1
        path = np.repeat(_TREE.node_paths[deepest][None], self.batch, axis=0)
        root = self._tokens(np.array([path.shape[1]]))
        taken = np.concatenate([np.take_along_axis(tokens, path, axis=1), root], axis=1)
        expected = self._one_by_one(taken)
        for counts, rule in (
            (
                np.full(self.batch, path.shape[1]),
                "the rows that are appended are those of `path`, in its order",
            ),
            (
                1 + np.arange(self.batch) % path.shape[1],
                "each sequence takes its own `count` rows and no more",
            ),
            (np.arange(self.batch) % 2, "a `count` of 0 leaves a sequence as it was"),
        ):
            cache = self._committed(self.cache, tokens, _TREE, path, counts)
            # The next root is the token after the last committed one; those before the first were not committed.
            following = np.take_along_axis(taken, counts[:, None], axis=1)
            logits = self._logits(cache, following, np.zeros(1, np.int32), np.ones((1, 1), bool))[:, 0]
            wanted = np.take_along_axis(expected, counts[:, None, None], axis=1)[:, 0]
            self._same(logits, wanted, "commit", rule)
        second = self._tokens(2 + _CHAIN.depth)
        cache = self._committed(self.cache, tokens, _TREE, path, np.full(self.batch, 2))
        logits = self._logits(cache, second, _CHAIN.depth, _CHAIN.ancestors)
        wanted = self._one_by_one(np.concatenate([taken[:, :2], second], axis=1))[:, 2:]
        rule = "rows past `count` are not there: the next block takes their place"
        self._same(logits, wanted, "commit", rule)

    def _prefill(self, guidance) -> tuple[Any, Array]:
        slots = self.target.num_tokens + _TREE.num_nodes
        cache, logits, _ = checks.run_prefill(
            self.target, self.params, self.conditioning, guidance, slots, self.batch
        )
        return cache, logits

    def _tokens(self, depth: np.ndarray) -> Int[np.ndarray, "B N"]:
        """Random codes; where the format forces one, that."""
        drawn = self.random.integers(0, self.target.vocab_size, (self.batch, len(depth)))
        forced = self.target.forced[depth]
        return np.where(forced >= 0, forced, drawn).astype(np.int32)

    def _scored(self, cache, tokens, depth, ancestors):
        return checks.run_score(self.target, self.params, cache, tokens, depth, ancestors)

    def _logits(self, cache, tokens, depth, ancestors) -> Float[np.ndarray, "B N V"]:
        """Records know NumPy's depth and ancestors, and traced ones of every sequence: these are traced."""
        rows = (np.repeat(np.asarray(leaf)[None], self.batch, axis=0) for leaf in (depth, ancestors))
        return np.asarray(self._score(cache, jnp.asarray(tokens), *map(jnp.asarray, rows))[0])

    def _committed(self, cache, tokens, tree: DraftTree, path, counts: Sequence[int]) -> Any:
        rows = (np.repeat(leaf[None], self.batch, axis=0) for leaf in (tree.depth, tree.ancestors))
        block = self._score(cache, jnp.asarray(tokens), *map(jnp.asarray, rows))[2]
        return self._commit(cache, block, jnp.asarray(path, jnp.int32), jnp.asarray(counts, jnp.int32))

    def _one_by_one(self, tokens: Int[np.ndarray, "B S"]) -> Float[np.ndarray, "B S V"]:
        """Logits after each token, each committed before the next."""
        cache, made, alone = self.cache, [], DraftTree.empty()
        for place in range(tokens.shape[1]):
            token = tokens[:, place : place + 1]
            made.append(self._logits(cache, token, alone.depth, alone.ancestors))
            cache = self._committed(cache, token, alone, np.zeros((self.batch, 1)), np.ones(self.batch))
        return np.concatenate(made, axis=1)

    def _same(self, ours, theirs, part: str, rule: str) -> None:
        # Minus infinity stands where an id is not allowed.
        ours, theirs = (np.nan_to_num(np.asarray(leaf), neginf=-1e9) for leaf in (ours, theirs))
        difference = float(np.max(np.abs(ours - theirs)))
        if not difference <= self.tolerance:
            raise ValueError(f"target.{part}: {rule} (logits differ by {difference:.2g})")
        self.worst = max(self.worst, difference)
