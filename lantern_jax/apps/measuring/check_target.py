"""Checks that a target keeps its record's promises: a tree scored in one pass against its paths token by token.

Axes: B batch, N nodes (root included), S positions of a path, V codes.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding import contracts
from lantern_jax.decoding.concrete import check_logits
from lantern_jax.decoding.protocols import Prefix, Target
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.io.errors import LanternError

_TREE = DraftTree.from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
_CHAIN = DraftTree.chain(3)
# The most tokens committed in one piece, and the most places written beyond a stream's end.
_PIECE = 64


def check_target(
    target: Target,
    params: Any,
    conditioning: Any,
    *,
    guidance: float | None = None,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> float:
    """Tries a target on random tokens; returns the largest difference between logits that should be equal.

    In float32 good records differ by about 1e-6 and broken ones by 0.1 or more; for bfloat16 give a tolerance of 0.1. A
    whole picture's tokens are committed. With a ``first_code``, prompts that end in codes are tried too.

    Args:
        conditioning: leaves [B, ...] of at least two sequences, so that mixing them shows.
        guidance: a scale, for targets with unconditional rows; None leaves those out.
        tolerance: the largest difference allowed.
        seed: for the random tokens.

    Raises:
        LanternError: one line that names the broken part and what it should do.

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
    trial.check_mixing()
    trial.check_ids()
    trial.check_guidance()
    trial.check_sight()
    trial.check_chain()
    trial.check_commit()
    trial.check_end()
    trial.check_prompts()
    return trial.worst


