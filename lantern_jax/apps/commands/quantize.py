"""``lantern quantize``: a checkpoint whose target's weights take half the memory."""

import argparse

from lantern_jax.apps.commands.options import Command
from lantern_jax.apps.terminal.terminal import say
from lantern_jax.io.errors import LanternError


def add(commands) -> None:
    """Adds ``quantize`` to a parser's commands."""
    about = "write a checkpoint with the target's weights in eight bits"
    quantize = Command(commands, "quantize", about, _run)
    quantize.take("model", "MODEL", "checkpoint directory, or demo")
    quantize.take("--out", "DIR", "folder for the new checkpoint", required=True)
    quantize.shared("--overwrite")


def _run(arguments: argparse.Namespace) -> None:
    import dataclasses

    from lantern_jax.apps.commands.report import working
    from lantern_jax.apps.terminal.locks import sole
    from lantern_jax.checkpoints.store import check_new, load, load_shapes, model_directory, save
    from lantern_jax.models.quantization import is_quantized, quantize

    check_new(arguments.out, arguments.overwrite)
    directory = model_directory(arguments.model)
    if is_quantized(load_shapes(directory).target_params):
        raise LanternError(f"{arguments.model} has its weights in eight bits already: there is nothing to do")
    with sole(arguments.out), working("quantizing") as tell:
        checkpoint = load(directory, dtype=None)
        made = dataclasses.replace(checkpoint, target_params=quantize(checkpoint.target_params))
        tell("writing")
        save(arguments.out, made, overwrite=arguments.overwrite)
    say(f"wrote {arguments.out}")
