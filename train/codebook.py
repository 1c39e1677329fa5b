"""The codebook of a VQ tokenizer in training: averages of the vectors that chose each code, restarts of dead codes.

The codes are not trained by gradients: each is the (normalized) running mean of the encoder outputs that chose it
(arXiv 1711.00937, appendix A.1). A code that is hardly chosen is moved onto an encoder output of the current batch
(arXiv 2005.00341, section 3).

Axis letters: V codebook size, C channels of a code, n vectors of a batch.
"""

import flax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from lantern_jax.models.vq import l2_normalize


@flax.struct.dataclass
class CodebookAverage:
    """Float32 averages per step: how often each code was chosen, count [V], and its vectors' sum, total [V, C]."""

    count: Float[Array, "V"]
    total: Float[Array, "V C"]


def start_average(codebook: Float[Array, "V C"]) -> CodebookAverage:
    """Returns averages as if each code had been chosen once per step."""
    return CodebookAverage(count=jnp.ones(codebook.shape[0], jnp.float32), total=codebook)


def update_average(
    average: CodebookAverage, vectors: Float[Array, "n C"], chosen: Int[Array, "n"], *, decay: float
) -> CodebookAverage:
    """Folds one batch in; `chosen` in [0, V) is the code of each vector."""
    codes = average.count.shape[0]
    count = jax.ops.segment_sum(jnp.ones(chosen.shape, jnp.float32), chosen, codes)
    total = jax.ops.segment_sum(vectors, chosen, codes)
    return CodebookAverage(
        count=decay * average.count + (1.0 - decay) * count,
        total=decay * average.total + (1.0 - decay) * total,
    )


def codes_of(average: CodebookAverage, *, l2_norm: bool) -> Float[Array, "V C"]:
    """Returns the codebook of the averages: unit vectors if `l2_norm`, else the means."""
    if l2_norm:
        return l2_normalize(average.total)
    return average.total / jnp.maximum(average.count, 1e-6)[:, None]


def dead_codes(average: CodebookAverage, *, threshold: float) -> Bool[Array, "V"]:
    """Tells which codes were chosen less often than `threshold` times the mean."""
    return average.count < threshold * jnp.mean(average.count)


def restart_dead(
    average: CodebookAverage, vectors: Float[Array, "n C"], key: Key[Array, ""], *, threshold: float
) -> CodebookAverage:
    """Moves each dead code onto a vector of the batch, drawn with replacement, and gives it the mean count."""
    dead = dead_codes(average, threshold=threshold)
    drawn = vectors[jax.random.randint(key, dead.shape, 0, vectors.shape[0])]
    mean = jnp.mean(average.count)
    return CodebookAverage(
        count=jnp.where(dead, mean, average.count),
        total=jnp.where(dead[:, None], mean * drawn, average.total),
    )


def usage_perplexity(count: Float[Array, "V"]) -> Float[Array, ""]:
    """Returns exp of the entropy of the codes' shares, in [1, V]."""
    share = count / jnp.maximum(jnp.sum(count), 1e-9)
    return jnp.exp(-jnp.sum(share * jnp.log(jnp.maximum(share, 1e-12))))
