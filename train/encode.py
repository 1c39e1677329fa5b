"""Encode the built-in landscapes with a trained tokenizer: the target's training set.

    python -m train.encode --tokenizer DIR --workdir DIR [--pictures=24576] [--validation=512]

The tokenizer is the working folder of `train.tokenizer`, or a checkpoint directory that has one. Writes
WORKDIR/train.npz and WORKDIR/validation.npz, each with

    tokens      int16 [n, T], row-major codes
    attributes  int32 [n, A], the scenes' attributes as `render_batch` gives them

Pictures are rendered, encoded and forgotten; the validation pictures come from another seed.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt8

from lantern_jax.checkpoints.store import load
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import run_script
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file
from lantern_jax.models.vq import VQConfig, VQModel
from train import script
from train.loop import read_config, working
from train.rendered import rendered_chunks
from train.reports import Reporter
from train.tokenizer import export


@partial(jax.jit, static_argnums=0)
def encode_pictures(config: VQConfig, params: PyTree, pictures: UInt8[Array, "B H W 3"]) -> Int[Array, "B T"]:
    """Returns the codes of pictures, row by row; `params` are VQModel's variables."""
    return VQModel(config).apply(params, pictures, method="codes")


def encode_landscapes(
    vq: VQConfig, params: PyTree, seed: int, count: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens int16 [n, T] and attributes int32 [n, A] of landscapes 0..count-1 of a seed.

    Raises LanternError if the codebook does not fit int16.
    """
    if vq.codebook_size > 2**15:
        raise LanternError(
            f"{vq.codebook_size} codes do not fit int16, at most {2**15} do; use a smaller codebook"
        )
    tokens, attributes, reporter = [], [], Reporter(count, 0)
    for first, pictures, drawn in rendered_chunks(seed, count, size):
        tokens.append(np.asarray(encode_pictures(vq, {"params": params}, pictures)).astype(np.int16))
        attributes.append(drawn)
        reporter.show({"step": first + len(pictures)})
    reporter.close()
    return np.concatenate(tokens), np.concatenate(attributes)


def write_tokens(path: Path, tokens: np.ndarray, attributes: np.ndarray) -> None:
    """Writes both arrays into one .npz that appears whole or not at all."""
    write_file(path, lambda file: np.savez(file, tokens=tokens, attributes=attributes), parents=True)


def read_tokenizer(folder: str | Path) -> tuple[VQConfig, PyTree, int, int]:
    """Reads (sizes, VQModel's float32 parameters, seed of the landscapes, side of a picture in pixels).

    A run has its own seed and side; a checkpoint directory has seed 0 and the side that its target draws.

    Raises LanternError if the folder is neither, or the checkpoint has no tokenizer.
    """
    if (Path(folder) / "checkpoints").is_dir():
        config = read_config(folder)
        return *export(folder), config.data_seed, config.size
    checkpoint = load(folder, np.float32)
    vq = checkpoint.tokenizer_config
    if vq is None:
        raise LanternError(f"{folder} has no VQ tokenizer: give a checkpoint that was converted with one")
    side = checkpoint.target_config.grid * vq.downsampling
    return vq, checkpoint.tokenizer_params["params"], 0, side


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
    vq, params, seed, side = read_tokenizer(options.tokenizer)
    sets = (("validation", options.validation, 2), ("train", options.pictures, 0))
    with working(options.workdir):
        for name, count, offset in sets:
            path = options.workdir / f"{name}.npz"
            if not path.exists():
                write_tokens(path, *encode_landscapes(vq, params, seed + offset, count, side))


if __name__ == "__main__":
    run_script(main)
