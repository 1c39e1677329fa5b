"""Measure a demo checkpoint on held-out landscapes: the numbers of its model card.

    python -m train.evaluate [--checkpoint=DIR] [--classifier=FILE] [--pictures=128]

Prints one JSON object: the tokenizer's PSNR, the target's loss with and without labels and its sharpness, the
drafter's agreement with the target at each depth (`train.agreement`), without guidance and with the checkpoint's; and,
for painted, rebuilt and generated pictures, how often a classifier recognises what they were to show, attribute by
attribute, and how far its features are from those of painted ones. The pictures come from a seed that no training
stage uses. The defaults are what ships with the package.

Axes: G guidance rows, B batch, S features of a sequence, V codes, D width.
"""

import json
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt8

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.metrics.agreement import Classifier, read_classifier, shipped_classifier
from lantern_jax.apps.metrics.frechet import Normal, frechet_distance
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import load, model_directory
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.drafters.sequence import DrafterConfig
from lantern_jax.families.registry import family_of
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.vq import VQConfig, VQModel
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.settings import NUMBERS
from lantern_jax.text.encoded import EncodedPrompts
from train import script
from train.agreement import measure_batch
from train.classifier import CHUNK, accuracy, scaled
from train.encode import encode_pictures
from train.features import features_of
from train.painter.landscapes import render_batch
from train.painter.scenes import check_vocabulary
from train.picture_losses import picture_psnr
from train.target import validation_loss

SEED, BATCH, DEPTHS = 4, 16, 4


@partial(jax.jit, static_argnums=0)
def tokenize(
    config: VQConfig, params: PyTree, pictures: Int[Array, "B H W 3"]
) -> tuple[Int[Array, "B T"], Float[Array, ""]]:
    """Returns the tokens of uint8 pictures, and the PSNR in dB of what the decoder makes of them."""
    real = pictures.astype(jnp.float32) / 127.5 - 1.0
    tokens = encode_pictures(config, params, pictures)
    return tokens, picture_psnr(real, VQModel(config).apply(params, tokens, method="decode"))


@jax.jit
def sharpness(
    head: Float[Array, "D V"],
    features: Float[Array, "G B S D"],
    guidance: Float[Array, ""],
    temperature: Float[Array, ""],
) -> dict[str, Array]:
    """Returns the target's mean top-1 probability and entropy in nats after each token of pictures."""
    logits = apply_guidance(features @ head, jnp.broadcast_to(guidance, features.shape[1]))
    log_probs = jax.nn.log_softmax(logits / temperature)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    return {
        "target_top1": jnp.mean(jnp.exp(jnp.max(log_probs, axis=-1))),
        "target_entropy": jnp.mean(entropy),
    }


def drafter_agreement(
    sizes: DrafterConfig,
    params: PyTree,
    head: Float[Array, "D V"],
    features: Float[Array, "G B S D"],
    prefix: Int[Array, "G B P"],
    tokens: Int[Array, "B T"],
    guidance: float,
    temperature: float,
) -> dict[str, float]:
    """Returns what `train.agreement` measures and the target's sharpness, for conditional rows and under guidance.

    The temperature applies only to the sharpness under guidance.
    """
    found = {}
    for scale, divisor in ((1.0, 1.0), (guidance, temperature)):
        # Landscapes have no forced tokens.
        given = features, prefix, tokens, DEPTHS, np.float32(scale), np.ones(tokens.shape[1], bool)
        means = measure_batch(sizes, params["params"], head, *given)
        for name in ("top1", "overlap"):
            for depth, value in enumerate(means[name].tolist()):
                found[f"guidance_{scale:g}/depth_{depth}/{name}"] = value
        # A drafter's first position has seen one token.
        sharp = sharpness(head, features[:, :, prefix.shape[-1] :], np.float32(scale), np.float32(divisor))
        found |= {f"guidance_{scale:g}/{name}": float(value) for name, value in sharp.items()}
    return found


def check_parts(checkpoint: Checkpoint) -> None:
    """Raises LanternError if a checkpoint has no tokenizer, no drafter, or a vocabulary that is not of landscapes."""
    if None in (checkpoint.tokenizer_config, checkpoint.drafters.get("eagle")):
        raise LanternError(
            f"checkpoint {checkpoint.model}: expected a tokenizer and a drafter; give the demo's directory"
        )
    check_vocabulary(checkpoint.vocabulary)


