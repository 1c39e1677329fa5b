"""Measure a demo checkpoint on held-out landscapes: the numbers of its model card.

    python -m train.evaluate [--checkpoint=DIR] [--pictures=128]

Prints one JSON object: the tokenizer's PSNR, the target's loss with and without labels and its sharpness, the
drafter's agreement with the target at depth 0 and below, without guidance and with it. The pictures come from
a seed that no training stage uses. The checkpoint that ships with the package is the default.

Axes: G guidance rows, B batch, N drafter positions, V codes, D width.
"""

import json
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from lantern_jax.checkpoints.store import Checkpoint, load, model_directory
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import run_script
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.families.registry import family_of
from lantern_jax.io.errors import LanternError
from lantern_jax.models.drafter import DrafterConfig, DrafterModel
from lantern_jax.models.vq import VQConfig, VQModel
from lantern_jax.pipeline.inputs import prompt_encoder
from lantern_jax.text.landscapes import LANDSCAPES
from train import script
from train.chains import drafter_inputs, drafter_passes
from train.encode import encode_pictures
from train.features import features_of
from train.losses import agreement
from train.painter.landscapes import render_batch
from train.target import validation_loss
from train.tokenizer import picture_psnr

SEED, BATCH, DEPTHS = 4, 16, 4


def mean_of(rows: list[dict[str, Array]]) -> dict[str, float]:
    """The mean of each entry over batches of the same size."""
    return {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0]}


@partial(jax.jit, static_argnums=0)
def tokenize(
    config: VQConfig, params: PyTree, pictures: Int[Array, "B H W 3"]
) -> tuple[Int[Array, "B T"], Float[Array, ""]]:
    """Tokens of uint8 pictures and the PSNR in dB of what the decoder makes of them."""
    real = pictures.astype(jnp.float32) / 127.5 - 1.0
    tokens = encode_pictures(config, params, pictures)
    return tokens, picture_psnr(real, VQModel(config).apply(params, tokens, method="decode"))


@partial(jax.jit, static_argnums=0)
def drafter_agreement(
    config: DrafterConfig,
    params: PyTree,
    head: Float[Array, "D V"],
    features: Float[Array, "G B S D"],
    prefix: Int[Array, "G B P"],
    tokens: Int[Array, "B T"],
) -> dict[str, Array]:
    """Top-1 agreement and sum of min(p, q) at each depth: of conditional rows, and under guidance 2.

    Also the target's own mean top-1 probability and entropy in nats, under the same names for both.
    """
    twice = jnp.broadcast_to(tokens[None], (2, *tokens.shape))
    inputs, wanted = drafter_inputs(features, prefix, twice)
    made = drafter_passes(DrafterModel(config), params["params"], inputs, DEPTHS)
    scales = {"guidance_1": jnp.ones(len(tokens)), "guidance_2": jnp.full(len(tokens), 2.0)}
    found = {}
    for depth, predicted in enumerate(made):
        begin = inputs.first + depth
        logits = jnp.einsum("gbnd,dv->gbnv", predicted[:, :, begin:], head)
        true = jnp.einsum("gbnd,dv->gbnv", wanted[:, :, begin:], head)
        for name, scale in scales.items():
            guided = apply_guidance(true, scale)
            values = agreement(apply_guidance(logits, scale), guided)
            found |= {f"{name}/depth_{depth}/{key}": value for key, value in values.items()}
            if depth == 0:
                log_probs = jax.nn.log_softmax(guided)
                found[f"{name}/target_top1"] = jnp.mean(jnp.exp(jnp.max(log_probs, axis=-1)))
                entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
                found[f"{name}/target_entropy"] = jnp.mean(entropy)
    return found


def evaluate(checkpoint: Checkpoint, pictures: int) -> dict[str, float]:
    """All metrics of a checkpoint of landscapes, on whole batches of held-out pictures.

    Raises ValueError where the checkpoint has no tokenizer, no drafter or another vocabulary.
    """
    parts = (checkpoint.tokenizer_config, checkpoint.drafters.get("eagle"), checkpoint.vocabulary)
    if None in parts or checkpoint.vocabulary.num_labels != LANDSCAPES.num_labels:
        raise LanternError(
            f"checkpoint {checkpoint.model}: expected a tokenizer, a drafter and the landscapes' vocabulary; "
            "give the demo's directory"
        )
    sizes, params = checkpoint.target_config, jax.tree.map(jnp.asarray, checkpoint.target_params)
    record, encoder = family_of(sizes).target(sizes, jnp.dtype(jnp.float32)), prompt_encoder(checkpoint)
    side = sizes.grid * checkpoint.tokenizer_config.downsampling
    tokens, attributes, psnr, drafted = [], [], [], []
    for first in range(0, pictures - BATCH + 1, BATCH):
        drawn, scenes = render_batch(SEED, range(first, first + BATCH), side)
        codes, quality = tokenize(checkpoint.tokenizer_config, checkpoint.tokenizer_params, drawn)
        conditioning = encoder.from_arrays(LANDSCAPES.label_ids(scenes))
        features, prefix = features_of(record)(params, conditioning, codes)
        drafted.append(
            drafter_agreement(
                *checkpoint.drafters["eagle"],
                family_of(sizes).head(params),
                features,
                prefix,
                codes,
            )
        )
        tokens.append(np.asarray(codes))
        attributes.append(scenes)
        psnr.append(float(quality))
    losses = validation_loss(sizes, params["params"], np.concatenate(tokens), np.concatenate(attributes))
    return {
        "pictures": len(psnr) * BATCH,
        "psnr_db": float(np.mean(psnr)),
        "nats_a_token": losses[0],
        "nats_a_token_without_labels": losses[1],
        **mean_of(drafted),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    script.add_checkpoint(parser)
    add("--pictures", type=arguments.whole(BATCH), default=128, help="held-out pictures (default: 128)")
    options = parser.parse_args(argv)
    metrics = evaluate(load(model_directory(options.checkpoint)), options.pictures)
    print(json.dumps({name: round(value, 4) for name, value in metrics.items()}, indent=1))


if __name__ == "__main__":
    run_script(main)
