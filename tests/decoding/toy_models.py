"""Tiny models for the decoding tests: a random LlamaGen, a drafter as good as one likes, a Markov chain."""

from functools import cache

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.decoding.cache import KVCache
from lantern_jax.decoding.drafting.eagle import Drafter
from lantern_jax.decoding.protocols import Prefix, Target
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.models.chameleon import Chameleon, ChameleonConfig, TokenConditioning, chameleon_target
from lantern_jax.models.drafter import DrafterConfig, DrafterModel, eagle_drafter
from lantern_jax.models.llamagen import LlamaGen, LlamaGenConfig, llamagen_target

VOCAB = 32
CONFIG = LlamaGenConfig(16, 1, 2, vocab_size=VOCAB, grid=5, hidden_dim=32, num_labels=6)


@cache
def target_params(scale: float = 8.0):
    """Random parameters, scaled up so that the distribution is neither flat nor a point."""
    labels, tokens = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, CONFIG.num_tokens), jnp.int32)
    params = jax.jit(LlamaGen(CONFIG).init)(jax.random.key(7), labels, tokens)
    return jax.tree.map(lambda x: x * jnp.float32(scale) if x.ndim > 1 else x, params)


def conditioning(batch: int):
    return (jnp.arange(batch, dtype=jnp.int32) % 5)[:, None]


def sequence_keys(seed: int, batch: int):
    key = jax.random.key(seed)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(batch))


@cache
def random_drafter():
    """An untrained EAGLE drafter with its parameters."""
    config = DrafterConfig(16, 2, 32, vocab_size=VOCAB, grid=5, prefix_length=1)
    features, tokens = jnp.zeros((1, 1, 1, 16)), jnp.zeros((1, 1, 1), jnp.int32)
    params = jax.jit(DrafterModel(config).init)(
        jax.random.key(3), features, tokens, jnp.zeros((1, 1, 1, 4, 2)), jnp.ones((1, 1, 1, 1), bool)
    )
    head = target_params()["params"]["head"]["kernel"]
    return eagle_drafter(config), {"drafter": params, "head": head}


@flax.struct.dataclass
class NoisyState:
    """A cache of the target's, and the nodes expanded in this round, X places of which some are taken."""

    cache: object
    tokens: jax.Array
    ancestors: jax.Array
    expanded: jax.Array


@cache
def noisy_drafter(target: Target) -> Drafter:
    """A noisy copy of a target: its logits plus a fixed perturbation that depends on the last token.

    With little noise it drafts well, so every accepted length occurs; with much it is a random drafter. The amount
    is traced: see ``noisy_params``. Under ``shard_map`` each device takes its own rows of the conditioning.
    """
    table = jax.random.normal(jax.random.key(11), (target.vocab_size, target.vocab_size))

    def init(params, prefix: Prefix, slots, span, nodes):
        batch = prefix.tokens.shape[1]
        conditioning = jax.tree.map(lambda leaf: own_rows(leaf, batch), params["conditioning"])
        cache, _, _ = target.prefill(params["target"], conditioning, prefix.guidance, slots)
        places = jnp.zeros((batch, nodes), jnp.int32), jnp.zeros((batch, 1 + nodes, nodes), bool)
        return NoisyState(cache, *places, jnp.int32(0))

    def absorb(params, state, features, tokens, count):
        length = tokens.shape[1]
        causal = np.tril(np.ones((length, length), bool))
        logits, _, block = target.score(params["target"], state.cache, tokens, np.arange(length), causal)
        path = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], tokens.shape)
        last = jnp.maximum(count - 1, 0)[:, None]
        logits = logits + params["noise"] * table[tokens]
        logits = jnp.take_along_axis(logits, last[..., None], axis=1)[:, 0]
        cache = target.commit(state.cache, block, path, count)
        return state.replace(cache=cache, expanded=jnp.zeros_like(state.expanded)), logits

    def expand(params, state, tokens, parents):
        # No keys are kept: all places are scored again. Those not taken yet see nothing but themselves.
        batch, new = tokens.shape
        seen = jnp.take_along_axis(state.ancestors, parents[:, :, None], axis=1)
        itself = jnp.broadcast_to(jnp.eye(new, dtype=bool)[None], (batch, new, new))

        def write(places, values, axis, offset=0):
            return jax.lax.dynamic_update_slice_in_dim(places, values, state.expanded + offset, axis)

        ancestors = write(state.ancestors, write(seen, itself, 2), 1, 1)
        drafted = write(state.tokens, tokens, 1)
        mask = ancestors[:, 1:] | np.eye(drafted.shape[1], dtype=bool)[None]
        depth = jnp.sum(mask, axis=-1, dtype=jnp.int32) - 1
        logits, _, _ = target.score(params["target"], state.cache, drafted, depth, mask)
        logits = logits + params["noise"] * table[drafted]
        logits = jax.lax.dynamic_slice_in_dim(logits, state.expanded, new, axis=1)
        return NoisyState(state.cache, drafted, ancestors, state.expanded + new), logits

    return Drafter(init, absorb, expand)


