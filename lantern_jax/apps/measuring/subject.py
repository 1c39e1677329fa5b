"""What is measured: a model with prompts, whether its weights are a checkpoint's or random, and its pictures.

Axes: n prompts or pictures, T stream tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int, PyTree

from lantern_jax.apps.measuring.random_models import pixels_a_cell, random_model
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.stream import Decoded
from lantern_jax.devices.partition import device_grid
from lantern_jax.devices.platform import parameter_dtype
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import Timing
from lantern_jax.engine.jobs import Job, Run
from lantern_jax.families.registry import family_of
from lantern_jax.io.errors import LanternError
from lantern_jax.pipeline.drawing import why_not_finite
from lantern_jax.pipeline.inputs import prompt_encoder
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.recipe import Recipe
from lantern_jax.settings.settings import Settings
from lantern_jax.text.encoded import EncodedPrompts
from lantern_jax.text.vocabulary import Vocabulary

# Prompts for models that take any text.
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
)
# Seconds of a piece of decoding; Ctrl-C is handled between pieces.
_PIECE_SECONDS = 0.5


@dataclass(frozen=True)
class Decodings:
    """What a job made of some pictures.

    Attributes:
        tokens: int32 [n, T], streams.
        rounds: int32 [n], target passes after prefill.
        substituted: float [n], the share of tokens put in place of the strict rule's.
        timing: seconds.
    """

    tokens: Int[np.ndarray, "n T"]
    rounds: Int[np.ndarray, " n"]
    substituted: Float[np.ndarray, " n"]
    timing: Timing


@dataclass(frozen=True)
class Subject:
    """A model that is measured on pictures of some prompts.

    Attributes:
        name: a checkpoint's name, or "random" and the size.
        recipe, engine: what decodes.
        conditioning: leaves [n, ...], rows on the host; picture i takes row i modulo n.
        pixels: pixels per side of a picture.
        seed: picture i draws from (seed, i).
    """

    name: str
    recipe: Recipe
    engine: Engine
    conditioning: PyTree
    pixels: int
    seed: int = 0

    @cached_property
    def free(self) -> Int[np.ndarray, " C"]:
        """Positions of the stream that are sampled; the format forces the others."""
        return np.flatnonzero(self.recipe.target().forced < 0)

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return len(jax.tree.leaves(self.conditioning)[0])

    def tokens_after_first(self, decoded: Decoded) -> int:
        """Counts the sampled tokens that are known, the first of each picture left out."""
        return int((decoded.tokens[:, self.free] >= 0).sum()) - len(decoded.tokens)

    def settings(self, options: Mapping[str, Any]) -> Settings:
        """Returns the settings of these options; LanternError for options that this model cannot be decoded with."""
        return self.recipe.settings(options)

    def job(self, settings: Settings, plain: bool = False) -> Job:
        """Returns the job that decodes a batch with these settings."""
        return self.recipe.job(settings, plain)

    def rows(self, first: int, count: int) -> PyTree:
        """Returns the conditioning of pictures: leaves [count, ...]."""
        numbers = (first + np.arange(count)) % self.prompts
        return jax.tree.map(lambda leaf: leaf[numbers], self.conditioning)

    def start(self, job: Job, first: int, count: int, most: int | None = None) -> Run:
        """Begins a batch of ``count`` pictures from number ``first`` on."""
        rows = self.rows(first, count)
        return self.engine.start(job, rows, seed=self.seed, first=first, most=most or count)

    def finish(self, run: Run) -> Decoded:
        """Returns what is known about a batch.

        Raises:
            LanternError: numbers that are not finite.
        """
        decoded = self.engine.finish(run)
        if not decoded.finite.all():
            raise LanternError(why_not_finite(self.engine, "the target's logits", "target"))
        return decoded

    def decode(self, job: Job, first: int, count: int, batch: int) -> Decodings:
        """Decodes ``count`` pictures from number ``first`` on, ``batch`` together.

        Raises:
            LanternError: numbers that are not finite.
        """
        parts, timing = [], Timing()
        for start in range(first, first + count, batch):
            run = self.start(job, start, min(batch, first + count - start), batch)
            while not run.done:
                run = self.engine.advance_for(run, _PIECE_SECONDS)
            parts.append(self.finish(run))
            timing += run.timing
        decoded = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return Decodings(decoded.tokens, decoded.rounds, decoded.substituted / len(self.free), timing)


def checkpoint_subject(
    name: str, pipeline: Pipeline, prompts: Sequence[str | int] | EncodedPrompts, seed: int = 0
) -> Subject:
    """Returns a checkpoint to be measured on these prompts; LanternError for prompts that it does not take."""
    config, tokenizer = pipeline.checkpoint.target_config, pipeline.checkpoint.tokenizer_config
    encoded = prompts if isinstance(prompts, EncodedPrompts) else pipeline.encode(prompts)
    return Subject(
        name=name,
        recipe=pipeline.recipe,
        engine=pipeline.engine,
        conditioning=prompt_encoder(pipeline.checkpoint).from_encoded(encoded),
        pixels=config.grid * (pixels_a_cell(config) if tokenizer is None else tokenizer.downsampling),
        seed=seed,
    )


def random_subject(
    size: str, dtype: Any = None, prompts: int = 64, mesh: str | Mesh | None = None, seed: int = 0
) -> Subject:
    """Returns a model of a published size with random weights and ``prompts`` prompts.

    Args:
        mesh: as ``pipeline.load`` takes it.

    Raises:
        LanternError: an unknown size, or a mesh that is not valid.
    """
    model, dtype = random_model(size), parameter_dtype(dtype)
    engine = Engine(
        partial(model.read, dtype),
        devices=device_grid(mesh),
        read_drafter=partial(model.read_drafter, dtype),
    )
    pixels = model.config.grid * pixels_a_cell(model.config)
    return Subject(f"random {size}", model.recipe(dtype), engine, model.conditioning(prompts), pixels, seed)


def sample_prompts(checkpoint: Checkpoint, count: int, seed: int = 0) -> list[str | int]:
    """Returns ``count`` prompts that a checkpoint takes: words of its vocabulary, classes, or captions by turns."""
    rng = np.random.default_rng(seed)
    if prompt_encoder(checkpoint).kind != "labels":
        return [CAPTIONS[number % len(CAPTIONS)] for number in range(count)]
    vocabulary = checkpoint.vocabulary
    if vocabulary is None:
        config = checkpoint.target_config
        classes = family_of(config).classes(config)
        return [int(number) for number in rng.permutation(np.arange(max(count, classes)) % classes)[:count]]
    return [_words_of_all(vocabulary, rng) for _ in range(count)]


def _words_of_all(vocabulary: Vocabulary, rng: np.random.Generator) -> str:
    """Draws a prompt that names every attribute that has words, each with a value that does not clash with another."""
    words, named = {meaning: word for word, meaning in vocabulary.words.items()}, []
    for attribute, values in vocabulary.attributes.items():
        possible = [
            (attribute, value)
            for value in values
            if (attribute, value) in words
            and not any(vocabulary.clashes((attribute, value), other) for other in named)
        ]
        named += [possible[rng.integers(len(possible))]] if possible else []
    return " ".join(words[pair] for pair in named)
