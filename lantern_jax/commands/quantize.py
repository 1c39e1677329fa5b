"""``lantern quantize``: a checkpoint whose target's weights take half the memory."""

import argparse

from lantern_jax.commands.options import add_command
from lantern_jax.io.errors import LanternError
from lantern_jax.io.terminal import say


def add(commands) -> None:
    """Adds ``quantize`` to a parser's commands."""
    about = "write a checkpoint with the target's weights in eight bits"
    quantize = add_command(commands, "quantize", about, _run, "--overwrite")
    quantize.add_argument("model", metavar="MODEL", help="checkpoint directory, or demo")
    quantize.add_argument("--out", required=True, metavar="DIR", help="folder for the new checkpoint")


def _run(arguments: argparse.Namespace) -> None:
    from lantern_jax.checkpoints.store import check_new
    from lantern_jax.io.locks import sole

    check_new(arguments.out, arguments.overwrite)
    with sole(arguments.out):
        _quantize(arguments)
    say(f"wrote {arguments.out}")


def _quantize(arguments: argparse.Namespace) -> None:
    import dataclasses

    from lantern_jax.checkpoints.store import load, model_directory, save
    from lantern_jax.commands.report import working
    from lantern_jax.models.quantization import is_quantized, quantize

    directory = model_directory(arguments.model)
    if is_quantized(load(directory, abstract=True).target_params):
        raise LanternError(f"{arguments.model} has its weights in eight bits already: nothing is to be done")
    with working("quantizing") as tell:
        checkpoint = load(directory, dtype=None)
        made = dataclasses.replace(checkpoint, target_params=quantize(checkpoint.target_params))
        tell("writing")
        save(arguments.out, made, overwrite=arguments.overwrite)