def own_rows(leaf, batch: int):
    """The rows [batch, ...] of conditioning [B, ...] that this device decodes; all of them outside shard_map."""
    if leaf.shape[0] == batch:
        return leaf
    return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index("data") * batch, batch, axis=0)


def noisy_params(params, conditioning, noise: float):
    """Parameters of ``noisy_drafter``, from the target's."""
    return {"target": params, "conditioning": conditioning, "noise": jnp.float32(noise)}


def llamagen():
    return llamagen_target(CONFIG)


@cache
def lumina(batch: int):
    """A random Chameleon whose rows of four codes end in forced tokens outside the codes: target, params, conditioning.

    Half the prompts are shorter by a token.
    """
    config = ChameleonConfig(16, 1, 2, 32, vocab_size=20, num_codes=12, grid=4, layout="lumina")
    prompt = TokenConditioning(jnp.full((1, 4), 15, jnp.int32), jnp.ones((1, 4), bool))
    params = jax.jit(Chameleon(config).init)(jax.random.key(1), prompt)
    params = jax.tree.map(lambda x: x * jnp.float32(8.0) if x.ndim > 1 else x, params)
    tokens = jnp.broadcast_to(jnp.arange(14, 18, dtype=jnp.int32), (batch, 4)).at[:, 0].set(13)
    mask = jnp.ones((batch, 4), bool).at[: batch // 2, 0].set(False)
    return chameleon_target(config), params, TokenConditioning(tokens, mask)


@cache
def markov_target(
    vocab: int, num_tokens: int, forced: tuple[int, ...] | None = None, seed: int = 0
) -> Target:
    """A first-order Markov chain over ``vocab`` tokens: its exact distribution can be enumerated.

    Params: logits [vocab + 1, vocab], the last row for the first token. Both guidance rows are alike.
    """

    def prefill(params, conditioning, guidance, slots):
        rows, batch = 1 if guidance is None else 2, conditioning.shape[0]
        logits = jnp.broadcast_to(params[vocab], (rows, batch, vocab))
        one = jnp.zeros((rows, batch, 1, slots, 1))
        mask = jnp.zeros((rows, batch, 0), bool)
        cache = KVCache(((one, one),), mask, jnp.zeros(batch, jnp.int32), guidance)
        prefix = Prefix(
            jnp.zeros((rows, batch, 1, 1)), jnp.zeros((rows, batch, 1), jnp.int32), jnp.ones((rows, batch, 1), bool),
            jnp.zeros((rows, batch, 1), jnp.int32), guidance,
        )  # fmt: skip
        return cache, apply_guidance(logits, guidance), prefix

    def score(params, cache, tokens, depth, ancestors):
        rows = cache.prefix_mask.shape[0]
        logits = jnp.broadcast_to(params[tokens][None], (rows, *tokens.shape, vocab))
        features = jnp.broadcast_to(tokens[None, :, :, None].astype(jnp.float32), (rows, *tokens.shape, 1))
        return apply_guidance(logits, cache.guidance), features, tokens

    def commit(cache, block, path, count):
        return cache.replace(length=cache.length + count)

    return Target(prefill, score, commit, vocab, num_tokens, forced)


def markov_params(vocab: int, seed: int = 0):
    return jax.random.normal(jax.random.key(seed), (vocab + 1, vocab)) * jnp.float32(1.5)
