"""Grow draft trees from a target's and a drafter's own statistics.

    python -m train.tree --target DIR --drafter DIR --workdir DIR [--name=demo] [--sizes=4,6,8,12,16,25,57]

Pictures are decoded plainly. For every token as a root, the drafter walks along the tokens that follow, with
the noise that chose them; the *rank* of a token is how many codes the drafter would draft before it. A root's
ranks name the path on which a tree drafted there is accepted, so the expected number of accepted tokens of a
tree is the sum over its nodes of how often ranks begin with that node's path, and the best tree of a size
takes the paths that do so most often. (LANTERN++, arXiv 2502.06352, uses static trees; this is how to draw one.)

Writes WORKDIR/trees.json ({name: paths}) and WORKDIR/ranks.json (statistics).

Axes: G guidance rows, B batch, P prefix, T tokens of a picture, N = P + T - 2 drafter positions, V codes, R roots.
"""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from jaxtyping import Array, Float, Int, Key, PyTree

from lantern_jax.checkpoints.store import Checkpoint
from lantern_jax.decoding.sampling import SamplingParams, apply_guidance, gumbel_noise, process_logits
from lantern_jax.families import family_of
from lantern_jax.files import write_files
from lantern_jax.prompting import prompt_encoder
from lantern_jax.settings import Settings
from train import drafter, target
from train.chains import drafter_inputs, inputs_width, kind_of
from train.features import features_of, sample_tokens
from train.sources import random_labels

TreePath = tuple[int, ...]
MAX_DEPTH, MAX_RANK = 9, 16


@partial(jax.jit, static_argnums=(0, 7))
def chain_ranks(
    sizes: Any,
    params: PyTree,
    head: Float[Array, "D V"],
    features: Float[Array, "G B S F"],
    prefix: Int[Array, "G B P"],
    tokens: Int[Array, "B T"],
    keys: Key[Array, " B"],
    depth: int,
    guidance: Float[Array, " B"],
    sampling: SamplingParams,
) -> Int[Array, "depth B R"]:
    """Rank of the token d + 1 places after each root in the drafter's order at depth d, or -1 past the end.

    Args:
        sizes: of a drafter of any kind (`train.chains`).
        params: its module's parameters.
        features, prefix: the target's, as `train.features` stores them.
        tokens, keys: a plain decoding with these keys, guidance and sampling.
    """
    twice = jnp.broadcast_to(tokens[None], (2, *tokens.shape))
    inputs, _ = drafter_inputs(features[..., -inputs_width(sizes) :], prefix, twice)
    kind = kind_of(sizes)
    made = kind.chain(kind.model(sizes), params, head, inputs, depth)
    # Row i has seen token i, its root; at depth d it drafts token i + d + 1.
    ranks = [
        ranks_of(predicted.logits, tokens, keys, guidance, sampling, offset=d)
        for d, predicted in enumerate(made)
    ]
    roots = ranks[0].shape[1]
    return jnp.stack([jnp.pad(r, ((0, 0), (0, roots - r.shape[1])), constant_values=-1) for r in ranks])


def ranks_of(
    logits: Float[Array, "G B R V"],
    tokens: Int[Array, "B T"],
    keys: Key[Array, " B"],
    guidance: Float[Array, " B"],
    sampling: SamplingParams,
    *,
    offset: int,
) -> Int[Array, "B R"]:
    """How many codes these logits draft before the tokens offset + 1, offset + 2, ..., with their noise."""
    count = logits.shape[2]
    positions = offset + 1 + jnp.arange(count, dtype=jnp.int32)
    noise = gumbel_noise(keys, jnp.broadcast_to(positions[None], (len(tokens), count)), logits.shape[-1])
    perturbed = process_logits(apply_guidance(logits, guidance), sampling) + noise
    following = tokens[:, offset + 1 : offset + 1 + count, None]
    chosen = jnp.take_along_axis(perturbed, following, axis=-1)
    return jnp.sum(perturbed > chosen, axis=-1).astype(jnp.int32)


def collect_ranks(
    checkpoint: Checkpoint,
    drafter_sizes: Any,
    drafter_params: PyTree,
    *,
    pictures: int,
    seed: int,
    guidance: float = 2.0,
    temperature: float = 1.0,
    batch_size: int = 16,
) -> Int[np.ndarray, "R depth"]:
    """Ranks at depths 0 to 8 below every root of `pictures` plainly decoded pictures of random prompts."""
    sizes, params = checkpoint.target_config, checkpoint.target_params
    # A drafter that reads taps gets them, the final features behind them.
    taps = getattr(drafter_sizes, "taps", ())
    record = family_of(sizes).target(sizes, jnp.dtype(jnp.float32), (*taps, sizes.num_layers) if taps else ())
    encoder = prompt_encoder(checkpoint)
    settings = Settings(guidance=guidance, temperature=temperature)
    # A parallel drafter knows nothing below its masks.
    rows, depth = [], min(MAX_DEPTH, 1 + getattr(drafter_sizes, "masks", MAX_DEPTH))
    for first in range(0, pictures, batch_size):
        labels = random_labels(np.random.default_rng((seed, first)), batch_size)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), first), batch_size)
        conditioning = encoder.from_arrays(labels)
        tokens = sample_tokens(record, params, conditioning, keys, settings)
        features, prefix = features_of(record)(params, conditioning, tokens)
        scale = jnp.full(batch_size, guidance, jnp.float32)
        ranks = chain_ranks(
            drafter_sizes, drafter_params, family_of(sizes).head(params), features, prefix, tokens, keys,
            depth, scale, settings.sampling(),
        )  # fmt: skip
        ranks = np.pad(ranks, ((0, MAX_DEPTH - depth), (0, 0), (0, 0)), constant_values=-1)
        rows.append(ranks.reshape(MAX_DEPTH, -1).T)
    return np.concatenate(rows)


