"""Tiny models for the decoding tests: a random LlamaGen, a drafter of any quality, a Markov chain."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax import Codebook, DraftTree, Prefix, Target, nearest_codes
from lantern_jax.decoding.cache import KVCache
from lantern_jax.decoding.drafting.draft_model import drafter_from_target
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.protocols import GuidedTokens, TokenConditioning
from lantern_jax.decoding.sampling import SamplingParams, apply_guidance
from lantern_jax.decoding.stream import Decoded
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.draftings import Drafter
from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.llamagen.model import LlamaGen, LlamaGenConfig
from lantern_jax.families.registry import target_of
from lantern_jax.models.tokens import TokenModel

VOCAB = 32
BATCH = 8
# Few nodes, yet of every kind: siblings, nodes without children, three levels.
BUSHY = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
# Rows of five, the last place of each forced; the stream ends in another forced one.
CHAIN_LENGTH = 21
FORCED = tuple(11 if i % 5 == 4 or i == CHAIN_LENGTH - 1 else -1 for i in range(CHAIN_LENGTH))
CONFIG = LlamaGenConfig(16, 1, 2, vocab_size=VOCAB, grid=5, hidden_dim=32, num_labels=6)
# Rows of four end in forced tokens outside the codes.
LUMINA = ChameleonConfig(16, 1, 2, 32, vocab_size=20, num_codes=12, grid=4, layout="lumina")
# Sizes for all kinds of drafters, each of which reads some.
KIND_SIZES = {"num_heads": 2, "hidden_dim": 32, "taps": (0, 1), "heads": 2, "masks": 2, "markov_rank": 3}


@cache
def target_params(scale: float = 8.0):
    """Makes random parameters, scaled up so that the distribution is neither flat nor a point."""
    labels, tokens = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, CONFIG.num_tokens), jnp.int32)
    params = jax.jit(LlamaGen(CONFIG).init)(jax.random.key(7), labels, tokens)
    return jax.tree.map(lambda x: x * jnp.float32(scale) if x.ndim > 1 else x, params)


def conditioning(batch: int):
    return (jnp.arange(batch, dtype=jnp.int32) % 5)[:, None]


def sequence_keys(seed: int, batch: int):
    key = jax.random.key(seed)
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(batch))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


def random_codebook(count: int, channels: int, k: int, seed: int, outside: int = 0) -> Codebook:
    """Makes random codes with their ``k`` nearest; the last ``outside`` ids are not codes, nor neighbours of any."""
    codes = np.random.default_rng(seed).standard_normal((count, channels)).astype(np.float32)
    table = np.array(nearest_codes(jnp.asarray(codes[: count - outside]), k))
    table = np.concatenate([table, np.full((outside, k), -1, np.int32)])
    return Codebook(jnp.asarray(table), jnp.asarray(codes))


def drafter_config(kind: str, **settings):
    """Makes a kind's config from those settings that it has."""
    config = DRAFTERS[kind].config
    return config(**{name: settings[name] for name in settings if name in config.__dataclass_fields__})


def drafter_of_kind(kind: str, head, **shared):
    """Makes an untrained drafter of a kind for a target that determines ``shared``: (record, parameters).

    Depths beyond the heads of a Medusa or the masks of a parallel drafter get the last one's logits.
    """
    config, rng = drafter_config(kind, **KIND_SIZES | shared), np.random.default_rng(1)
    # Not even norms and biases are one or zero.
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape).astype(np.float32)),
        DRAFTERS[kind].shapes(config),
    )
    return DRAFTERS[kind].make(config, jnp.float32), {"drafter": params, "head": head}


@cache
def random_drafter(kind: str = "eagle", name: str = "llamagen"):
    """Makes an untrained drafter of a kind for a model's stream: (record, parameters)."""
    config, params = (CONFIG, target_params()) if name == "llamagen" else (LUMINA, lumina(BATCH)[1])
    return drafter_of_kind(
        kind, params["params"]["head"]["kernel"], **config.shared_with_drafter, num_codes=config.num_codes
    )


@cache
def noisy_drafter(target: Target) -> Drafter:
    """Makes a noisy copy of a target: its logits plus a fixed perturbation that depends on the last token.

    With little noise it drafts well, so every accepted length occurs; with much it is a random drafter. The amount
    is traced: see ``noisy_params``. Under ``shard_map`` each device takes its own rows of the conditioning.
    """
    table = jax.random.normal(jax.random.key(11), (target.vocab_size, target.vocab_size))

    def prefill(params, *given):
        return target.prefill(params["target"], *given)

    def score(params, cache, tokens, *given):
        logits, features, block = target.score(params["target"], cache, tokens, *given)
        return logits + params["noise"] * table[tokens], features, block

    def conditioning(params, prefix: Prefix):
        return jax.tree.map(lambda leaf: own_rows(leaf, prefix.tokens.shape[1]), params["conditioning"])

    noisy = Target(prefill, score, target.commit, target.vocab_size, target.num_tokens)
    return drafter_from_target(noisy, conditioning)


