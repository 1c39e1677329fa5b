"""The pictures that a tuning decodes: prompts for any checkpoint, and what decoding them took.

Axes: n pictures, T stream tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.engine.generation import Timing
from lantern_jax.engine.jobs import Job
from lantern_jax.families.registry import family_of
from lantern_jax.io.errors import LanternError
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.pipeline.prompting import prompt_encoder
from lantern_jax.settings.settings import Settings
from lantern_jax.text.encoded import EncodedPrompts

# For models that take text, when nobody says what they are used for.
CAPTIONS = (
    "a red bicycle leaning against a brick wall",
    "two children flying a kite on a windy beach",
    "a bowl of tomato soup with bread on a wooden table",
    "an old lighthouse in a storm, oil painting",
    "a grey cat asleep on a stack of books",
    "a crowded street market at night in the rain",
    "a close portrait of an elderly fisherman",
    "a snowy mountain village under a full moon",
    "a yellow taxi crossing a bridge in the fog",
    "a vase of sunflowers beside an open window",
    "a steam train leaving a station, black and white photograph",
    "a dog jumping through shallow water",
    "a plate of sushi seen from above",
    "an astronaut riding a horse in the desert",
    "a quiet library with tall green lamps",
    "a field of lavender at sunset",
    "a wooden boat on a turquoise lake",
    "a glass skyscraper reflecting clouds",
    "a chef slicing vegetables in a small kitchen",
    "an owl on a branch, watercolour",
    "a football stadium filled with people",
    "a row of colourful houses along a canal",
    "a cup of coffee and a newspaper on a balcony",
    "a dragon made of paper on a white background",
)


def sample_prompts(checkpoint: Checkpoint, count: int, seed: int = 0) -> list[str | int]:
    """At most so many prompts that a checkpoint takes: words of its vocabulary, classes, or captions."""
    rng = np.random.default_rng(seed)
    if prompt_encoder(checkpoint).kind != "labels":
        return list(CAPTIONS[:count])
    vocabulary = checkpoint.vocabulary
    if vocabulary is None:
        classes = family_of(checkpoint.target_config).classes(checkpoint.target_config)
        return [int(number) for number in rng.permutation(np.arange(max(count, classes)) % classes)[:count]]
    words = {meaning: word for word, meaning in vocabulary.words.items()}
    named = [
        [words[attribute, value] for value in values if (attribute, value) in words]
        for attribute, values in vocabulary.attributes.items()
    ]
    return [" ".join(rng.choice(values) for values in named if values) for _ in range(count)]


@dataclass(frozen=True)
class Decodings:
    """What a job made of some pictures.

    Attributes:
        tokens: int32 [n, T], streams.
        rounds: int32 [n], target passes after prefill.
        substituted: float [n], the share of tokens put in place of the strict rule's.
        distance: mean codebook distance of all of those to the strict rule's; 0 where there are none.
        timing: seconds.
    """

    tokens: Int[np.ndarray, "n T"]
    rounds: Int[np.ndarray, " n"]
    substituted: Float[np.ndarray, " n"]
    distance: float
    timing: Timing


class Samples:
    """Pictures of some prompts: number i has prompt i modulo how many there are, and draws from (seed, i).

    Args:
        pipeline: decodes them.
        prompts: what its ``encode`` returned.
    """

    def __init__(self, pipeline: Pipeline, prompts: EncodedPrompts, seed: int = 0):
        self.pipeline, self.encoded, self.seed = pipeline, prompts, seed
        self._conditioning = prompt_encoder(pipeline.checkpoint).from_encoded(prompts)
        config = pipeline.checkpoint.target_config
        self.target = pipeline.family.target(config, pipeline.dtype)
        self.free = int(np.sum(self.target.forced < 0))

    def rows(self, first: int, count: int) -> Any:
        """Conditioning of pictures: leaves [count, ...]."""
        numbers = (first + np.arange(count)) % len(self.encoded.prompts)
        return jax.tree.map(lambda leaf: leaf[numbers], self._conditioning)

    def settings(self, knobs: Mapping[str, Any]) -> Settings:
        """What a generation with these knobs decodes by."""
        return self.pipeline.check(self.encoded, **knobs)

    def decode(self, job: Job, first: int, count: int, batch: int) -> Decodings:
        """Decodes ``count`` pictures from number ``first`` on, so many at once.

        Raises:
            ValueError: numbers that are not finite.
        """
        parts: list[Decodings] = []
        for start in range(first, first + count, batch):
            size = min(batch, first + count - start)
            engine = self.pipeline.engine
            run = engine.start(job, self.rows(start, size), seed=self.seed, first=start, most=batch)
            while not run.done:
                run = engine.advance_for(run, 0.5)
            decoded = engine.finish(run)
            if not decoded.finite.all():
                raise LanternError(
                    "the target's logits are not finite: convert the checkpoint again, or give --dtype"
                )
            total = max(float(decoded.substituted.sum()), 1.0)
            parts.append(
                Decodings(
                    decoded.tokens, decoded.rounds, decoded.substituted / self.free,
                    float(decoded.distance.sum()) / total, run.timing,
                )
            )  # fmt: skip
        return _joined(parts)


def _joined(parts: Sequence[Decodings]) -> Decodings:
    weights = [float(part.substituted.sum()) for part in parts]
    distance = sum(weight * part.distance for weight, part in zip(weights, parts, strict=True))
    return Decodings(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("tokens", "rounds", "substituted")
        ),
        distance / max(sum(weights), 1e-9),
        sum((part.timing for part in parts), Timing()),
    )
