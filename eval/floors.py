"""Prints what models cost by devices' data sheets: pictures together, passes, seconds. Nothing is read or run.

    python -m eval.floors [--sizes janus-pro-7b,emu3-8b] [--devices v5e,h100]

A picture has two rows of cache, conditional and unconditional. Pictures together: the memory left beside the
parameters, in bfloat16, divided by those rows. A plain step of one picture takes at least as long as reading the
parameters it uses and the cache at the data sheet's bandwidth (on average half the cache, where attention stops at the
filled part: GPUs). The window is the one that `auto` would choose without a drafter, and its passes cost and give what
`settings.auto` expects of a checkpoint that says nothing.
"""

import argparse
from collections.abc import Sequence

import jax
import numpy as np

from eval.ahead.sheets import SHEETS
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.measuring.data_sheets import DEVICES, GPU, Device
from lantern_jax.apps.measuring.fitting import limit_of
from lantern_jax.apps.measuring.random_models import published_sizes
from lantern_jax.apps.measuring.shapes import Shapes, batch_inputs, size_of, size_shapes
from lantern_jax.families.registry import TargetConfig
from lantern_jax.io import errors
from lantern_jax.models.vq import vq_shapes
from lantern_jax.settings.auto import choose

MODELS = (
    "janus-pro-1b",
    "janus-pro-7b",
    "janus-pro-7b-int8",
    "liquid-7b",
    "lumina-7b",
    "lumina2-7b",
    "lumina2-7b-int8",
    "emu3-8b",
    "emu3-8b-int8",
)
CHIPS = ("v5e", "v6e", "a100", "h100")
BFLOAT16 = jax.numpy.dtype("bfloat16")
# Parameters that a pass does not read, by names in their paths: tables of which it takes a few rows, and those that
# only prefill reads.
NOT_READ = ("tokens", "labels", "caption")

HEADS = (
    "model",
    "device",
    "pictures together, at most",
    "plain s",
    "window of auto",
    "tokens per pass",
    "passes",
    "window s",
)


def table(models: Sequence[str] = MODELS, devices: Sequence[str] = CHIPS) -> str:
    """Returns the table in Markdown, with a row for every model on every device that holds a picture of it."""
    rows = [HEADS, ["---"] * len(HEADS), *(row for name in models for row in rows_of(name, devices))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def rows_of(name: str, devices: Sequence[str]) -> list[list[str]]:
    """Returns the rows of a model."""
    shapes = size_shapes(name, BFLOAT16)
    target = batch_inputs(shapes, shapes.job({"method": "ar"}), 1).target_params
    read = size_of([
        leaf for path, leaf in jax.tree_util.tree_leaves_with_path(target)
        if not any(getattr(key, "key", None) in NOT_READ for key in path)
    ])  # fmt: skip
    kept = size_of(target) + (0 if shapes.tokenizer is None else size_of(vq_shapes(shapes.tokenizer)))
    made = [(device, on_device(shapes, read, kept, DEVICES[device])) for device in devices]
    return [[name, device, *cells] for device, cells in made if cells]


def cache_of(config: TargetConfig) -> float:
    """Returns the bytes of keys and values of a picture's two rows, without prompts."""
    layer = config.transformer
    return (
        2 * 2 * config.num_layers * layer.key_heads * layer.head_dim * config.num_tokens * BFLOAT16.itemsize
    )


def on_device(shapes: Shapes, read: int, kept: int, device: Device) -> list[str]:
    """Returns a device's cells: pictures together; one picture plainly and by a window; no cells if no picture fits.

    Args:
        read: bytes of parameters that a pass reads.
        kept: bytes of all parameters.
    """
    cache, free = cache_of(shapes.recipe.config), int(np.sum(shapes.recipe.target().forced < 0))
    together = int((limit_of(device) - kept) / cache)
    if together < 1:
        return []
    step = (read + (0.5 if device.platform == GPU else 1.0) * cache) / SHEETS[device.name].bandwidth
    window, _ = choose("gpu" if device.platform == GPU else "tpu", BFLOAT16.itemsize, 2, {}, False)
    passes = free / window.tokens
    return [
        f"{together}", f"{free * step:.1f}", window.method, f"{window.tokens:.2f}", f"{passes:.0f}",
        f"{passes * window.cost * step:.1f}",
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=arguments.words, default=MODELS, help="published sizes")
    parser.add_argument("--devices", type=arguments.words, default=CHIPS, help="of the data sheets")
    options = parser.parse_args(argv)
    for name in options.devices:
        if name not in DEVICES:
            raise errors.unknown("device", name, DEVICES)
    for name in options.sizes:
        if name.removesuffix("-int8") not in published_sizes():
            raise errors.unknown("size", name, published_sizes())
    print(table(options.sizes, options.devices))


if __name__ == "__main__":
    run_script(main)
