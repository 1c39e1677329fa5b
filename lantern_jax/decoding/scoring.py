"""Log-probabilities of known tokens, found by reading them once more.

They are the target's own, no matter what chose the tokens: what it says about the finished stream, token by token in
raster order. The programs that decode contain none of this.

Axes: B batch, M positions of a piece, T stream tokens, V codes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lantern_jax.decoding import completion, contracts
from lantern_jax.decoding.protocols import Target
from lantern_jax.decoding.sampling import SamplingParams, process_logits
from lantern_jax.io.errors import LanternError


def stream_log_probs(
    target: Target,
    params,
    conditioning,
    tokens: Int[Array, "B T"],
    *,
    guidance: Float[Array, " B"] | None = None,
    sampling: SamplingParams | None = None,
) -> Float[Array, "B T"]:
    """Returns log p of every token of a stream under the sampling distribution: after guidance, temperature, filters.

    Tokens that the format forces have 0, those that a filter removes (a relaxed rule may choose them) -inf. When
    greedy, the values are those of temperature 1, as in ``process_logits``. Traceable: jit it, or differentiate it with
    respect to ``params``.

    Args:
        target, params, conditioning, guidance, sampling: as in ``speculative_decode``.
        tokens: whole streams, forced tokens included, such as ``Decoded.tokens``.

    Raises:
        LanternError: conditioning that the target does not take, or tokens that are not its streams; ids are checked
            where they are known.

    Example:
        >>> from lantern_jax.families.llamagen.model import LlamaGen, LlamaGenConfig
        >>> from lantern_jax.families.registry import target_of
        >>> config = LlamaGenConfig(
        ...     dim=16, num_layers=1, num_heads=2, vocab_size=64, grid=4, num_labels=11
        ... )
        >>> target, labels = target_of(config), jnp.array([[3]])
        >>> tokens = jnp.zeros((1, config.num_tokens), jnp.int32)
        >>> params = jax.jit(LlamaGen(config).init)(jax.random.key(0), labels, tokens)
        >>> found = jax.jit(lambda params: lantern_jax.stream_log_probs(target, params, labels, tokens))(params)
        >>> found.shape, bool((found < 0).all())
        ((1, 16), True)
    """
    sampling = SamplingParams.create() if sampling is None else sampling
    total = target.num_tokens
    if tokens.shape[1:] != (total,):
        raise LanternError(f"tokens have shape {tokens.shape}: give whole streams [B, {total}]")
    completion.check(target, conditioning, False)
    completion.check_tokens("token", target, tokens)

    def chosen(logits: Float[Array, "B M V"], tokens: Int[Array, "B M"]) -> Float[Array, "B M"]:
        # A forced token may not be a code: its place is overwritten below.
        codes = jnp.minimum(tokens, target.vocab_size - 1)[..., None]
        return jnp.take_along_axis(process_logits(logits, sampling), codes, axis=-1)[..., 0]

    cache, logits, _ = contracts.run_prefill(target, params, conditioning, guidance, total, len(tokens))
    found = [chosen(logits[:, None], tokens[:, :1])]
    if total > 1:
        _, rest = completion.read(
            target, params, cache, tokens, lambda logits, _, following: chosen(logits, following), axis=1
        )
        found.append(rest)
    return jnp.where(target.forced < 0, jnp.concatenate(found, axis=1), jnp.float32(0))
