"""From prompts to pictures: ``load(...)`` gives a Pipeline, ``Pipeline.generate`` decodes and draws.

Axes: n sequences of a call, B sequences decoded at once, G guidance rows, T codes of a picture, P prefix length,
C label slots, F caption feature width, H W height and width.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.checkpoints.store import Checkpoint, model_directory
from lantern_jax.checkpoints.store import load as load_checkpoint
from lantern_jax.compilation import compile_ahead, keep_compiled_programs, run_timed
from lantern_jax.decoding.acceptance import Strict, check_codebook, is_strict
from lantern_jax.decoding.loop import Decoded, speculative_decode
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.families import family_of
from lantern_jax.generation import Generation, Statistics, Timing, summarise
from lantern_jax.models.drafter import eagle_drafter
from lantern_jax.models.vq import VQModel
from lantern_jax.prompting import prompt_encoder
from lantern_jax.settings import Settings, check_count, check_seed, resolve_settings
from lantern_jax.text.encoded import EncodedPrompts
from lantern_jax.text.encoders import Conditioning


def load(model: str | Path = "demo", dtype: Any = None) -> "Pipeline":
    """Opens a checkpoint: "demo", the model that ships with the package, or a directory.

    What it holds is checked; parameters are read when they are first needed, straight onto the devices.

    Args:
        model: "demo" or a directory that ``lantern convert`` or ``checkpoints.store.save`` wrote.
        dtype: of the target's and drafter's parameters and matrix products; None is float32 on a CPU and
            bfloat16 elsewhere.

    Raises:
        ValueError: the directory is missing, incomplete, damaged or something else than a checkpoint.
    """
    dtype = parameter_dtype(dtype)
    keep_compiled_programs()
    return Pipeline(load_checkpoint(model_directory(model), abstract=True), dtype)


class Pipeline:
    """A checkpoint ready to generate. Compiled programs are kept, so a second call of the same kind is quick.

    Args:
        checkpoint: the models and their parameters; abstract ones are read from the checkpoint's directory.
        dtype: as in ``load``.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: Any = None):
        self.checkpoint = checkpoint
        self.platform = jax.default_backend()
        self.dtype = dtype = parameter_dtype(dtype)
        self._encoder = prompt_encoder(checkpoint)
        self._target = family_of(checkpoint.target_config).target(checkpoint.target_config, dtype)
        # Positions of the token stream that are the picture's codes; the others the format forces.
        self._free = np.flatnonzero(self._target.forced < 0)
        self._drafter = None
        if checkpoint.drafter_config is not None:
            self._drafter = eagle_drafter(checkpoint.drafter_config, dtype)
        self._parameters: Any = None
        self._devices = 0
        self._programs: dict[Any, Any] = {}

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
        compare: bool = False,
        guidance: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        tree: Any = None,
        rule: str | None = None,
        k: int | None = None,
        delta: float | None = None,
        lam: float | None = None,
        coupling: str | None = None,
        path: str | None = None,
        residual: str | None = None,
        batch: int | None = None,
    ) -> Generation:
        """Makes ``num`` pictures of every prompt. Knobs left out are the checkpoint's defaults, then ``Settings``'.

        Picture number i of the call draws its randomness from ``seed`` and i alone: the batch size, the number
        of devices and the strict rule's tree change nothing about its tokens.

        Args:
            prompts: what to draw, in words; class numbers or ImageNet names for class-conditional models.
            num: pictures a prompt.
            seed: 0 to 2**32 - 1.
            compare: also decode plainly with the same seed, into ``Generation.plain``.
            guidance, temperature, top_k, top_p, tree, rule, k, delta, lam, coupling, path, residual, batch:
                see ``Settings``.

        Raises:
            ValueError: anything in the above that is not valid, before any computation.
        """
        knobs = {
            "guidance": guidance, "temperature": temperature, "top_k": top_k, "top_p": top_p, "tree": tree,
            "rule": rule, "k": k, "delta": delta, "lam": lam, "coupling": coupling, "path": path,
            "residual": residual, "batch": batch,
        }  # fmt: skip
        self._settings(knobs)
        check_count("num", num), check_seed(seed)
        return self.generate_from(self.encode(prompts), num=num, seed=seed, compare=compare, **knobs)

    def encode(self, prompts: str | int | Sequence[str | int]) -> EncodedPrompts:
        """Prompts as the target takes them: for ``generate_from``, or for ``text.encoded.save_encoded``.

        The text encoder, where there is one, is in memory only meanwhile.

        Raises:
            ValueError: as ``generate`` of its prompts.
        """
        if isinstance(prompts, str | int | np.integer):
            prompts = [prompts]
        return self._encoder.to_encoded(prompts, self._encoder.encode(prompts, self.dtype))

    def generate_from(
        self,
        conditioning: EncodedPrompts | Int[np.ndarray, "n C"] | Float[np.ndarray, "n P F"],
        *,
        mask: Bool[np.ndarray, "n P"] | None = None,
        num: int = 1,
        seed: int = 0,
        compare: bool = False,
        **knobs: Any,
    ) -> Generation:
        """As ``generate``, from encoded prompts or conditioning arrays instead of prompts.

        Args:
            conditioning: what ``encode`` returned; or label ids of a label-conditional model; or text features
                of a caption-conditional one, left-padded, with their ``mask`` (None: no padding).
            knobs: those of ``generate``.

        Raises:
            ValueError: shapes or ids that do not fit the model, and all that ``generate`` raises.
        """
        if isinstance(conditioning, EncodedPrompts):
            names, rows = conditioning.prompts, self._encoder.from_encoded(conditioning)
        else:
            rows = self._encoder.from_arrays(conditioning, mask)
            names = tuple(f"conditioning {row}" for row in range(jax.tree.leaves(rows)[0].shape[0]))
        return self._generate(rows, names, num, seed, compare, knobs)

    def check(
        self, prompts: Sequence[str | int] | EncodedPrompts, *, num: int = 1, seed: int = 0, **knobs: Any
    ) -> Settings:
        """The settings that ``generate`` would use; raises what it would raise, and computes nothing."""
        if isinstance(prompts, EncodedPrompts):
            self._encoder.from_encoded(prompts)
        else:
            self._encoder.check(prompts)
        check_count("num", num)
        check_seed(seed)
        return self._settings(knobs)

    def _settings(self, knobs) -> Settings:
        checkpoint = self.checkpoint
        settings = resolve_settings(
            knobs,
            checkpoint.defaults,
            platform=self.platform,
            vocab_size=checkpoint.target_config.num_codes,
            has_drafter=self._drafter is not None,
        )
        check_codebook(settings.acceptance(), checkpoint.codebook)
        return settings

    def _generate(self, conditioning: Conditioning, prompts, num, seed, compare, knobs) -> Generation:
        settings = self._settings(knobs)
        num, seed = check_count("num", num), check_seed(seed)
        prompts = tuple(prompt for prompt in prompts for _ in range(num))
        speculative = self._decode_all(conditioning, prompts, seed, settings, settings.tree)
        if not compare:
            return speculative
        plain = self._decode_all(conditioning, prompts, seed, settings, DraftTree.empty())
        return _compared(speculative, plain)

    def _decode_all(self, conditioning, prompts, seed, settings, tree) -> Generation:
        """Decodes and draws all sequences in chunks of one size, so that one program serves them all."""
        chunk, devices = _chunking(len(prompts), settings.batch, len(jax.local_devices()))
        timing, decoded, pictures = Timing(), [], []
        for start in range(0, len(prompts), chunk):
            rows = np.arange(start, start + chunk)
            active = rows < len(prompts)
            count = jax.tree.leaves(conditioning)[0].shape[0]
            where = np.minimum(rows, len(prompts) - 1) * count // len(prompts)
            part = jax.tree.map(lambda leaf, where=where: leaf[where], conditioning)
            result, spent = self._decode_chunk(part, rows, active, seed, settings, tree, devices)
            timing += spent
            result = jax.tree.map(lambda leaf, active=active: np.asarray(leaf)[active], result)
            result = result.replace(
                tokens=result.tokens[:, self._free], round_of_token=result.round_of_token[:, self._free]
            )
            decoded.append(result)
            if self.draws:
                drawn, spent = self._draw(result.tokens, chunk, devices)
                timing += spent
                pictures.append(drawn)
        decoded = jax.tree.map(lambda *parts: np.concatenate(parts), *decoded)
        return Generation(
            prompts=prompts,
            pictures=np.concatenate(pictures) if pictures else None,
            tokens=decoded.tokens,
            round_of_token=decoded.round_of_token,
            statistics=summarise(decoded, timing),
        )

    def _decode_chunk(
        self, conditioning, rows, active, seed, settings, tree, devices
    ) -> tuple[Decoded, Timing]:
        rule = settings.acceptance()
        method = (tree, settings.coupling, settings.path, settings.residual)
        if not tree.max_depth:
            # Nothing is drafted, nothing to accept: one program, whatever the knobs of acceptance.
            rule, method = Strict(), (tree, Settings.coupling, Settings.path, Settings.residual)
        parameters = self._on_devices(devices)
        codebook = None if is_strict(rule) else parameters["codebook"]
        arrays = (
            parameters["target"], parameters["drafter"] if tree.max_depth else None, conditioning, np.uint32(seed),
            rows.astype(np.int32), active, np.full(len(rows), settings.guidance, np.float32),
            settings.sampling(), rule, codebook,
        )  # fmt: skip
        guided = settings.guidance != 1
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(conditioning))
        key = ("decode", method, guided, jax.tree.structure(rule), shapes, devices)
        compiling = 0.0
        if key not in self._programs:
            head = family_of(self.checkpoint.target_config).head
            program = _decode_program(self._target, self._drafter, head, method, guided, _mesh(devices))
            compiled, compiling = compile_ahead(program, *arrays)
            # With nothing to decode: what a first execution sets up counts as compiling.
            idle = (*arrays[:5], np.zeros_like(active), *arrays[6:])
            compiling += run_timed(compiled, *idle)[1]
            self._programs[key] = compiled
        decoded, seconds = run_timed(self._programs[key], *arrays)
        return decoded, Timing(decoding=seconds, compiling=compiling)

    def _draw(self, tokens, chunk, devices):
        """uint8 pictures [n, H, W, 3] of n <= chunk token rows."""
        padded = np.zeros((chunk, tokens.shape[1]), np.int32)
        padded[: len(tokens)] = tokens
        params = self._on_devices(devices)["vq"]
        key, compiling = ("draw", chunk, devices), 0.0
        if key not in self._programs:
            program = _draw_program(VQModel(self.checkpoint.tokenizer_config), _mesh(devices))
            self._programs[key], compiling = compile_ahead(program, params, padded)
        pictures, seconds = run_timed(self._programs[key], params, padded)
        return np.asarray(pictures)[: len(tokens)], Timing(drawing=seconds, compiling=compiling)

    def _on_devices(self, devices: int):
        """The parameters where programs for that many devices want them: read once, moved when the number changes."""
        if devices != self._devices:
            mesh, first = _mesh(devices), jax.local_devices()[0]
            where = SingleDeviceSharding(first) if mesh is None else NamedSharding(mesh, PartitionSpec())
            parameters = self._parameters or self._read(where)
            self._parameters = jax.block_until_ready(jax.device_put(parameters, where))
            self._devices = devices
        return self._parameters

    def _read(self, where) -> dict[str, Any]:
        """The parameters by their part in decoding, the target's and drafter's in the pipeline's dtype."""
        checkpoint = self.checkpoint
        if checkpoint.is_abstract:
            checkpoint = load_checkpoint(checkpoint.directory, self.dtype, where)

        def cast(leaf):
            return leaf if leaf.dtype == self.dtype else leaf.astype(self.dtype)

        return {
            "target": jax.tree.map(cast, checkpoint.target_params),
            "drafter": jax.tree.map(cast, checkpoint.drafter_params),
            "vq": checkpoint.tokenizer_params,
            "codebook": checkpoint.codebook,
        }


