"""From prompts to pictures: ``load(...)`` gives a Pipeline, ``Pipeline.generate`` decodes and draws.

Axes: n pictures of a call, T codes of a picture, P prefix length, C label slots, F caption feature width, H W height
and width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int, UInt8

from lantern_jax.checkpoints.store import Checkpoint, model_directory
from lantern_jax.checkpoints.store import load as load_checkpoint
from lantern_jax.decoding.completion import Completion
from lantern_jax.decoding.knobs import MOST_PICTURES, check_numbers
from lantern_jax.devices.partition import device_grid
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import Generation, Picture, Progress
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.parameters import parameter_dtype, read_drafter, read_parameters
from lantern_jax.families.registry import family_of
from lantern_jax.io.errors import LanternError
from lantern_jax.models.vq import VQModel
from lantern_jax.pipeline.call import Call, drawn
from lantern_jax.pipeline.completion_input import Grid, Start, first_tokens
from lantern_jax.pipeline.prompting import listed, prompt_encoder
from lantern_jax.settings import recipe
from lantern_jax.settings.settings import Knobs, Settings
from lantern_jax.settings.tuned import AUTO, Found, Key, Shelf
from lantern_jax.text.encoded import EncodedPrompts


def load(
    model: str | Path = "demo",
    dtype: Any = None,
    tuned: str | Path | None = AUTO,
    mesh: str | Mesh | None = None,
) -> "Pipeline":
    """Opens a checkpoint: "demo", the model that ships with the package, a directory, or a repository of the hub.

    What it holds is checked; parameters are read when they are first needed, straight onto the devices. Compiled
    programs are kept for later processes if ``lantern_jax.keep_compiled_programs()`` was called.

    Args:
        model: "demo"; a directory that ``lantern convert`` wrote; or, where none has that name, one on the Hugging Face
            hub: "owner/name" or "owner/name@revision".
        dtype: of the target's and drafter's parameters and matrix products; None is float32 on CPUs, else bfloat16.
        tuned: a file of ``lantern tune``; "auto" takes what it found for such a call, unless that says how to decode
            or several processes share the mesh; "off" takes nothing.
        mesh: how devices share the work: "data=2,model=4" spreads pictures over two groups of four devices and
            splits the model over each four; an axis left out has one. Or a mesh with axes of those names. None is
            all devices of this process, each with a whole model.

    Raises:
        LanternError: the model is missing, incomplete, damaged or no checkpoint, or cannot be fetched (``MissingExtra``
            without the extra ``hub``); a mesh that is not valid; a platform that JAX is asked for and has not here.
    """
    devices, dtype, shelf = device_grid(mesh), parameter_dtype(dtype), Shelf.of(tuned)
    return Pipeline(load_checkpoint(model_directory(model), abstract=True), dtype, shelf, devices)


class Pipeline:
    """A checkpoint ready to generate. Compiled programs are kept, so a second call of the same kind is quick.

    Args:
        checkpoint: the models and their parameters; abstract ones are read from the checkpoint's directory.
        dtype: as in ``load``.
        tuned: files of tuned settings; None for none.
        devices: as in ``Engine``.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: Any = None, tuned: Shelf | None = None, devices: Any = None
    ):
        self.checkpoint, self._tuned = checkpoint, tuned
        self.platform = jax.default_backend()
        self.dtype = dtype = parameter_dtype(dtype)
        self.family = family_of(checkpoint.target_config)
        self._encoder = prompt_encoder(checkpoint)
        self._record = self.family.target(checkpoint.target_config, dtype)
        # Positions of the token stream that are the picture's codes; the others the format forces.
        self._free = np.flatnonzero(self._record.forced < 0)
        self._grid = Grid.of(checkpoint)
        self._drafters = {kind: config for kind, (config, _) in checkpoint.drafters.items()}
        self.engine = Engine(
            partial(read_parameters, checkpoint, dtype),
            VQModel(checkpoint.tokenizer_config) if self.draws else None,
            devices,
            read_drafter=partial(read_drafter, checkpoint, dtype),
        )

    @property
    def draws(self) -> bool:
        """Whether the checkpoint has a VQ tokenizer; without one a generation has tokens and no pictures."""
        return self.checkpoint.tokenizer_params is not None

    def generate(
        self,
        prompts: str | int | Sequence[str | int],
        *,
        num: int = 1,
        seed: int = 0,
        first: int = 0,
        start: Start | Sequence[Start] | None = None,
        keep_rows: int | None = None,
        compare: bool = False,
        progress: Callable[[Progress], None] | None = None,
        **knobs: Unpack[Knobs],
    ) -> Generation:
        """Makes ``num`` pictures of every prompt. Knobs left out are tuned ones (see ``load``), where those are for
        such a call, then the checkpoint's defaults, then ``Settings``'.

        Picture number i of the call draws its randomness from ``seed`` and ``first`` + i alone: the batch size, the
        number of devices and the strict rule's tree change nothing about its tokens. That is exact in float32
        (``load(..., dtype="float32")``). In bfloat16, the default on GPUs and TPUs, a pass over many nodes rounds
        otherwise than a pass over one, so a token whose score is nearly the best can come out the other way, and
        the tokens after it with it.

        Args:
            prompts: what to draw, in words; class numbers or ImageNet names for class-conditional models.
            num: pictures a prompt.
            seed: 0 to 2**32 - 1.
            first: number of the first picture: a set made in several calls is the set made in one.
            start: pictures to go on with, or their codes, one a prompt or one for all: PIL images or uint8
                [H, W, 3], whose middle squares are taken, or ints [T]. The first rows stay and the rest is decoded;
                in a picture's own seed, it comes out again.
            keep_rows: how many rows of codes of ``start`` stay, 1 to all but one; None for half of them.
            compare: also decode plainly with the same seed, into ``Generation.plain``.
            progress: called several times a second, and at the end; with ``compare`` of both decodings as of one.
            knobs: see ``Settings``; by keyword, None for the default.

        Raises:
            ValueError: anything in the above that is not valid, before any computation; or a model whose numbers
                are not finite.
            Interrupted: after Ctrl-C, within a fraction of a second; it holds the pictures that are done, with
                ``compare`` without plain decoding's.

        Example:
            >>> generation = lantern_jax.load("demo").generate("a foggy forest", num=2, seed=7)
            >>> len(generation.images), generation.statistics.substituted
            (2, 0.0)
        """
        numbers = {"num": num, "seed": seed, "first": first, "start": start, "keep_rows": keep_rows}
        self.check(prompts, **numbers, **knobs)
        return self.generate_from(
            self.encode(prompts), compare=compare, progress=progress, **numbers, **knobs
        )

    def encode(self, prompts: str | int | Sequence[str | int]) -> EncodedPrompts:
        """Prompts as the target takes them: for ``generate_from``, or for ``text.encoded.save_encoded``.

        The text encoder, where there is one, is read for the call and dropped, or kept inside ``text_encoder_kept``.

        Raises:
            ValueError: as ``generate`` of its prompts.
        """
        prompts = listed(prompts)
        return self._encoder.to_encoded(prompts, self._encoder.encode(prompts, self.dtype))

    def text_encoder_kept(self) -> AbstractContextManager[None]:
        """Inside this context a text encoder that was read stays in memory, and is not read again."""
        return self._encoder.kept()

    def generate_from(
        self,
        conditioning: EncodedPrompts | Int[np.ndarray, "n C"] | Float[np.ndarray, "n P F"],
        *,
        mask: Bool[np.ndarray, "n P"] | None = None,
        num: int = 1, seed: int = 0, first: int = 0,
        start: Start | Sequence[Start] | None = None, keep_rows: int | None = None,
        compare: bool = False, progress: Callable[[Progress], None] | None = None, **knobs: Unpack[Knobs],
    ) -> Generation:  # fmt: skip
        """As ``generate``, from encoded prompts or conditioning arrays instead of prompts.

        Args:
            conditioning: what ``encode`` returned; or label ids of a label-conditional model; or text features
                of a caption-conditional one, left-padded, with their ``mask`` (None: no padding).

        Raises:
            ValueError: shapes or ids that do not fit the model, and all that ``generate`` raises.
        """
        call, settings = self._call(conditioning, mask, num, seed, first, knobs, start, keep_rows)
        if compare:
            return call.compare(self.job(settings), self.job(settings, plain=True), progress)
        return call.generate(self.job(settings), progress)

    def prepare(
        self, conditioning: EncodedPrompts, *, num: int = 1, seed: int = 0, first: int = 0,
        **knobs: Unpack[Knobs],
    ) -> tuple[Call, Job]:  # fmt: skip
        """What ``generate_from`` would run, for a loop of one's own around it, which may make more pictures than one
        call; raises what it would raise else.
        """
        call, settings = self._call(conditioning, None, num, seed, first, knobs, most=2**32)
        return call, self.job(settings)

    def iterate(
        self, prompts: str | int | Sequence[str | int], *, num: int = 1, seed: int = 0, first: int = 0,
        **knobs: Unpack[Knobs],
    ) -> Iterator[Picture]:  # fmt: skip
        """As ``generate``, a picture at a time: each is drawn as soon as its tokens are known.

        Raises:
            ValueError: as ``generate``, when the first picture is asked for.
        """
        self.check(prompts, num=num, seed=seed, first=first, **knobs)
        call, settings = self._call(self.encode(prompts), None, num, seed, first, knobs)
        yield from call.pictures(self.job(settings))

    def check(
        self, prompts: str | int | Sequence[str | int] | EncodedPrompts, *, num: int = 1, seed: int = 0,
        first: int = 0, start: Start | Sequence[Start] | None = None, keep_rows: int | None = None,
        **knobs: Unpack[Knobs],
    ) -> Settings:  # fmt: skip
        """The settings that ``generate`` would use; raises what it would raise, and computes nothing."""
        given = len(listed(getattr(prompts, "prompts", prompts)))
        settings = self._settings(knobs, check_numbers(given, num, seed, first))
        self._grid.given(start, keep_rows, given, settings)
        if isinstance(prompts, EncodedPrompts):
            self._encoder.from_encoded(prompts)
        else:
            self._encoder.check(listed(prompts))
        return settings

    def tuning(self, pictures: int, **knobs: Unpack[Knobs]) -> Found:
        """What a call of so many pictures takes from tuned settings, and a line that says so, or why nothing.

        Raises:
            ValueError: knobs that are not valid.
        """
        # Hosts have cache directories of their own, and must decode alike.
        if self._tuned is None or (self.engine.spans and not self._tuned.named):
            return Found()
        key = Key.of(self.checkpoint, self.dtype, self.settings(knobs), pictures, self.engine.devices)
        return self._tuned.find(key, knobs)

    def _settings(self, knobs, pictures: int) -> Settings:
        given = {name: value for name, value in knobs.items() if value is not None}
        return self.settings({**self.tuning(pictures, **knobs).knobs, **given})

    def settings(self, knobs: Knobs) -> Settings:
        """The settings that these knobs make with this checkpoint; ValueError where they do not fit."""
        made = self.checkpoint
        parts = made.target_config, self._drafters, made.defaults, made.codebook
        return recipe.settings_for(knobs, *parts, platform=self.platform)

    def job(self, settings: Settings, plain: bool = False) -> Job:
        """How a batch is decoded with these settings."""
        config = self.checkpoint.target_config
        if plain:
            return recipe.plain_job(config, self.dtype, settings)
        return recipe.job(config, self._drafters, self.dtype, settings)

    def encode_pictures(self, images: Start | Sequence[Start]) -> Int[np.ndarray, "n T"]:
        """The codes int32 [n, T] of PIL images or uint8 [n, H, W, 3], whose middle squares are taken.

        Raises:
            ValueError: no pictures, or a checkpoint without a VQ tokenizer.
        """
        return self.engine.encode(self._grid.pictures(images))

    def draw(self, tokens: Int[np.ndarray, "n T"]) -> UInt8[np.ndarray, "n H W 3"]:
        """Pictures of their codes; ValueError for those of other models, or without a sound VQ tokenizer."""
        if not self.draws:
            raise LanternError("this checkpoint has no VQ tokenizer to draw with: convert it again with one")
        return drawn(self.engine, np.atleast_2d(self._grid.checked_codes(tokens)))[0]

    def _completion(self, conditioning: Any, starts: list[np.ndarray], rows: int) -> Completion:
        codes = np.stack([self.encode_pictures(one)[0] if one.ndim == 3 else one for one in starts])
        return Completion(conditioning, first_tokens(self._record, codes, rows, self._grid.side))

    def _call(
        self, conditioning, mask, num, seed, first, knobs, start=None, keep_rows=None, most=MOST_PICTURES
    ) -> tuple[Call, Settings]:
        if isinstance(conditioning, EncodedPrompts):
            prompts, rows = conditioning.prompts, self._encoder.from_encoded(conditioning)
        else:
            rows = self._encoder.from_arrays(conditioning, mask)
            prompts = tuple(f"conditioning {row}" for row in range(len(jax.tree.leaves(rows)[0])))
        settings = self._settings(knobs, check_numbers(len(prompts), num, seed, first, most))
        starts = self._grid.given(start, keep_rows, len(prompts), settings)
        rows = rows if starts is None else self._completion(rows, *starts)
        call = Call(
            engine=self.engine,
            conditioning=rows,
            prompts=prompts,
            num=int(num),
            seed=int(seed),
            first=int(first),
            batch=settings.batch,
            free=self._free,
            draws=self.draws,
        )
        return call, settings