class _Trial:
    """One target with random tokens, and the largest difference so far."""

    def __init__(self, target, params, conditioning, guidance, tolerance, seed):
        self.target, self.params, self.conditioning = target, params, conditioning
        self.batch = contracts.check_rows(conditioning)
        if self.batch < 2:
            raise LanternError(
                f"conditioning has {self.batch} sequence: give at least two, so that mixing them shows"
            )
        contracts.check_arrays(params, "params")
        if target.num_tokens < 2 * _TREE.num_nodes:
            raise LanternError(
                f"a stream of {target.num_tokens} tokens is too short to try: {2 * _TREE.num_nodes} are needed"
            )
        self.guidance = None if guidance is None else jnp.full(self.batch, guidance, jnp.float32)
        self.tolerance, self.worst, self.piece = tolerance, 0.0, min(_PIECE, target.num_tokens // 2)
        self.random = np.random.default_rng(seed)
        if target.check is not None:
            target.check(conditioning)
        slots = target.num_tokens + self.piece
        self._begin = jax.jit(
            lambda params, *given: contracts.run_prefill(target, params, *given, slots, self.batch)
        )
        self.cache, self.begun, _ = self._prefill(conditioning, self.guidance)
        self._score = jax.jit(partial(contracts.run_score, target))
        self._commit = jax.jit(target.commit)

    def check_mixing(self) -> None:
        """Checks that the logits of the first and the last sequence stay the same when the others change."""
        rule, tokens = "sequences of a batch do not see each other", self._tokens(_TREE.depth)
        whole = self._logits(self.cache, tokens, _nodes(_TREE))
        for row in (0, self.batch - 1):
            alike = jax.tree.map(lambda leaf, row=row: leaf[np.full(self.batch, row)], self.conditioning)
            self._same(self._prefill(alike, self.guidance)[1][row], self.begun[row], "prefill", rule)
            mixed = np.where(np.arange(self.batch)[:, None] == row, tokens, self._tokens(_TREE.depth))
            self._same(self._logits(self.cache, mixed, _nodes(_TREE))[row], whole[row], "score", rule)

    def check_ids(self) -> None:
        """Checks that the model has a row for every id: JAX reads a table's last row for ids past its end."""
        last = self.target.vocab_size - 1
        alone = _nodes(DraftTree.empty())
        codes = np.array([max(last - 1, 0), last]).repeat(self.batch).reshape(2, self.batch, 1)
        rows = [self._scored(self.cache, tokens, alone) for tokens in codes]
        for logits, _, _ in rows:
            check_logits("target.score leads to logits", logits)
        if last and _alike(*rows):
            raise LanternError(
                f"target.score: codes {last - 1} and {last} are the same to the model: it has no rows for all "
                f"{last + 1} codes, or they are shifted beyond its end"
            )
        self._check_prompt_ids()

    def check_guidance(self) -> None:
        """Checks that a scale of 1 gives the conditional row."""
        if self.guidance is None:
            return
        _, alone, _ = self._prefill(self.conditioning, None)
        _, one, _ = self._prefill(self.conditioning, jnp.ones(self.batch, jnp.float32))
        self._same(one, alone, "prefill", "with a guidance of 1 the logits are the conditional rows'")

    def check_sight(self) -> None:
        """Checks that a node's logits depend only on the nodes above it, in any order, and not on other sequences."""
        tokens = self._tokens(_TREE.depth)
        whole = self._logits(self.cache, tokens, _nodes(_TREE))
        other = np.where(_TREE.ancestors[5], tokens, self._tokens(_TREE.depth))
        again = self._logits(self.cache, other, _nodes(_TREE))
        rule = (
            "a node sees itself and its ancestors in the block, and no other node: keys and values of the past come "
            "before the block's, as the mask's columns do"
        )
        self._same(again[:, 5], whole[:, 5], "score", rule)
        order = np.r_[0, 1 + self.random.permutation(_TREE.num_nodes - 1)]
        nodes = _TREE.depth[order], _TREE.ancestors[order][:, order]
        turned = self._logits(self.cache, tokens[:, order], nodes)
        rule = (
            "the order of a block's nodes means nothing: a node's position is `depth` behind the cache's end"
        )
        self._same(turned, whole[:, order], "score", rule)

    def check_chain(self) -> None:
        """Checks a chain scored in one pass against its tokens scored one after the other."""
        tokens = self._tokens(_CHAIN.depth)
        at_once = self._logits(self.cache, tokens, _nodes(_CHAIN))
        rule = "a block's root stands at the cache's end, at depth 0, and sees itself"
        one_by_one = self._one_by_one(tokens)
        self._same(at_once[:, 0], one_by_one[:, 0], "score", rule)
        others = np.concatenate([self._tokens(_CHAIN.depth)[:, :1], tokens[:, 1:2]], axis=1)
        if np.array_equal(self._one_by_one(others)[:, 1], one_by_one[:, 1]):
            # A Markov chain may ignore what was committed; then the block's nodes ignore what is before them too.
            rule = "what was committed is seen by what comes after: append the block's rows"
            self._same(at_once, one_by_one, "commit", rule)
        rule = (
            "a node at depth d stands where it would with d more tokens committed: its position is length + d"
        )
        self._same(at_once, one_by_one, "score", rule)

    def check_commit(self) -> None:
        """Checks commits of a path through a block: of all rows, of fewer, of none, and two one after the other."""
        tokens, deepest = self._tokens(_TREE.depth), _TREE.num_nodes - 1
        path = _TREE.node_paths[deepest]
        taken = np.concatenate([tokens[:, path], self._tokens(np.array([len(path)]))], axis=1)
        expected, sequence = self._one_by_one(taken), np.arange(self.batch)
        for counts, rule in (
            (0 * sequence + len(path), "the appended rows are the ones of `path`, in its order"),
            (1 + sequence % len(path), "each sequence takes its own `count` rows and no more"),
            (sequence % 2, "a `count` of 0 leaves a sequence as it was"),
        ):
            cache = self._committed(self.cache, tokens, _TREE, counts, path)
            # The next root is the token after the last committed one.
            following = np.take_along_axis(taken, counts[:, None], axis=1)
            logits = self._logits(cache, following, _nodes(DraftTree.empty()))[:, 0]
            wanted = np.take_along_axis(expected, counts[:, None, None], axis=1)[:, 0]
            self._same(logits, wanted, "commit", rule)
        second = self._tokens(2 + _CHAIN.depth)
        cache = self._committed(self.cache, tokens, _TREE, 2, path)
        logits = self._logits(cache, second, _nodes(_CHAIN))
        wanted = self._one_by_one(np.concatenate([taken[:, :2], second], axis=1))[:, 2:]
        rule = "rows past `count` are not there: the next block takes their place"
        self._same(logits, wanted, "commit", rule)

    def check_end(self) -> None:
        """Checks all slots, up to the last token and the rows written beyond it."""
        # Nothing comes after the last token.
        last = self.target.num_tokens - 2
        tokens = self._tokens(np.arange(last + 1))
        rule = "a cache holds as many tokens as prefill's `slots` say, each behind the one before"
        cache, place, alone = self.cache, 0, _nodes(DraftTree.empty())
        first = self._apart(cache)
        while place < last:
            # A table that ends in the first piece already tells most of its positions apart, and few of the last.
            end = self._apart(cache) if place + self.piece == last else first
            if first.all() > end.all() or 2 * end.sum() < first.sum():
                raise LanternError(
                    f"target.score: the last positions of {self.target.num_tokens} tokens are the same to the model: "
                    "its table of positions is too short, and JAX reads the last row past its end"
                )
            width = (last - place) % self.piece or self.piece
            block, chain = tokens[:, place : place + width + 1], DraftTree.chain(width)
            following = self._logits(cache, block, _nodes(chain))[:, -1]
            cache = self._committed(cache, block, chain, width)
            place += width
            logits = self._logits(cache, tokens[:, place : place + 1], alone)[:, 0]
            self._same(logits, following, "commit", rule)
        chain = DraftTree.chain(self.piece - 1)
        beyond = np.concatenate([tokens[:, -1:], self._tokens(last + chain.depth[1:])], axis=1)
        logits = np.asarray(self._scored(cache, beyond, _nodes(chain))[0])[:, 0]
        check_logits("target.score leads to logits", logits)
        rule = "guesses beyond the stream's end change nothing of what comes before them"
        self._same(logits, following, "score", rule)
        cache = self._committed(cache, beyond, chain, 0)
        rule = "rows past `count` lie in slots of their own, up to prefill's `slots`: the cache has fewer"
        self._same(self._logits(cache, tokens[:, -1:], alone)[:, 0], following, "commit", rule)

    def check_prompts(self) -> None:
        """Checks a prompt that ends in codes against the prompt with those codes committed."""
        if self.target.first_code is None:
            return
        codes = self._tokens(_CHAIN.depth)
        cache, _, _ = self._prefill(self.conditioning, None)
        behind = self._logits(cache, codes, _nodes(_CHAIN), "score")[:, -1]
        tokens, mask = _tokens_and_mask(self.conditioning)
        tokens = np.concatenate([tokens, (codes + self.target.first_code).astype(tokens.dtype)], axis=1)
        mask = np.concatenate([mask, np.ones(codes.shape, bool)], axis=1)
        _, inside, _ = self._prefill(_with_tokens(self.conditioning, tokens, mask), None)
        rule = (
            "codes behind a prompt are what they are at its end: their positions go on from the prompt's, and code 0 "
            f"is id {self.target.first_code}"
        )
        self._same(behind, inside, "score", rule)

    def _check_prompt_ids(self) -> None:
        if not jnp.issubdtype(_ids(self.conditioning).dtype, jnp.integer):
            return
        tokens, mask = _tokens_and_mask(self.conditioning)
        last = int(tokens[mask].max(initial=0))

        def made_of(other: int):
            prompts = _with_tokens(self.conditioning, np.where(tokens == last, other, tokens), mask)
            cache, logits, prefix = self._prefill(prompts, None)
            return cache, logits, prefix.features

        # A target may read none of its conditioning.
        if last and _alike(made_of(last), made_of(last - 1)) and not _alike(made_of(last), made_of(0)):
            raise LanternError(
                f"target.prefill: ids {last - 1} and {last} of prompts are the same to the model: it has no rows for "
                "both"
            )

    def _prefill(self, conditioning, guidance) -> tuple[Any, Array, Prefix]:
        cache, logits, prefix = self._begin(self.params, conditioning, guidance)
        check_logits("target.prefill leads to logits", logits)
        return cache, logits, prefix

    def _tokens(self, depth: np.ndarray) -> Int[np.ndarray, "B N"]:
        """Draws random codes, except where the format forces one."""
        drawn = self.random.integers(0, self.target.vocab_size, (self.batch, len(depth)))
        forced = self.target.forced[np.minimum(depth, self.target.num_tokens - 1)]
        return np.where(forced >= 0, forced, drawn).astype(np.int32)

    def _scored(self, cache, tokens, topology) -> tuple:
        """Returns logits, features and block, with depth and ancestors traced and given for every sequence."""
        rows = (np.repeat(np.asarray(leaf)[None], self.batch, axis=0) for leaf in topology)
        return self._score(self.params, cache, jnp.asarray(tokens, jnp.int32), *map(jnp.asarray, rows))

    def _logits(self, cache, tokens, topology, part: str | None = None) -> Float[np.ndarray, "B N V"]:
        """Returns logits after every node; errors blame ``part`` if they are not numbers."""
        logits = np.asarray(self._scored(cache, tokens, topology)[0])
        part = part or ("score" if cache is self.cache else "commit")
        check_logits(f"target.{part} leads to logits", logits)
        return logits

    def _apart(self, cache) -> Bool[np.ndarray, "B piece"]:
        """Tells at which of the next positions a token alone has other logits than just before, beyond rounding."""
        depth = np.arange(self.piece + 1)
        tokens = np.full((self.batch, len(depth)), min(1, self.target.vocab_size - 1))
        logits = self._logits(cache, tokens, (depth, np.eye(len(depth), dtype=bool)))
        logits = np.maximum(logits, np.float32(-1e9))
        largest = np.abs(logits).max(where=logits > -1e9, initial=0)
        return np.abs(logits[:, 1:] - logits[:, :-1]).max(axis=2) > 1e-5 * largest

    def _committed(self, cache, tokens, tree: DraftTree, count, path=None) -> Any:
        """Commits ``count`` nodes, one number or one for each sequence, of a path; None is the block in its order."""
        block = self._scored(cache, tokens, _nodes(tree))[2]
        path = np.arange(tree.num_nodes) if path is None else path
        path, count = np.broadcast_to(path, (self.batch, len(path))), np.broadcast_to(count, self.batch)
        given = cache, block, jnp.asarray(path, jnp.int32), jnp.asarray(count, jnp.int32)
        return contracts.run("target.commit", self._commit, *given)

    def _one_by_one(self, tokens: Int[np.ndarray, "B S"]) -> Float[np.ndarray, "B S V"]:
        """Returns logits after each token, each committed before the next."""
        cache, made, alone = self.cache, [], DraftTree.empty()
        for place in range(tokens.shape[1]):
            token = tokens[:, place : place + 1]
            made.append(self._logits(cache, token, _nodes(alone)))
            cache = self._committed(cache, token, alone, 1)
        return np.concatenate(made, axis=1)

    def _same(self, ours, theirs, part: str, rule: str) -> None:
        # Minus infinity stands where an id is not allowed.
        ours, theirs = (np.maximum(np.asarray(leaf), np.float32(-1e9)) for leaf in (ours, theirs))
        difference = float(np.max(np.abs(ours - theirs)))
        if not difference <= self.tolerance:
            raise LanternError(f"target.{part}: {rule} (logits differ by {difference:.2g})")
        self.worst = max(self.worst, difference)


def _nodes(tree: DraftTree) -> tuple[np.ndarray, np.ndarray]:
    """Returns a tree's arguments for ``Target.score``."""
    return tree.depth, tree.ancestors


def _alike(ours, theirs) -> bool:
    """Tells whether pytrees of arrays are equal to the last bit."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(np.array_equal(*pair) for pair in pairs)


def _ids(conditioning):
    """Returns the ids of prompts, if there are any."""
    return getattr(conditioning, "tokens", jax.tree.leaves(conditioning)[0])


def _tokens_and_mask(conditioning) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of prompts, and which of them are not padding."""
    tokens = np.asarray(_ids(conditioning))
    return tokens, np.asarray(getattr(conditioning, "mask", np.ones(tokens.shape, bool)))


def _with_tokens(conditioning, tokens, mask):
    """Replaces the prompts of a conditioning."""
    if hasattr(conditioning, "tokens"):
        return conditioning.replace(tokens=jnp.asarray(tokens), mask=jnp.asarray(mask))
    leaves, structure = jax.tree.flatten(conditioning)
    return jax.tree.unflatten(structure, [jnp.asarray(tokens), *leaves[1:]])
