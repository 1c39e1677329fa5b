"""Extract the drafter's training set: the target's features on pictures, and on its own samples.

    python -m train.features --target DIR --workdir DIR [--folder DIR] [--prompts FILE] [--samples=N]
    python -m train.features --target DIR --workdir DIR --tokens DIR [--pictures=N] [--samples=N] [--taps=2,6,9,12]

The target is a checkpoint directory that `lantern convert` wrote, or the working folder of `train.target`. The first
form takes a folder of pictures with captions (`train.picture_folder`: `name.jpg` with `name.txt`, or class folders), a
text file of prompts for the target's own samples, or both; the second takes landscapes that `train.encode` tokenized,
and samples of random landscapes. Samples are what the drafter meets at decoding time; they are decoded plainly, with
the checkpoint's default settings.

Features are the target's final ones. With `--taps`, they are the states that enter those layers, side by side; the
number of layers stands for the final features, which all training needs and which come last.

Codes, encoded captions and features are kept in WORKDIR (`train.sources`, `train.feature_store`), so a killed run
continues after its last file. All that determines the features, the target's weights included, is noted there
(`claims`): if anything differs, the folder is refused. Neither the batch size nor the devices matter:
`--mesh data=2,model=4` spreads pictures over two groups of four devices and splits the target over each group.

A sequence is the conditioning and the whole token stream, forced tokens such as row ends included, for both
guidance rows, conditional and unconditional. On disk a picture takes 2 rows x S positions x D x 2 bytes, S = P + T - 1:

    LlamaGen c2i   B 256 px 0.8 MB, B 384 px 1.8 MB, XL 384 px 2.9 MB, 3B 384 px 7.4 MB
    LlamaGen t2i   XL stage 1 1.9 MB, stage 2 5.9 MB; a caption's features 0.5 MB (bfloat16), 1 MB (float32)
    Anole 17.8 MB, Lumina-mGPT 39.6 MB (768 px), with prompts of up to 64 tokens
    Janus-Pro 1B 5.2 MB, 7B 10.5 MB; Liquid 13.4 MB; Emu3 135 MB, Lumina-mGPT 2.0 154 MB, likewise

Axes: G guidance rows, B batch, P prefix, T tokens of a stream, S features of a sequence, D width, C codes.
"""

import argparse
import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Key, PyTree

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.commands.options import DTYPES
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding import completion
from lantern_jax.decoding.loop import autoregressive_decode
from lantern_jax.decoding.protocols import Target
from lantern_jax.decoding.sampling import sequence_keys
from lantern_jax.devices.partition import DATA, device_grid, mesh_of, place, where_on
from lantern_jax.devices.platform import parameter_dtype
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.io.errors import LanternError
from lantern_jax.settings.settings import SAMPLING, Settings, resolve_settings
from lantern_jax.text.encoders import Conditioning
from train import script, target
from train.claims import claim, claimed, parameters_digest
from train.feature_store import count_shards, write_shard
from train.loop import working
from train.reports import Reporter
from train.sources import Source, landscapes, prompted, read_prompts

# A shard is put together in memory: the most pictures it has, and the most bytes unless a single picture has more.
SHARD, SHARD_BYTES = 64, 1 << 29


@cache
def features_of(
    record: Target,
) -> Callable[[PyTree, Conditioning, Array], tuple[Float[Array, "G B S D"], Int[Array, "G B P"]]]:
    """Returns a jitted function (params, conditioning [B, P, ...], tokens int32 [B, T]) -> features, prefix, both rows.

    The features are of every position of the sequence but the last token, which nothing follows; the prefix is token
    ids, -1 at padding. Teacher forcing: the target reads the prefix and then the stream, some tokens at a time
    (`completion.read`).
    """

    @jax.jit
    def features(params: PyTree, conditioning: Conditioning, tokens: Int[Array, "B T"]):
        batch, slots = tokens.shape
        cache, _, prefix = record.prefill(params, conditioning, jnp.ones(batch, jnp.float32), slots)
        _, later = completion.read(
            record, params, cache, tokens, lambda logits, features, _: features, axis=2
        )
        ids = jnp.where(prefix.mask, prefix.tokens, -1)
        return jnp.concatenate([prefix.features, later], axis=2), ids

    return features


def sample_tokens(
    record: Target,
    params: PyTree,
    conditioning: Conditioning,
    keys: Key[Array, " B"],
    settings: Settings,
    mesh: Mesh | None = None,
) -> Int[np.ndarray, "B T"]:
    """Decodes the target's own streams plainly; `keys` has one per picture."""
    guidance = jnp.full(len(keys), settings.guidance, jnp.float32)
    decoded = autoregressive_decode(
        record, params, conditioning, keys, guidance=guidance, sampling=settings.sampling(), mesh=mesh
    )  # fmt: skip
    return np.asarray(decoded.tokens)


