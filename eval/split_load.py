"""A large checkpoint read onto devices that share it: what that takes of the host's memory, and that it decodes.

    python -m eval.split_load [--size chameleon-7b] [--mesh model=4] [--rounds 3] [--folder DIR] [--out FILE.json]

The checkpoint has the size's shapes and random weights in bfloat16; it is written by a process of its own, into a
temporary folder or, to be used again, into ``--folder``. Another process reads it onto as many devices of this
machine's CPU, whose memory is the host's: reading should take its bytes and little more. Then a few rounds of plain
decoding and of ``jacobi``, whose windows need no drafter.

    bytes       of the parameters
    peak        the most memory that reading took beyond what the process had before, over those bytes
    a device    bytes of the parameters on each
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

import lantern_jax
from lantern_jax.checkpoints.store import Checkpoint, save
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.devices.mesh import mesh_sizes
from lantern_jax.families.registry import family_of
from lantern_jax.io.files import write_file
from lantern_jax.measuring.random_models import random_conditioning, random_model

# Weights repeat after so many: drawing all of them anew would take longer than the rest.
_DRAWN = 1 << 24
_SPREAD = 0.02


def write(size: str, folder: Path) -> None:
    """The checkpoint, into a new folder."""
    config = random_model(size).config
    block = np.random.default_rng(0).normal(0, _SPREAD, _DRAWN).astype(jax.numpy.bfloat16)

    def leaf(shape: jax.ShapeDtypeStruct) -> np.ndarray:
        return np.ones(shape.shape, block.dtype) if len(shape.shape) < 2 else np.resize(block, shape.shape)

    params = jax.tree.map(leaf, family_of(config).shapes(config))
    save(folder, Checkpoint(model=f"random {size}", target_config=config, target_params=params))


def peak_memory() -> int:
    """The most bytes that this process has had so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read(folder: Path, mesh: str, rounds: int) -> dict:
    """Reads the checkpoint onto a mesh of this process's devices and decodes a little."""
    pipeline = lantern_jax.load(folder, "bfloat16", mesh=mesh)
    jax.block_until_ready(jax.numpy.zeros(8))
    before, began = peak_memory(), time.perf_counter()
    leaves = jax.tree.leaves(pipeline.engine.parameters.target)
    seconds, peak = time.perf_counter() - began, peak_memory() - before
    total = sum(leaf.nbytes for leaf in leaves)
    held = [
        sum(leaf.addressable_shards[number].data.nbytes for leaf in leaves)
        for number in range(pipeline.engine.devices.size)
    ]
    report = {
        "bytes": total,
        "peak": peak / total,
        "a_device": held,
        "seconds_to_read": seconds,
        "methods": {},
    }
    conditioning = random_conditioning(pipeline.checkpoint.target_config, 1)
    for method in ("ar", "jacobi"):
        job = pipeline.job(pipeline.settings({"method": method, "batch": 1}))
        run = pipeline.engine.start(job, conditioning, seed=0, most=1)
        begun = run.timing.decoding
        run = pipeline.engine.advance(run, rounds)
        decoded = pipeline.engine.finish(run)
        report["methods"][method] = {
            "rounds": int(decoded.rounds.max()),
            "tokens": int(run.lengths[0]),
            "seconds_a_round": (run.timing.decoding - begun) / rounds,
            "finite": bool(decoded.finite.all()),
        }
    return report


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="chameleon-7b")
    parser.add_argument("--mesh", default="model=4")
    parser.add_argument("--rounds", type=arguments.whole(), default=3)
    parser.add_argument("--folder", type=arguments.working_folder)
    parser.add_argument("--out", type=arguments.new_file)
    parser.add_argument("--part", choices=("write", "read"), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.part == "write":
        return write(given.size, given.folder)
    if given.part == "read":
        return print(json.dumps(read(given.folder, given.mesh, given.rounds)))
    random_model(given.size)
    devices = math.prod(mesh_sizes(given.mesh).values())
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary) / "checkpoint"
        line = [sys.executable, "-m", "eval.split_load", "--size", given.size, "--folder", str(folder)]
        if not folder.exists():
            subprocess.run([*line, "--part", "write"], check=True)
        line += ["--mesh", given.mesh, "--rounds", str(given.rounds), "--part", "read"]
        done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    report = {"size": given.size, "mesh": given.mesh, **json.loads(done.stdout.splitlines()[-1])}
    text = json.dumps(report, indent=1) + "\n"
    print(text, end="")
    if given.out is not None:
        write_file(given.out, text)
    return None


if __name__ == "__main__":
    run_script(main)
