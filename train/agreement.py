"""How well drafters agree with their target on stored features, depth by depth.

    python -m train.agreement --target DIR --features DIR [--drafter=DIR,DIR] [--depths=5] [--guidance=2]

A drafter is given as the working folder of a run of `train.drafter`; the drafters of the target's own checkpoint
directory are measured first. Prints one JSON object per drafter. At each depth below a root, along the true tokens, it
holds the mean J (`train.losses.match_chance`: how often a draft is right under one noise), the overlap sum min(p, q),
and how often both have the same best code, all over tokens that the format does not force; and `chain`, the expected
accepted length of a chain of that depth, from the products of J along it, where forced tokens are always right.
The features must be of this very target, of the layers that the drafters read, and of pictures not seen in training.

Axes: G guidance rows, B batch, S features of a sequence, P prefix, T tokens of a stream, D width, V codes.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.io.errors import LanternError
from lantern_jax.models.heads import head_logits, head_width
from train import drafter, script, target
from train.chains import check_layers, drafter_inputs, inputs_width, kind_of
from train.feature_store import FeatureStore
from train.features import stored_layers
from train.loop import read_config
from train.losses import agreement, counted_mean, match_chance

BATCH = 8


@partial(jax.jit, static_argnums=(0, 6))
def measure_batch(
    sizes: Any,
    params: PyTree,
    head: PyTree,
    features: Float[Array, "G B S F"],
    prefix: Int[Array, "G B P"],
    tokens: Int[Array, "B T"],
    depths: int,
    guidance: Float[Array, ""],
    free: Bool[np.ndarray, " T"],
) -> dict[str, Array]:
    """Returns the means at each depth and those of a chain, [depths] each; sequences are as in `FeatureStore`.

    Positions that are not `free`, whose token the format forces, count as accepted in the chain and are left out
    elsewhere.
    """
    twice = jnp.broadcast_to(tokens[None], (len(prefix), *tokens.shape))
    inputs, wanted = drafter_inputs(features, prefix, twice)
    true = head_logits(wanted[..., -head_width(head) :], head)
    scale = jnp.broadcast_to(guidance, tokens.shape[:1])
    true, rows, chances = apply_guidance(true, scale), [], []
    sampled = jnp.asarray(free[1:], jnp.float32)
    kind = kind_of(sizes)
    for predicted in kind.chain(kind.model(sizes), params, head, inputs, depths):
        guided, wanted = apply_guidance(predicted.logits, scale), true[:, predicted.where]
        counts, chance = sampled[predicted.where - inputs.first], match_chance(guided, wanted)
        rows.append({"match": counted_mean(chance, counts), **agreement(guided, wanted, counts)})
        chances.append(jnp.where(counts[None] > 0, chance, jnp.float32(1)))
    # Row i of every depth has the same root.
    along = jnp.stack([chance[:, : chances[-1].shape[1]] for chance in chances])
    accepted = jnp.mean(jnp.cumprod(along, axis=0), axis=(1, 2))
    return jax.tree.map(lambda *values: jnp.stack(values), *rows) | {"chain": 1 + jnp.cumsum(accepted)}


def measure(
    sizes: Any,
    params: PyTree,
    head: PyTree,
    store: FeatureStore,
    depths: int,
    guidance: float,
    free: Bool[np.ndarray, " T"],
) -> dict[str, list[float]]:
    """Returns the means over a store's pictures, in whole batches; parameters are as in `train.drafter.export`."""
    made = []
    for first in range(0, len(store) - BATCH + 1, BATCH):
        features, prefix, tokens = store.read(range(first, first + BATCH))
        features, prefix = (np.swapaxes(part, 0, 1) for part in (features.astype(np.float32), prefix))
        features = features[..., -inputs_width(sizes) :]
        given = features, prefix, tokens, depths, np.float32(guidance), free
        made.append(measure_batch(sizes, params, head, *given))
    means = jax.tree.map(lambda *values: np.mean(values, axis=0), *made)
    return {name: [round(float(value), 4) for value in values] for name, values in means.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    script.add_target(parser)
    add(
        "--features",
        type=arguments.folder,
        required=True,
        help="folder that train.features wrote, of pictures not trained on",
    )
    add("--drafter", type=arguments.words, default=[], help="working folders of runs of train.drafter")
    add("--depths", type=arguments.whole(), default=5, help="how many (default: 5)")
    add("--guidance", type=arguments.number(), default=2.0, help="of the distributions (default: 2)")
    options = parser.parse_args(argv)
    store, drafters = FeatureStore(options.features), {}
    for name in options.drafter:
        read_config(name)
    checkpoint = target.read_target(options.target)
    head = drafter.read_head(checkpoint)
    for kind, (config, params) in checkpoint.drafters.items():
        drafters[f"{options.target}, {kind}"] = config, params["params"]
    drafters |= {name: drafter.export(name, checkpoint) for name in options.drafter}
    if not drafters:
        raise LanternError(f"{options.target} has no drafter: give --drafter")
    if len(store) < BATCH:
        raise LanternError(f"{options.features} holds {len(store)} pictures: give at least {BATCH}")
    steps = store.shapes["tokens"][0]
    if options.depths >= steps:
        raise LanternError(f"--depths {options.depths} is too many: pictures have {steps} tokens")
    layers = stored_layers(options.features, checkpoint, options.target)
    for name, (sizes, _) in drafters.items():
        check_layers(sizes, layers, name)
    free = drafter.free_positions(checkpoint.target_config)
    for name, (sizes, params) in drafters.items():
        means = measure(sizes, params, head, store, options.depths, options.guidance, free)
        print(json.dumps({"drafter": Path(name).name, **means}), flush=True)


if __name__ == "__main__":
    run_script(main)
