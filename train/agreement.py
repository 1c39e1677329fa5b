"""How well drafters agree with their target on stored features, depth by depth.

    python -m train.agreement --target DIR --features DIR [--drafter=DIR,DIR] [--depths=5] [--guidance=2]

A drafter is the working folder of a run of `train.drafter`; the one of the target's own checkpoint directory is
measured first, where it has one. Prints a JSON object a drafter: at each depth below a root, along the true tokens,
the mean J (`train.losses.match_chance`: how often a draft is right under one noise), the overlap sum min(p, q), and
how often both have the same best code; and `chain`, the expected accepted length of a chain of that depth, the
product of J along it. The features must be of pictures that training has not seen.

Axes: G guidance rows, B batch, S features of a sequence, P prefix, T tokens of a stream, D width, V codes.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from jaxtyping import Array, Float, Int, PyTree

from lantern_jax.data.feature_store import FeatureStore
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.families import family_of
from train import drafter, target
from train.chains import drafter_inputs, inputs_width, kind_of
from train.losses import agreement, match_chance

BATCH = 8


@partial(jax.jit, static_argnums=(0, 6))
def measure_batch(
    sizes: Any,
    params: PyTree,
    head: Float[Array, "D V"],
    features: Float[Array, "G B S F"],
    prefix: Int[Array, "G B P"],
    tokens: Int[Array, "B T"],
    depths: int,
    guidance: Float[Array, ""],
) -> dict[str, Array]:
    """Means at each depth, [depths] each, and those of a chain; sequences as `FeatureStore` has them."""
    twice = jnp.broadcast_to(tokens[None], (len(prefix), *tokens.shape))
    inputs, wanted = drafter_inputs(features, prefix, twice)
    true = jnp.einsum("...d,dv->...v", wanted[..., -head.shape[0] :], head)
    scale = jnp.broadcast_to(guidance, tokens.shape[:1])
    true, rows, chances = apply_guidance(true, scale), [], []
    kind = kind_of(sizes)
    for predicted in kind.chain(kind.model(sizes), params, head, inputs, depths):
        guided, wanted = apply_guidance(predicted.logits, scale), true[:, predicted.where]
        chances.append(match_chance(guided, wanted))
        rows.append({"match": jnp.mean(chances[-1]), **agreement(guided, wanted)})
    # Row i of every depth has the same root.
    along = jnp.stack([chance[:, : chances[-1].shape[1]] for chance in chances])
    accepted = jnp.mean(jnp.cumprod(along, axis=0), axis=(1, 2))
    return jax.tree.map(lambda *values: jnp.stack(values), *rows) | {"chain": 1 + jnp.cumsum(accepted)}


def measure(
    sizes: Any,
    params: PyTree,
    head: Float[np.ndarray, "D V"],
    store: FeatureStore,
    depths: int,
    guidance: float,
) -> dict[str, list[float]]:
    """The means over a store's pictures, of whole batches; parameters as `train.drafter.export` gives them."""
    made = []
    for first in range(0, len(store) - BATCH + 1, BATCH):
        features, prefix, tokens = store.read(range(first, first + BATCH))
        features, prefix = (np.swapaxes(part, 0, 1) for part in (features.astype(np.float32), prefix))
        features = features[..., -inputs_width(sizes) :]
        made.append(
            measure_batch(sizes, params, head, features, prefix, tokens, depths, np.float32(guidance))
        )
    means = jax.tree.map(lambda *values: np.mean(values, axis=0), *made)
    return {name: [round(float(value), 4) for value in values] for name, values in means.items()}


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    options = flags.FLAGS
    checkpoint = target.read_target(options.target)
    head = np.asarray(family_of(checkpoint.target_config).head(checkpoint.target_params), np.float32)
    store, drafters = FeatureStore(options.features), {}
    for kind, (config, params) in checkpoint.drafters.items():
        drafters[f"{options.target}, {kind}"] = config, params["params"]
    drafters |= {name: drafter.export(name, options.target) for name in options.drafter}
    for name, (sizes, params) in drafters.items():
        means = measure(sizes, params, head, store, options.depths, options.guidance)
        print(json.dumps({"drafter": Path(name).name, **means}), flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("target", None, "checkpoint directory, or working folder of the target's run")
    flags.DEFINE_string("features", None, "folder that train.features wrote, of pictures not trained on")
    flags.DEFINE_list("drafter", [], "working folders of runs of train.drafter")
    flags.DEFINE_integer("depths", 5, "how many", lower_bound=1)
    flags.DEFINE_float("guidance", 2.0, "of the distributions")
    flags.mark_flags_as_required(["target", "features"])
    app.run(main)