def streams(record: Target, codes: Int[np.ndarray, "B C"]) -> Int[np.ndarray, "B T"]:
    """Puts the format's forced tokens between codes. Raises LanternError for a wrong number of codes."""
    free = record.forced < 0
    if codes.shape[1] != free.sum() or codes.max(initial=0) >= record.vocab_size:
        raise LanternError(
            f"codes {codes.shape} up to {codes.max(initial=0)}: expected {free.sum()} per picture below "
            f"{record.vocab_size}; encode with the target's own tokenizer"
        )
    tokens = np.broadcast_to(record.forced, (len(codes), record.num_tokens)).copy()
    tokens[:, free] = codes
    return tokens


def shards(sources: Sequence[Source], size: int) -> Iterator[tuple[Source, np.ndarray]]:
    """Yields the rows of every shard, source by source."""
    for source in sources:
        for start in range(0, source.count, size):
            yield source, np.arange(start, min(start + size, source.count))


def shard_size(sources: Sequence[Source], width: int, num_tokens: int) -> int:
    """Returns the pictures per shard, which depend only on what is extracted: a later run knows its shards' rows."""
    leaf = jax.tree.leaves(next(source for source in sources if source.count).conditioning(np.arange(1)))[0]
    # The second axis of every kind of conditioning is the prefix.
    return max(min(SHARD_BYTES // (2 * (leaf.shape[1] + num_tokens - 1) * width * 2), SHARD), 1)


def target_claims(config: TargetConfig, params: PyTree, dtype: Any) -> dict[str, str]:
    """Returns what determines a target's features: its sizes, and its weights in the dtype of the extraction."""
    name = jnp.dtype(dtype).name
    return {"target": repr(config), "weights": parameters_digest(params, name), "dtype": name}


def claims(
    checkpoint: Checkpoint,
    sources: Sequence[Source],
    size: int,
    settings: Settings,
    seed: int,
    dtype: Any,
    taps: tuple[int, ...] = (),
) -> dict[str, str]:
    """Returns, for `claim`, all that determines the shards; settings of samples, and taps, if there are any."""
    made = target_claims(checkpoint.target_config, checkpoint.target_params, dtype) | {
        "shard size": str(size)
    }
    if taps:
        made["taps"] = repr(taps)
    if any(source.codes is None and source.count for source in sources):
        numbers = {name: getattr(settings, name) for name in SAMPLING}
        made["settings"] = repr({"seed": seed, **numbers})
    return made | {source.name: f"{source.count} {source.digest}" for source in sources}


def stored_layers(folder: str | Path, checkpoint: Checkpoint, name: str | Path) -> tuple[int, ...]:
    """Returns the layers whose inputs a folder's features are, the number of layers last.

    Raises LanternError unless they are features of the checkpoint's target, which the message calls `name`.
    """
    config, found = checkpoint.target_config, claimed(Path(folder))
    wanted = target_claims(config, checkpoint.target_params, found.get("dtype", "float32"))
    if any(found.get(part) != value for part, value in wanted.items()):
        raise LanternError(f"{folder} holds features of another target than {name}: extract them again")
    return ast.literal_eval(found["taps"]) if "taps" in found else (config.num_layers,)


def target_record(
    config: TargetConfig, batch_size: int, dtype: Any, taps: tuple[int, ...], mesh: Mesh | None
) -> Target:
    """Returns the target that features are read from; arguments are as in `extract`.

    Raises LanternError for a batch or for taps that it cannot take.
    """
    if taps and taps[-1] != config.num_layers:
        raise LanternError(f"taps {taps} do not end with the final features, {config.num_layers}: add them")
    if mesh is not None and batch_size % mesh.shape[DATA]:
        raise LanternError(
            f"batch_size {batch_size} does not divide over {mesh.shape[DATA]} devices; change --batch_size"
        )
    return family_of(config).target(config, jnp.dtype(dtype), taps)


def extract(
    checkpoint: Checkpoint,
    sources: Sequence[Source],
    workdir: str | Path,
    *,
    seed: int = 0,
    batch_size: int = 16,
    dtype: Any = np.float32,
    taps: tuple[int, ...] = (),
    mesh: Mesh | None = None,
) -> None:
    """Fills `workdir` with the features of all sources, shard by shard; continues after the last one.

    Args:
        seed: of the samples: picture i is a function of the seed and i.
        batch_size: pictures in one pass of the target; it does not affect the files.
        dtype: of the target's parameters and matrix products; features are stored in float16.
        taps: layers whose inputs are stored, the last one the number of layers; none for the final features.
        mesh: of the parameters (`partition.mesh_of`): pictures of a batch are split over its axis "data", the model
            over "model". None for a single device.

    Raises:
        LanternError: a batch that does not divide over the mesh, taps without the final features at their end, codes
            that do not fit the target, or a working folder with other features.
    """
    config, params = checkpoint.target_config, checkpoint.target_params
    record = target_record(config, batch_size, dtype, taps, mesh)
    settings = resolve_settings(
        {"method": "ar"}, checkpoint.defaults, platform=jax.default_backend(), vocab_size=config.num_codes,
        drafters=(),
    )  # fmt: skip
    size = shard_size(sources, config.dim * max(len(taps), 1), config.num_tokens)
    claim(Path(workdir), claims(checkpoint, sources, size, settings, seed, dtype, taps))
    work, done = list(shards(sources, size)), count_shards(workdir)

    def one_batch(source: Source, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        conditioning = source.conditioning(rows)
        if source.codes is None:
            keys = sequence_keys(seed, rows)
            tokens = sample_tokens(record, params, conditioning, keys, settings, mesh)
        else:
            tokens = streams(record, source.codes(rows))
        if mesh is not None:
            conditioning, tokens = place((conditioning, tokens), NamedSharding(mesh, PartitionSpec(DATA)))
        features, prefix = features_of(record)(params, conditioning, tokens)
        by_picture = (np.swapaxes(np.asarray(part), 0, 1) for part in (features.astype(jnp.float16), prefix))
        return (*by_picture, np.asarray(tokens))

    reporter = Reporter(len(work), done, "features, shard")
    for i, (source, rows) in enumerate(work[done:], done):
        parts = []
        for start in range(0, len(rows), batch_size):
            # The last batch is padded, so that one program does for all.
            chosen = rows[np.minimum(np.arange(start, start + batch_size), len(rows) - 1)]
            kept = min(batch_size, len(rows) - start)
            parts.append([part[:kept] for part in one_batch(source, chosen)])
        write_shard(workdir, i, *(np.concatenate(part) for part in zip(*parts, strict=True)))
        reporter.show({"step": i + 1})
    reporter.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    script.add_target(parser)
    script.add_workdir(parser, "where the features go")
    add("--folder", type=arguments.folder, help="pictures with captions, or in class folders")
    add("--prompts", type=arguments.file, help="prompts, one per line, for the target's own samples")
    add("--tokens", type=arguments.folder, help="folder that train.encode wrote, in place of the two")
    add(
        "--pictures",
        type=arguments.whole(0),
        help="the most to take (default: all of a folder, 1024 of tokens)",
    )
    add("--samples", type=arguments.whole(0), help="of the target itself (with prompts: one each; else 256)")
    add("--seed", type=arguments.whole(0), default=0, help="of the samples (default: 0)")
    add("--batch_size", type=arguments.whole(), default=16, help="pictures in one pass (default: 16)")
    wanted = "layers whose inputs are stored too, then the number of layers"
    add("--taps", type=arguments.wholes, default=[], help=wanted)
    add("--mesh", default="data=1", help="devices, as lantern takes them: data=2,model=4 (default: data=1)")
    add("--dtype", choices=DTYPES, help="of the target: float32, the default on a CPU, or bfloat16")
    options = parser.parse_args(argv)
    if options.tokens is not None and (options.folder or options.prompts):
        raise LanternError("--tokens stands in place of --folder and --prompts: give one or the others")
    for count, source in (("samples", "prompts"), ("pictures", "folder")):
        if options.tokens is None and getattr(options, count) and getattr(options, source) is None:
            raise LanternError(
                f"--{count} counts those of --{source}: give --{source}, or leave --{count} out"
            )
    prompts = read_prompts(options.prompts) if options.prompts else ()
    dtype, grid = parameter_dtype(options.dtype), device_grid(options.mesh)
    checkpoint = target.read_target(options.target, dtype, where_on(grid))
    taps, mesh = tuple(options.taps), mesh_of(grid)
    # Checked before pictures and captions are encoded.
    target_record(checkpoint.target_config, options.batch_size, dtype, taps, mesh)
    with working(options.workdir):
        extract(
            checkpoint, sources_of(options, checkpoint, prompts, dtype), options.workdir, seed=options.seed,
            batch_size=options.batch_size, dtype=dtype, taps=taps, mesh=mesh,
        )  # fmt: skip


def sources_of(
    options: argparse.Namespace, checkpoint: Checkpoint, prompts: Sequence[str], dtype: Any
) -> list[Source]:
    """Returns the sources of pictures that the options name."""
    if options.tokens is None:
        return prompted(
            checkpoint, options.workdir, options.folder, prompts, pictures=options.pictures,
            samples=options.samples, seed=options.seed, dtype=dtype,
        )  # fmt: skip
    count = 1024 if options.pictures is None else options.pictures
    tokens, attributes = target.read_tokens(options.tokens, "train")
    samples = 256 if options.samples is None else options.samples
    return landscapes(checkpoint, tokens[:count], attributes[:count], samples, options.seed)


if __name__ == "__main__":
    run_script(main)