def evaluate(checkpoint: Checkpoint, pictures: int) -> dict[str, float]:
    """Returns all metrics of a checkpoint of landscapes, on whole batches of held-out pictures.

    Raises LanternError as `check_parts` does.
    """
    check_parts(checkpoint)
    sizes, params = checkpoint.target_config, jax.tree.map(jnp.asarray, checkpoint.target_params)
    record = family_of(sizes).target(sizes, jnp.dtype(jnp.float32))
    side = sizes.grid * checkpoint.tokenizer_config.downsampling
    sampling = [checkpoint.defaults.get(name, NUMBERS[name].default) for name in ("guidance", "temperature")]
    vocabulary, tokens, labels, psnr, drafted = checkpoint.vocabulary, [], [], [], []
    for first in range(0, pictures - BATCH + 1, BATCH):
        drawn, scenes = render_batch(SEED, range(first, first + BATCH), side)
        codes, quality = tokenize(checkpoint.tokenizer_config, checkpoint.tokenizer_params, drawn)
        labels.append(vocabulary.label_ids(scenes))
        features, prefix = features_of(record)(params, labels[-1], codes)
        given = family_of(sizes).head(params), features, prefix, codes, *sampling
        drafted.append(drafter_agreement(*checkpoint.drafters["eagle"], *given))
        tokens.append(np.asarray(codes))
        psnr.append(float(quality))
    losses = validation_loss(sizes, params["params"], np.concatenate(tokens), np.concatenate(labels))
    return {
        "pictures": len(psnr) * BATCH,
        "psnr_db": float(np.mean(psnr)),
        "nats_a_token": losses[0],
        "nats_a_token_without_labels": losses[1],
        **{name: float(np.mean([row[name] for row in drafted])) for name in drafted[0]},
    }


def told(checkpoint: Checkpoint, classifier: Classifier, pictures: int) -> dict[str, dict[str, float]]:
    """Returns, by attribute, the share of pictures in which a classifier recognises what they were to show.

    The pictures are painted ones, what the tokenizer makes of these, and generated ones of the same attributes, in
    whole chunks. Beside the attributes is "frechet", the distance of the classifier's features to those of painted
    pictures.

    Raises:
        LanternError: no tokenizer, a vocabulary not of landscapes, or a classifier of other attributes or sizes.
    """
    vocabulary, pipeline = checkpoint.vocabulary, Pipeline(checkpoint)
    pipeline.check_draws()
    check_vocabulary(vocabulary)
    side = checkpoint.target_config.grid * checkpoint.tokenizer_config.downsampling
    if (list(classifier.attributes.items()), classifier.side) != (list(vocabulary.attributes.items()), side):
        raise LanternError(
            f"the classifier tells {errors.listed(classifier.attributes)} of {classifier.side} pixels: expected "
            f"{errors.listed(vocabulary.attributes)} of {side}; give --classifier the checkpoint's own"
        )
    drawn, scenes = render_batch(SEED, range(pictures - pictures % CHUNK), side)
    made = {"painted": drawn, "rebuilt": pipeline.draw(pipeline.encode_pictures(drawn))}
    encoded = EncodedPrompts("labels", tuple(map(str, scenes)), {"labels": vocabulary.label_ids(scenes)})
    made["generated"] = pipeline.generate(encoded, seed=SEED).pictures
    shares = {name: accuracy(classifier, part, scenes) for name, part in made.items()}
    laws = {name: Normal.of_features(read_features(classifier, part)) for name, part in made.items()}
    return {
        name: shares[name] | {"frechet": round(frechet_distance(laws[name], laws["painted"]), 4)}
        for name in made
    }


def read_features(classifier: Classifier, pictures: UInt8[np.ndarray, "n H W 3"]) -> Float[np.ndarray, "n F"]:
    """Returns a classifier's features of pictures, in whole chunks."""
    read = jax.jit(lambda part: classifier.model.apply({"params": classifier.params}, scaled(part))[0])
    chunks = range(0, len(pictures) - CHUNK + 1, CHUNK)
    return np.concatenate([np.asarray(read(pictures[first : first + CHUNK])) for first in chunks])


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    script.add_checkpoint(parser)
    add("--pictures", type=arguments.whole(CHUNK), default=128, help="held-out pictures (default: 128)")
    add("--classifier", type=arguments.file, help="file that train.classifier wrote (default: the package's)")
    options = parser.parse_args(argv)
    checkpoint = load(model_directory(options.checkpoint))
    classifier = shipped_classifier() if options.classifier is None else read_classifier(options.classifier)
    check_parts(checkpoint)
    shares = told(checkpoint, classifier, options.pictures)
    metrics = evaluate(checkpoint, options.pictures)
    print(json.dumps({name: round(value, 4) for name, value in metrics.items()} | {"told": shares}, indent=1))


if __name__ == "__main__":
    run_script(main)