def path_counts(ranks: Int[np.ndarray, "R depth"], max_rank: int = MAX_RANK) -> Counter[TreePath]:
    """How many roots' ranks begin with each path; a path ends before a rank of `max_rank` or more, or -1.

    A path counts at least as much as its siblings of higher rank: where chance has it otherwise, a tree would
    skip ranks, which the rejection coupling cannot draft.
    """
    counts: Counter[TreePath] = Counter()
    for row in ranks.tolist():
        path: TreePath = ()
        for rank in row:
            if not 0 <= rank < max_rank:
                break
            path = (*path, rank)
            counts[path] += 1
    for rank in range(max_rank - 1, 0, -1):
        for path in [path for path in counts if path[-1] == rank]:
            better = (*path[:-1], rank - 1)
            counts[better] = max(counts[better], counts[path])
    return counts


def grow_tree(counts: Counter[TreePath], size: int) -> list[TreePath]:
    """The `size` most frequent paths: the tree with the most accepted tokens on these statistics.

    A path is never more frequent than its parent or a sibling of lower rank, and ties prefer these, so the
    result is a tree without gaps. Raises ValueError where fewer paths were seen.
    """
    if size > len(counts):
        raise ValueError(f"a tree of {size} nodes from {len(counts)} observed paths; decode more pictures")
    order = sorted(counts, key=lambda path: (-counts[path], len(path), path))
    return sorted(order[:size], key=lambda path: (len(path), path))


def rank_statistics(
    ranks: Int[np.ndarray, "R depth"], counts: Counter[TreePath], trees: dict[str, list[TreePath]]
) -> dict:
    """Probability of each rank at each depth, and the expected tokens a target pass of each tree."""
    depths = []
    for column in ranks.T:
        seen = column[column >= 0]
        depths.append([round(float(np.mean(seen == rank)), 4) for rank in range(MAX_RANK)])
    expected = {
        name: round(1 + sum(counts[path] for path in paths) / len(ranks), 3) for name, paths in trees.items()
    }
    return {"roots": len(ranks), "rank_probability": depths, "expected_tokens_per_pass": expected}


def grow(
    target_folder: str | Path, drafter_folder: str | Path, workdir: str | Path,
    *, name: str, sizes: list[int], pictures: int, seed: int,
) -> dict[str, list[TreePath]]:  # fmt: skip
    """Collect ranks and write the trees `name`_SIZE of all sizes and their statistics."""
    drafter_sizes, drafter_params = drafter.export(drafter_folder, target_folder)
    checkpoint = target.read_target(target_folder)
    ranks = collect_ranks(checkpoint, drafter_sizes, drafter_params, pictures=pictures, seed=seed)
    counts = path_counts(ranks)
    trees = {f"{name}_{size}": grow_tree(counts, size) for size in sizes}
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    values = {"ranks": rank_statistics(ranks, counts, trees), "trees": trees}
    write_files({workdir / f"{part}.json": json.dumps(value) + "\n" for part, value in values.items()})
    return trees


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    grow(
        options.target,
        options.drafter,
        options.workdir,
        name=options.name,
        sizes=[int(size) for size in options.sizes],
        pictures=options.pictures,
        seed=options.seed,
    )
    print((Path(options.workdir) / "ranks.json").read_text())


if __name__ == "__main__":
    flags.DEFINE_string("target", None, "working folder of the target's training run")
    flags.DEFINE_string("drafter", None, "working folder of the drafter's training run")
    flags.DEFINE_string("workdir", None, "where trees.json and ranks.json go")
    flags.DEFINE_string("name", "demo", "the trees are called NAME_SIZE")
    flags.DEFINE_list(
        "sizes", ["4", "6", "8", "12", "16", "25", "57"], "nodes of the trees, root not counted"
    )
    flags.DEFINE_integer("pictures", 64, "pictures to decode", lower_bound=1)
    flags.DEFINE_integer("seed", 1000, "of prompts and pictures")
    flags.mark_flags_as_required(["target", "drafter", "workdir"])
    app.run(main)
