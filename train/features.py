"""Extract the drafter's training set: the target's features on pictures, and on its own samples.

    python -m train.features --target DIR --tokens DIR --workdir DIR [--pictures=N] [--samples=N]

Both guidance rows of a picture are stored, conditional and unconditional (`lantern_jax.data.feature_store`).
The target's own samples are what the drafter meets at decoding time. A killed run goes on after its last shard.

Axes: G guidance rows, B batch, P prefix, T tokens of a picture, S = P + T - 1 features of a sequence, D width.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from jaxtyping import Array, Float, Int, PyTree

from lantern_jax.data.feature_store import count_shards, write_shard
from lantern_jax.data.prompts import LANDSCAPES
from lantern_jax.decoding.loop import autoregressive_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.models.llamagen import LlamaGen, LlamaGenConfig, label_conditioning, llamagen_target
from train import target
from train.loop import Reporter

SHARD = 64


@cache
def features_of(sizes: LlamaGenConfig):
    """A jitted function (params, labels int32 [B, P], tokens int32 [B, T]) -> features float32 [G, B, S, D].

    The features of every position of the sequence, the last token's excepted: nothing follows it.
    """
    model = LlamaGen(sizes)

    @jax.jit
    def features(
        params: PyTree, labels: Int[Array, "B P"], tokens: Int[Array, "B T"]
    ) -> Float[Array, "G B S D"]:
        rows = label_conditioning(labels, LANDSCAPES.null_labels(), guided=True)
        both = rows.reshape(-1, rows.shape[-1])
        twice = jnp.concatenate([tokens, tokens])
        prefix, *_ = model.apply({"params": params}, both, method="prefill")
        later, _ = model.apply({"params": params}, both, twice)
        whole = jnp.concatenate([prefix[:, :-1], later], axis=1)
        return whole.reshape(2, len(tokens), *whole.shape[1:])

    return features


def random_labels(rng: np.random.Generator, count: int, drop_one: float = 0.15) -> Int[np.ndarray, "B P"]:
    """Label ids of random prompts, attributes left out as in the target's training."""
    attributes = np.stack([rng.integers(len(v), size=count) for v in LANDSCAPES.attributes.values()], axis=1)
    return LANDSCAPES.label_ids(np.where(rng.random(attributes.shape) < drop_one, -1, attributes))


def sample_tokens(
    sizes: LlamaGenConfig,
    params: PyTree,
    labels: Int[np.ndarray, "B P"],
    keys: Array,
    guidance: float = 2.0,
    temperature: float = 1.0,
) -> Int[np.ndarray, "B T"]:
    """The target's own samples, by plain decoding; `keys` [B], one a picture."""
    decoded = autoregressive_decode(
        llamagen_target(sizes),
        {"params": params},
        label_conditioning(labels, LANDSCAPES.null_labels(), guided=True),
        keys,
        guidance=jnp.full(len(labels), guidance, jnp.float32),
        sampling=SamplingParams.create(temperature=temperature),
    )
    return np.asarray(decoded.tokens)


def chunks(
    sizes: LlamaGenConfig,
    params: PyTree,
    tokens: np.ndarray,
    attributes: np.ndarray,
    *,
    samples: int,
    seed: int,
    first: int = 0,
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(shard, labels [SHARD, P], tokens [SHARD, T]): the pictures given, then `samples` of the target's own.

    Shard i is a pure function of the arguments and i; shards before `first` are not made. Incomplete shards
    are left out.
    """
    whole = len(tokens) // SHARD
    for i in range(first, whole):
        rows = slice(i * SHARD, (i + 1) * SHARD)
        yield i, LANDSCAPES.label_ids(attributes[rows]), tokens[rows].astype(np.int32)
    for i in range(max(first, whole), whole + samples // SHARD):
        labels = random_labels(np.random.default_rng((seed, i)), SHARD)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i), SHARD)
        yield i, labels, sample_tokens(sizes, params, labels, keys)


def extract(
    target_folder: str | Path, tokens_folder: str | Path, workdir: str | Path,
    *, pictures: int, samples: int, seed: int = 0, batch_size: int = 16,
) -> None:  # fmt: skip
    """Fill `workdir` with the features of `pictures` training pictures and `samples` of the target's own."""
    sizes, params = target.export(target_folder)
    params = jax.tree.map(jnp.asarray, params)
    tokens, attributes = (rows[:pictures] for rows in target.read_tokens(tokens_folder, "train"))
    total, done = len(tokens) // SHARD + samples // SHARD, count_shards(workdir)
    reporter = Reporter(total, done)
    make = chunks(sizes, params, tokens, attributes, samples=samples, seed=seed, first=done)
    for i, labels, rows in make:
        parts = [
            np.asarray(features_of(sizes)(params, labels[j : j + batch_size], rows[j : j + batch_size]))
            for j in range(0, SHARD, batch_size)
        ]
        write_shard(workdir, i, np.swapaxes(np.concatenate(parts, axis=1), 0, 1), rows)
        reporter.show({"step": i + 1})
    reporter.close()


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    extract(
        options.target,
        options.tokens,
        options.workdir,
        pictures=options.pictures,
        samples=options.samples,
        seed=options.seed,
    )


if __name__ == "__main__":
    flags.DEFINE_string("target", None, "working folder of the target's training run")
    flags.DEFINE_string("tokens", None, "folder that train.encode wrote")
    flags.DEFINE_string("workdir", None, "where the features go")
    flags.DEFINE_integer("pictures", 1024, "training pictures", lower_bound=0)
    flags.DEFINE_integer("samples", 256, "samples of the target itself", lower_bound=0)
    flags.DEFINE_integer("seed", 0, "of the samples")
    flags.mark_flags_as_required(["target", "tokens", "workdir"])
    app.run(main)