def parameter_dtype(dtype: Any) -> np.dtype:
    """The dtype that ``load`` uses when asked for ``dtype``; ValueError unless it is None or a floating one."""
    if dtype is None:
        return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)
    try:
        known = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        known = False
    if not known:
        raise ValueError(f"dtype {dtype!r} is not valid: give float32 or bfloat16")
    return jnp.dtype(dtype)


def _chunking(count: int, batch: int, devices: int) -> tuple[int, int]:
    """(sequences decoded at once, devices they are spread over): even chunks, padded as little as possible."""
    chunk = math.ceil(count / math.ceil(count / batch))
    devices = min(devices, chunk)
    return math.ceil(chunk / devices) * devices, devices


def _mesh(devices: int) -> Mesh | None:
    return None if devices == 1 else Mesh(np.array(jax.local_devices()[:devices]), ("data",))


def _decode_program(target, drafter, head, method, guided: bool, mesh):
    """The whole generation of a batch as one function of arrays, keys made inside."""
    tree, coupling, path, residual = method

    def decode_tokens(
        target_params, drafter_params, conditioning, seed, rows, active, guidance, sampling, rule, codebook
    ) -> Decoded:
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(rows)
        if not guided:
            guidance = None
        if drafter_params is not None:
            drafter_params = {"drafter": drafter_params, "head": head(target_params)}
        return speculative_decode(
            target, target_params, conditioning, keys,
            drafter=drafter, drafter_params=drafter_params, guidance=guidance, sampling=sampling, tree=tree,
            rule=rule, codebook=codebook, coupling=coupling, path=path, residual=residual, active=active, mesh=mesh,
        )  # fmt: skip

    return decode_tokens


def _draw_program(model: VQModel, mesh):
    def draw_pictures(params, tokens: Int[Array, "B T"]):
        values = model.apply(params, tokens, method="decode")
        return jnp.round(jnp.clip((values + 1) * 127.5, 0, 255)).astype(jnp.uint8)

    if mesh is None:
        return draw_pictures
    rows = PartitionSpec("data")
    return jax.shard_map(
        draw_pictures, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows, check_vma=False
    )


def _compared(speculative: Generation, plain: Generation) -> Generation:
    ours, theirs = speculative.statistics, plain.statistics
    values = vars(ours) | {
        "compile_seconds": ours.compile_seconds + theirs.compile_seconds,
        "speedup": theirs.seconds / ours.seconds,
        "same_tokens": float(np.mean(speculative.tokens == plain.tokens)),
    }
    return Generation(**vars(speculative) | {"statistics": Statistics(**values), "plain": plain})
