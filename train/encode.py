"""Encode the built-in landscapes with a trained tokenizer: the target's training set.

    python -m train.encode --tokenizer DIR --workdir DIR [--pictures=24576] [--validation=512]

The tokenizer is the working folder of `train.tokenizer`, or a checkpoint directory that has one. Writes
WORKDIR/train.npz and WORKDIR/validation.npz, each with

    tokens      int16 [n, T], row-major codes
    attributes  int32 [n, A], the scenes' attributes as `render_batch` gives them

Pictures are rendered, encoded and forgotten; the validation pictures come from another seed. A killed run goes on after
its last part. What determines the files, the tokenizer's weights included, is noted beside them (`train.claims`): if
anything differs, the folder is refused.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt8

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.checkpoints.store import load
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_arrays, write_file
from lantern_jax.models.vq import VQConfig, VQModel
from train import script
from train.claims import claim, parameters_digest
from train.loop import read_config, working
from train.rendered import rendered_chunks
from train.reports import Reporter
from train.tokenizer import export

# Landscapes per part.
PART = 2048


class Tokenizer(NamedTuple):
    """A trained tokenizer, and the landscapes that it is for.

    Attributes:
        config: its sizes.
        params: of `VQModel`, float32.
        seed: of the landscapes: a run's own; 0 for a checkpoint directory.
        side: of a picture in pixels: a run's own; for a checkpoint directory, what its target draws.
    """

    config: VQConfig
    params: PyTree
    seed: int
    side: int


@partial(jax.jit, static_argnums=0)
def encode_pictures(config: VQConfig, params: PyTree, pictures: UInt8[Array, "B H W 3"]) -> Int[Array, "B T"]:
    """Returns the codes of pictures, row by row; `params` are VQModel's variables."""
    return VQModel(config).apply(params, pictures, method="codes")


def encode_landscapes(tokenizer: Tokenizer, seed: int, numbers: range) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens int16 [n, T] and attributes int32 [n, A] of a seed's landscapes `numbers`, which are consecutive.

    Raises LanternError if the codebook does not fit int16.
    """
    vq = tokenizer.config
    if vq.codebook_size > 2**15:
        raise LanternError(
            f"{vq.codebook_size} codes do not fit int16, at most {2**15} do; use a smaller codebook"
        )
    tokens, attributes, reporter = [], [], Reporter(numbers.stop, numbers.start)
    chunks = rendered_chunks(seed, numbers.stop, tokenizer.side, start=numbers.start)
    for first, pictures, drawn in chunks:
        codes = encode_pictures(vq, {"params": tokenizer.params}, pictures)
        tokens.append(np.asarray(codes).astype(np.int16))
        attributes.append(drawn)
        reporter.show({"step": first + len(pictures)})
    reporter.close()
    return np.concatenate(tokens), np.concatenate(attributes)


def encode_set(tokenizer: Tokenizer, seed: int, count: int, path: Path) -> None:
    """Writes landscapes 0..count-1 of a seed to `path`, by way of parts that need no encoding again after a kill."""
    parts = [range(first, min(first + PART, count)) for first in range(0, count, PART)]
    files = [path.with_name(f"{path.stem}_{part.start}_{part.stop}.npz") for part in parts]
    for part, file in zip(parts, files, strict=True):
        if not file.exists():
            write_tokens(file, *encode_landscapes(tokenizer, seed, part))
    made = [read_arrays(file) for file in files]
    write_tokens(path, *(np.concatenate([arrays[n] for arrays in made]) for n in ("tokens", "attributes")))
    for file in files:
        file.unlink()


def write_tokens(path: Path, tokens: np.ndarray, attributes: np.ndarray) -> None:
    """Writes both arrays into one .npz that appears whole or not at all."""
    arrays = {"tokens": tokens, "attributes": attributes}
    write_file(path, lambda file: np.savez(file, **arrays), parents=True)


def claims(tokenizer: Tokenizer, **counts: int) -> dict[str, str]:
    """Returns, for `claim`, all that determines a tokenizer's tokens of its landscapes; `counts` are theirs by name."""
    weights = f"{tokenizer.config} {parameters_digest(tokenizer.params)}"
    landscapes = {name: getattr(tokenizer, name) for name in ("seed", "side")}
    return {name: str(value) for name, value in {"tokenizer": weights, **landscapes, **counts}.items()}


def read_tokenizer(folder: str | Path) -> Tokenizer:
    """Reads the tokenizer of a run's working folder, or of a checkpoint directory.

    Raises LanternError if the folder is neither, or the checkpoint has no tokenizer.
    """
    if (Path(folder) / "checkpoints").is_dir():
        config = read_config(folder)
        return Tokenizer(*export(folder), config.data_seed, config.size)
    checkpoint = load(folder, np.float32)
    vq = checkpoint.tokenizer_config
    if vq is None:
        raise LanternError(f"{folder} has no VQ tokenizer: give a checkpoint that was converted with one")
    side = checkpoint.target_config.grid * vq.downsampling
    return Tokenizer(vq, checkpoint.tokenizer_params["params"], 0, side)


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    add(
        "--tokenizer",
        type=arguments.folder,
        required=True,
        help="working folder of the tokenizer's run, or a checkpoint directory",
    )
    script.add_workdir(parser, "where the token files go")
    add("--pictures", type=arguments.whole(), default=24576, help="training pictures (default: 24576)")
    add(
        "--validation",
        type=arguments.whole(),
        default=512,
        help="validation pictures, of another seed (default: 512)",
    )
    options = parser.parse_args(argv)
    tokenizer = read_tokenizer(options.tokenizer)
    sets = (("validation", options.validation, 2), ("train", options.pictures, 0))
    with working(options.workdir):
        decided = claims(tokenizer, pictures=options.pictures, validation=options.validation)
        claim(options.workdir, decided)
        for name, count, offset in sets:
            path = options.workdir / f"{name}.npz"
            if not path.exists():
                encode_set(tokenizer, tokenizer.seed + offset, count, path)


if __name__ == "__main__":
    run_script(main)