def own_rows(leaf, batch: int):
    """Returns the rows [batch, ...] of conditioning [B, ...] that this device decodes; outside shard_map, all."""
    if leaf.shape[0] == batch:
        return leaf
    return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index("data") * batch, batch, axis=0)


def noisy_params(params, conditioning, noise: float):
    """Makes the parameters of ``noisy_drafter`` from the target's."""
    return {"target": params, "conditioning": conditioning, "noise": jnp.float32(noise)}


def llamagen():
    return target_of(CONFIG)


@cache
def stream(name: str, batch: int, taps: tuple[int, ...] = ()):
    """Makes (target, its parameters, conditioning): "llamagen", "lumina", or a Markov "chain" with forced tokens."""
    if name == "llamagen":
        return target_of(CONFIG, taps=taps), target_params(), conditioning(batch)
    if name == "lumina":
        return lumina(batch, taps)
    return markov_target(VOCAB, CHAIN_LENGTH, FORCED), markov_params(VOCAB), jnp.zeros((batch, 1))


@cache
def copy_drafter(name: str = "llamagen") -> Drafter:
    """Returns the ``noisy_drafter`` of a stream's target."""
    return noisy_drafter(stream(name, BATCH)[0])


@cache
def decode(
    drafting=PLAIN, temperature=1.0, guided=True, noise=None, name="llamagen", batch=BATCH, seed=0, devices=1,
    active=None, coupling="gumbel", kind=None, **filters,
) -> Decoded:  # fmt: skip
    """Decodes a stream into NumPy arrays; ``noise`` is a ``copy_drafter``'s, ``kind`` a ``random_drafter``'s."""
    target, params, given = stream(name, batch, KIND_SIZES["taps"] if kind == "eagle3" else ())
    drafting_params = None if noise is None else noisy_params(params, given, noise)
    decoded = speculative_decode(
        target, params, given, sequence_keys(seed, batch), drafting=drafting,
        drafting_params=drafting_params if kind is None else random_drafter(kind, name)[1],
        guidance=jnp.full(batch, 2.5) if guided else None, sampling=SamplingParams.create(temperature, **filters),
        active=None if active is None else jnp.arange(batch) < active,
        mesh=None if devices == 1 else jax.make_mesh((devices,), ("data",)), coupling=coupling,
    )  # fmt: skip
    return jax.tree.map(np.asarray, decoded)


@cache
def lumina(batch: int, taps: tuple[int, ...] = ()):
    """Makes a random Chameleon of ``LUMINA``: (target, params, conditioning); every other prompt is shorter by one."""
    prompt = TokenConditioning(jnp.full((1, 4), 15, jnp.int32), jnp.ones((1, 4), bool))
    params = jax.jit(TokenModel(LUMINA).init)(jax.random.key(1), prompt)
    params = jax.tree.map(lambda x: x * jnp.float32(8.0) if x.ndim > 1 else x, params)
    tokens = jnp.broadcast_to(jnp.arange(14, 18, dtype=jnp.int32), (batch, 4)).at[:, 0].set(13)
    mask = jnp.ones((batch, 4), bool).at[::2, 0].set(False)
    unconditional = jnp.broadcast_to(jnp.arange(4)[None] > 0, mask.shape)
    return target_of(LUMINA, taps=taps), params, GuidedTokens(tokens, mask, tokens, unconditional)


@cache
def markov_target(
    vocab: int, num_tokens: int, forced: tuple[int, ...] | None = None, seed: int = 0
) -> Target:
    """Makes a first-order Markov chain over ``vocab`` tokens, whose exact distribution can be enumerated.

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


@cache
def on_chain(kind: str, target: Target):
    """Makes (a chain whose features are wide enough, an untrained drafter of a kind for it, its parameters)."""
    dim = 8
    head = jax.random.normal(jax.random.key(1), (dim, target.vocab_size))

    def prefill(params, conditioning, guidance, slots):
        cache, logits, prefix = target.prefill(params, conditioning, guidance, slots)
        return cache, logits, prefix.replace(features=jnp.tile(prefix.features, dim))

    def score(*given):
        logits, features, block = target.score(*given)
        return logits, jnp.tile(features, dim), block

    drafter = drafter_of_kind(
        kind, head, dim=dim, vocab_size=target.vocab_size, num_codes=target.vocab_size, prefix_length=1,
        rotary="line", taps=(0,),
    )  # fmt: skip
    return dataclasses.replace(target, prefill=prefill, score=score), *drafter
