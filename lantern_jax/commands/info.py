"""``lantern info``: what a checkpoint holds, and how much of it a device would."""

import argparse

from lantern_jax.commands.arguments import number
from lantern_jax.commands.options import DTYPES, Command
from lantern_jax.io.errors import LanternError
from lantern_jax.io.terminal import say

# Of a model that has an EAGLE drafter, and of one that has none.
DRAFTED = "ar,gumbel:tree=chain,gumbel:tree=mc_sim_7b_63,gumbel:tree=naive_extend_57,led"
UNDRAFTED = "ar,jacobi"


def add(commands) -> None:
    """Adds ``info`` to a parser's commands."""
    info = Command(commands, "info", "describe a checkpoint", _run)
    info.take("model", "DIR", "checkpoint (default: the demo)", nargs="?")
    info.switch("--verify", "instead: read every file and say whether it is as it was written")
    fit = (
        "instead: how many pictures a device of this many gigabytes (1e9 bytes) decodes together, by method and tree, "
        "as the compiler counts; nothing is read and nothing runs"
    )
    info.take("--fit", "GB", fit, type=number(above=True))
    info.take("--size", "NAME", "with --fit: a published size, such as llamagen-xl, in place of a checkpoint")
    info.take("--methods", "LIST", f"with --fit: as `lantern bench` takes them (default: {DRAFTED})")
    info.take("--dtype", None, "with --fit: of parameters and products (default: bfloat16)", choices=DTYPES)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.fit is None:
        _describe(arguments)
    else:
        _fit(arguments)


def _describe(arguments: argparse.Namespace) -> None:
    for name in ("size", "methods", "dtype"):
        if getattr(arguments, name) is not None:
            raise LanternError(f"--{name} is for --fit: give --fit GB with it, or leave it out")

    from lantern_jax.checkpoints.store import describe, load, model_directory, verify
    from lantern_jax.commands.report import show_description

    directory = model_directory(arguments.model or "demo")
    if not arguments.verify:
        show_description(describe(load(directory, abstract=True)))
        return
    size = verify(directory)
    say(f"{directory}: every file is as it was written ({size / 1e6:.1f} MB)")


def _fit(arguments: argparse.Namespace) -> None:
    if arguments.verify:
        raise LanternError("--verify reads a checkpoint's files, --fit none: give one of them")
    if arguments.size is not None and arguments.model is not None:
        raise LanternError(f"--size {arguments.size} takes no checkpoint: leave {arguments.model} out")

    from lantern_jax.checkpoints.store import load, model_directory
    from lantern_jax.commands.report import working
    from lantern_jax.devices.compilation import keep_compiled_programs
    from lantern_jax.io.console import Console
    from lantern_jax.measuring.fit import checkpoint_shapes, largest, size_shapes
    from lantern_jax.measuring.sweep import parse_methods
    from lantern_jax.measuring.tables import fit_table

    keep_compiled_programs()
    dtype = arguments.dtype or "bfloat16"
    if arguments.size is not None:
        shapes = size_shapes(arguments.size, dtype)
    else:
        shapes = checkpoint_shapes(load(model_directory(arguments.model or "demo"), abstract=True), dtype)
    methods = parse_methods(
        arguments.methods or (DRAFTED if "eagle" in shapes.recipe.drafters else UNDRAFTED)
    )
    jobs = {name: shapes.job(knobs) for name, knobs in methods.items()}
    found = {}
    with working("compiling for shapes") as tell:
        for name, job in jobs.items():
            tell(name)
            found[name] = largest(shapes, job, int(arguments.fit * 1e9))
    Console().print(fit_table(found, arguments.fit))
