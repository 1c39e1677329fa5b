"""``lantern info``: what a checkpoint holds, and how many pictures a device can decode with it."""

import argparse
from typing import Any

from lantern_jax.apps.commands.arguments import number
from lantern_jax.apps.commands.options import DTYPES, Command
from lantern_jax.apps.measuring.sweep import check_methods
from lantern_jax.apps.terminal.terminal import say
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# The default methods of a model with an EAGLE drafter, and of one without.
DRAFTED = ("ar", "gumbel:tree=chain", "gumbel:tree=mc_sim_7b_63", "gumbel:tree=naive_extend_57", "led")
UNDRAFTED = ("ar", "jacobi")

# The value of ``--fit`` without a number.
_NO_NUMBER = 0.0


def add(commands) -> None:
    """Adds ``info`` to a parser's commands."""
    info = Command(commands, "info", "describe a checkpoint", _run)
    info.take("model", "DIR", "checkpoint (default: the demo)", nargs="?")
    info.switch("--verbose", "show every size, setting and note of it")
    info.switch("--verify", "instead: read every file and say whether it is as it was written")
    fit = (
        "instead: how many pictures a device of this many gigabytes (1e9 bytes) decodes together, by method and tree, "
        "by shapes and a formula; nothing is read and nothing runs"
    )
    info.take("--fit", "GB", fit, type=number(above=True), nargs="?", const=_NO_NUMBER)
    info.take("--size", "NAME", "with --fit: a published size, such as llamagen-xl, in place of a checkpoint")
    there = "with --fit, in place of GB: a device that need not be here, such as v5e or h100"
    info.take("--for", "NAME", there, dest="device")
    info.take("--mesh", "data=D,model=M", "with --for: over several of them (default: one)")
    methods = f"with --fit: as `lantern bench` takes them (default: {' '.join(DRAFTED)})"
    info.take("--methods", "A", methods, nargs="+")
    info.take("--dtype", None, "with --fit: of parameters and products (default: bfloat16)", choices=DTYPES)


def _run(arguments: argparse.Namespace) -> None:
    (_describe if arguments.fit is None else _fit)(arguments)


def _describe(arguments: argparse.Namespace) -> None:
    for name in ("size", "methods", "dtype", "device", "mesh"):
        if getattr(arguments, name) is not None:
            option = "for" if name == "device" else name
            raise LanternError(f"--{option} is for --fit: give --fit with it, or leave it out")

    from lantern_jax.apps.commands.report import show_description, show_main_facts
    from lantern_jax.checkpoints.store import load_shapes, model_directory, verify

    directory = model_directory(arguments.model or "demo")
    if arguments.verify:
        say(f"{directory}: every file is as it was written ({verify(directory) / 1e6:.1f} MB)")
    else:
        (show_description if arguments.verbose else show_main_facts)(load_shapes(directory))


def _fit(arguments: argparse.Namespace) -> None:
    """Shows what fits on a device with this many gigabytes, or on the one that was named."""
    _check_fit(arguments)

    from lantern_jax.apps.commands.report import working
    from lantern_jax.apps.measuring.data_sheets import DEVICES
    from lantern_jax.apps.measuring.fitting import fit_table, largest, limit_of
    from lantern_jax.apps.measuring.shapes import checkpoint_shapes, size_shapes
    from lantern_jax.apps.terminal.console import Console
    from lantern_jax.checkpoints.store import opened
    from lantern_jax.devices.partition import mesh_sizes

    if arguments.device is None:
        limit, title, mesh = int(arguments.fit * 1e9), f"in {arguments.fit:g} GB", ()
    else:
        device = DEVICES.get(arguments.device.lower())
        if device is None:
            raise errors.unknown("device", arguments.device, DEVICES)
        sizes = mesh_sizes(arguments.mesh) if arguments.mesh else {"data": 1, "model": 1}
        limit, mesh = limit_of(device), (sizes["data"], sizes["model"], device.platform)
        name = ", ".join(filter(None, (device.name, arguments.mesh)))
        title = f"{name}: {limit / 1e9:.4g} GB of each device"
    dtype: Any = arguments.dtype or "bfloat16"
    if arguments.size is not None:
        shapes = size_shapes(arguments.size, dtype)
    else:
        shapes = checkpoint_shapes(opened(arguments.model or "demo"), dtype)
    methods = arguments.methods or (DRAFTED if "eagle" in shapes.recipe.drafters else UNDRAFTED)
    with working("counting bytes") as tell:
        found = {}
        for name in check_methods(methods):
            tell(name)
            found[name] = largest(shapes, {"method": name}, limit, *mesh)
    Console().print(fit_table(found, limit, title))


def _check_fit(arguments: argparse.Namespace) -> None:
    """Raises LanternError for options of ``--fit`` that do not go together."""
    device, numbered = arguments.device, arguments.fit != _NO_NUMBER
    if device is None and not numbered:
        raise LanternError("--fit has no number: give the device's gigabytes, or its name with --for")
    if device is None and arguments.mesh is not None:
        raise LanternError("--mesh is for --for: name a device with it, or leave it out")
    if device is not None and numbered:
        raise LanternError(f"--for {device} knows its memory: leave {arguments.fit:g} out")
    if arguments.verify:
        raise LanternError("--verify and --fit cannot be combined: give one of them")
    if arguments.size is not None and arguments.model is not None:
        raise LanternError(f"--size {arguments.size} takes no checkpoint: leave {arguments.model} out")
