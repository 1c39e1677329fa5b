"""From prompts to pictures: ``load(...)`` gives a Pipeline, ``Pipeline.generate`` decodes and draws.

Axes: n pictures of a call, T codes of a picture, P prefix length, C label slots, F caption feature width, H W pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int, UInt8

from lantern_jax.checkpoints import store
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.completion import Completion
from lantern_jax.decoding.fields import MOST_PICTURES, check_count, check_numbers
from lantern_jax.decoding.methods import AUTO
from lantern_jax.devices.platform import parameter_dtype
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import Generation, Picture, Progress
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.parameters import read_drafter, read_parameters
from lantern_jax.families.registry import family_of
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import shape_of
from lantern_jax.models.vq import VQModel
from lantern_jax.pipeline import inputs
from lantern_jax.pipeline.call import Call, CallOptions
from lantern_jax.pipeline.drawing import draw_codes
from lantern_jax.pipeline.notebook import keep_programs_in_notebooks
from lantern_jax.pipeline.plan import Plan
from lantern_jax.settings.recipe import Recipe
from lantern_jax.settings.settings import Options, Settings, steers
from lantern_jax.settings.tuned import OFF, Found, Key, find, read_files
from lantern_jax.text.encoded import EncodedPrompts

# What to draw, one or several: words, class numbers or names; or what ``Pipeline.encode`` returned.
Prompts = str | int | Sequence[str | int] | EncodedPrompts


def load(
    model: str | Path = "demo", dtype: Any = None, tuned: str | Path | None = AUTO,
    mesh: str | Mesh | None = None, strict_words: bool = False, size: str | None = None,
) -> "Pipeline":  # fmt: skip
    """Opens a checkpoint: "demo" (the model that ships with the package), a directory, or a repository on the hub.

    Its contents are checked; parameters are read when they are first needed, straight onto the devices. Compiled
    programs are kept for later processes in notebooks, and after ``lantern_jax.keep_compiled_programs()``.

    Args:
        model: "demo"; a directory that ``lantern convert`` wrote; or, if none has that name, a repository on the
            Hugging Face hub: "owner/name" or "owner/name@revision".
        dtype: of the target's and drafter's parameters and products; None: float32 on CPUs and old GPUs, else bfloat16.
        tuned: a file from ``lantern tune``; "auto" takes one for such a call from the checkpoint's folder, else what
            should be fastest on this platform, unless the call says how to decode; "off" neither.
        mesh: how devices share the work: "data=2,model=4" spreads pictures over two groups of four devices and
            splits the model over each four; an axis left out has one. Or a mesh with axes of those names. None for
            all devices of this process, each with a whole model.
        strict_words: whether a word that the demo does not know is an error; else it is ignored with a warning.
        size: of the pictures, "832x624" pixels, if the model draws others than its own; None for its own.

    Raises:
        LanternError: the model is missing, incomplete, damaged or not a checkpoint, or cannot be fetched
            (``MissingExtra`` without the extra ``hub``); an invalid mesh; a platform that JAX is asked for but lacks.
    """
    keep_programs_in_notebooks()
    checkpoint = store.opened(model, size)
    return Pipeline(checkpoint, dtype, tuned, mesh, strict_words)


class Pipeline:
    """A checkpoint ready to generate. Compiled programs are kept, so a second call of the same kind is quick.

    Args:
        checkpoint: the models and their parameters; abstract ones are read from the checkpoint's directory.
        dtype, tuned, strict_words: as in ``load``.
        devices: as in ``Engine``, or a mesh as in ``load``.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: Any = None, tuned: str | Path | None = OFF, devices: Any = None,
        strict_words: bool = False,
    ):  # fmt: skip
        self.checkpoint, self.platform = checkpoint, jax.default_backend()
        self.dtype = dtype = parameter_dtype(dtype)
        self.family = family_of(checkpoint.target_config)
        self.recipe = Recipe.of(checkpoint, dtype)
        self._encoder = inputs.prompt_encoder(checkpoint, strict_words)
        grid = shape_of(checkpoint.target_config)
        self.engine = Engine(
            partial(read_parameters, checkpoint, dtype),
            VQModel(checkpoint.tokenizer_config, grid) if self.draws else None,
            devices,
            read_drafter=partial(read_drafter, checkpoint, dtype),
        )
        self._chooses, self._tuned = tuned == AUTO, read_files(tuned, checkpoint.directory)

    def __repr__(self) -> str:
        drafters = ", ".join(self.recipe.drafters) or "none"
        return f"<Pipeline: {self.checkpoint.model}, {self.dtype} on {self.platform}; drafters: {drafters}>"

    @property
    def draws(self) -> bool:
        """Whether the checkpoint has a VQ tokenizer; without one a generation has tokens but no pictures."""
        return self.checkpoint.tokenizer_params is not None

    def check_draws(self) -> None:
        """Raises LanternError where the checkpoint has no VQ tokenizer."""
        if not self.draws:
            advice = "write its codes, --out FILE.npz" if self.family.product else "convert it again with one"
            raise LanternError(f"{self.checkpoint.model} has no VQ tokenizer: {advice}")

    def generate(
        self, prompts: Prompts, *, num: int = 1, seed: int = 0, first: int = 0,
        negative_prompt: str | Sequence[str] | None = None,
        start: inputs.Start | Sequence[inputs.Start] | None = None, keep_rows: int | None = None, compare: bool = False,
        log_probs: bool = False, progress: Callable[[Progress], None] | None = None, **options: Unpack[Options],
    ) -> Generation:  # fmt: skip
        """Makes ``num`` pictures for every prompt. A call that does not say how to decode takes a tuned method (see
        ``load``) if there is one for such a call, else what should be fastest; other options left out take the
        checkpoint's default, else that of ``Settings``.

        Picture number i of the call draws its randomness from ``seed`` and ``first`` + i alone: the batch size, the
        number of devices and the strict rule's tree do not change its tokens. That is exact in float32
        (``load(..., dtype="float32")``). In bfloat16, the default on GPUs and TPUs, a pass over many nodes rounds
        differently from a pass over one, so a token whose score is nearly the best can change, and those after it too.

        Args:
            prompts: what to draw, in words; class numbers or ImageNet names for class-conditional models; or what
                ``encode`` returned.
            num: pictures per prompt.
            seed: 0 to 2**32 - 1.
            first: number of the first picture: a set made in several calls is the same as one made in one.
            negative_prompt: what guidance leads away from, in words, for all prompts or one per prompt; None for what
                the model was trained with.
            start: pictures to complete, or their codes, one per prompt or one for all: PIL images or uint8 [H, W, 3],
                whose middle squares are taken, or ints [T]. The first rows stay and the rest is decoded; completed
                with its own seed, a picture comes out the same.
            keep_rows: rows of codes of ``start`` that stay, 1 to all but one; None for half of them.
            compare: also decode plainly with the same seed, into ``Generation.plain``.
            log_probs: also read the tokens once more, for ``Generation.log_probs``.
            progress: called several times per second; with ``compare``, for both as one. None: a bar in notebooks.
            options: see ``Options``; None for the default.

        Raises:
            LanternError: an invalid argument, before any computation; a model whose numbers are not finite.
            Interrupted: after Ctrl-C, within a fraction of a second; it holds the pictures that are done,
                without plain decoding's even with ``compare``.

        Example:
            >>> generation = lantern_jax.load("demo").generate("a foggy forest", num=2, seed=7)
            >>> len(generation.images), generation.statistics.substituted
            (2, 0.0)
        """
        call = {"num": num, "seed": seed, "first": first, "start": start, "keep_rows": keep_rows, **options}
        return self.plan(prompts, negative_prompt=negative_prompt, **call).run(progress, compare, log_probs)

    def plan(
        self, prompts: Prompts, *,
        negative_prompt: str | Sequence[str] | None = None, **call: Unpack[CallOptions],
    ) -> Plan:  # fmt: skip
        """Resolves and checks the arguments of ``generate``, computing nothing; ``Plan.run`` makes the pictures."""
        if isinstance(prompts, EncodedPrompts):
            if negative_prompt is not None:
                raise LanternError(
                    "encoded prompts hold their negative prompts: encode them with negative_prompt"
                )
            rows = self._encoder.from_encoded(prompts)
            return self._plan(prompts.prompts, lambda: rows, **call)
        prompts, against = inputs.listed(prompts, negative_prompt, self._encoder)
        encode, ignored = self._encoder.prepare(prompts, self.dtype, against)
        return self._plan(tuple(map(str, prompts)), encode, MOST_PICTURES, against, ignored, **call)

    def encode(
        self, prompts: str | int | Sequence[str | int], negative_prompt: str | Sequence[str] | None = None
    ) -> EncodedPrompts:
        """Encodes prompts as the target takes them, for ``generate`` or ``text.encoded.save_encoded``; raises as
        ``generate``. A text encoder is read for the call and dropped, or kept inside ``text_encoder_kept``."""
        prompts, against = inputs.listed(prompts, negative_prompt, self._encoder)
        encode, _ = self._encoder.prepare(prompts, self.dtype, against)
        return self._encoder.to_encoded(prompts, encode())

    def text_encoder_kept(self) -> AbstractContextManager[None]:
        """Keeps a text encoder, once read, in memory inside this context."""
        return self._encoder.kept()

    def prepare(self, conditioning: EncodedPrompts, **call: Unpack[CallOptions]) -> tuple[Plan, Job]:
        """Returns what ``generate`` would run, for a loop of your own that may make more pictures than one call
        or change the job with ``dataclasses.replace``; raises what that would raise."""
        rows = self._encoder.from_encoded(conditioning)
        plan = self._plan(conditioning.prompts, lambda: rows, 2**32, **call)
        return plan, plan.job

    def iterate(self, prompts: Prompts, **call: Unpack[CallOptions]) -> Iterator[Picture]:
        """Generates one picture at a time: each is drawn as soon as its tokens are known; raises as ``generate`` when
        the first picture is asked for."""
        yield from self.plan(prompts, **call).pictures()

    def check(self, prompts: Prompts, **call: Unpack[CallOptions]) -> Settings:
        """Returns the settings that ``generate`` would use; raises what it would raise, and computes nothing."""
        return self.plan(prompts, **call).call.settings

    def tuning(self, pictures: int, /, **options: Unpack[Options]) -> Found:
        """Returns what a call of ``pictures`` pictures takes from tuned settings, else from ``auto``, and a note on it;
        raises LanternError for options that do not fit."""
        return self._settled(check_count("pictures", pictures), options)[1]

    def settings(self, options: Options) -> Settings:
        """Returns the settings of these options with this checkpoint; raises LanternError if they do not fit."""
        return self.recipe.settings(options, self.platform)

    def _settled(self, pictures: int, options: Options) -> tuple[Settings, Found]:
        """Returns the settings of a call, and where their method is from."""
        settings = self.settings(options)
        if steers(options):
            return settings, Found()
        found = find(
            *self._tuned, lambda: Key.of(self.checkpoint, settings, self.dtype, pictures, self.engine.devices)
        )
        if not found.file and self._chooses and settings.keeps_tokens:
            best, rows = self.recipe.choice(settings, pictures, self.platform, len(self.engine.devices))
            note = "; ".join(filter(None, [best.words, found.note]))
            found = Found({"method": best.method}, note, rows=rows)
        if found.options:
            settings = self.settings({**options, **found.options})
        return settings, found

    def job(self, settings: Settings, plain: bool = False) -> Job:
        """Returns how a batch is decoded with these settings; ``plain``: without drafts, from the same distribution."""
        return self.recipe.job(settings, plain)

    def encode_pictures(self, images: inputs.Start | Sequence[inputs.Start]) -> Int[np.ndarray, "n T"]:
        """Returns the codes int32 [n, T] of PIL images or uint8 [n, H, W, 3], whose middle squares are taken; raises
        LanternError for no pictures, or a checkpoint without a VQ tokenizer."""
        return self.engine.encode(inputs.pictures_of(self.checkpoint, images))

    def draw(self, tokens: Int[np.ndarray, "n T"]) -> UInt8[np.ndarray, "n H W 3"]:
        """Returns pictures of codes; raises LanternError for none, another model's, or without a sound VQ tokenizer."""
        self.check_draws()
        return draw_codes(self.engine, np.atleast_2d(inputs.checked_codes(self.checkpoint, tokens)))[0]

    def _plan(
        self, prompts, encode, most=MOST_PICTURES, against=None, ignored=(), /, *, num=1, seed=0, first=0, start=None,
        keep_rows=None, **options,
    ) -> Plan:  # fmt: skip
        """Settles a call for prompts of these names, whose conditioning ``encode`` returns."""
        count = check_numbers(len(prompts), num, seed, first, most)
        settings, found = self._settled(count, options)
        begun = inputs.given(self.checkpoint, start, keep_rows, len(prompts), settings)
        idle = "negative_prompt has no effect with guidance 1" if against and settings.guidance == 1 else ""
        notes, numbers = filter(None, (found.note, idle)), map(int, (num, seed, first))
        call = Call(
            settings, found, prompts, *numbers, begun and begun[1], tuple(notes), tuple(against or ()), ignored
        )  # fmt: skip
        complete = None if begun is None else partial(self._completion, starts=begun[0], rows=begun[1])
        return Plan(call, self.recipe, self.engine, self.draws, encode, complete)

    def _completion(self, conditioning: Any, starts: list[np.ndarray], rows: int) -> Completion:
        codes = np.stack([self.encode_pictures(one)[0] if one.ndim == 3 else one for one in starts])
        codes = np.broadcast_to(codes, (len(jax.tree.leaves(conditioning)[0]), codes.shape[1]))
        kept = rows * shape_of(self.recipe.config)[1]
        return Completion(conditioning, inputs.first_tokens(self.recipe.target(), codes, kept))
