"""Quality against speed on the demo, with intervals: the rows of docs/results that speak of pictures.

    python -m eval.quality_runs --work DIR [--methods a,b:knob=value] [--pictures 1000] [--batch 8]
                                [--dtype float32] [--out FILE.jsonl]

Plain decoding under two seeds, and every method named, make the same pictures: same prompts, numbers and seed, a batch
of each in turns, forwards and backwards, so that a slow minute of the machine slows all. Methods are written as for
``eval.methods``. What was made is kept in DIR by batch, and the same command goes on from there; DIR of another setup
is an error. With ``--minutes`` the rows are of the batches made by then. A row of FILE has, each number with a 95 %
interval (see ``eval.quality_numbers``):

    speedup                   seconds of plain decoding over seconds; compiling and drawing apart
    tokens_a_pass             tokens after the first of each picture, a target pass
    substituted, distortion   share of tokens that a relaxed rule put in place of the strict one's, their mean distance
    frechet                   distance of the demo classifier's features to those of fresh painted landscapes of the
                              same prompts, 4 a prompt
    tokenizer_frechet         the same on the tokenizer's features, to landscapes as the tokenizer reconstructs them
                              (``eval.quality``)
    kid                       the kernel distance of the classifier's features to the same painted landscapes
    agreement                 the demo classifier's probability of what the prompts ask for
    *_less_plain              the same less plain decoding's
    same_tokens, ..._pictures share equal to plain decoding's
    windows, outside          how far from plain decoding's chance alone gets; the measures by which this row is further
"""

import argparse
import dataclasses
import json
import math
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import numpy as np

import lantern_jax
from eval.methods import OTHER_SEED, PLAIN, REFERENCES_A_PROMPT, Bench, Setup, parse_methods
from eval.quality_numbers import (
    REPLICATES,
    SWAPS,
    Made,
    Measure,
    agreement_measure,
    frechet_measure,
    kernel_measure,
    rows_of,
)
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.commands.options import DTYPES
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.devices.platform import core_count
from lantern_jax.io.archives import read_arrays
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json, write_file
from lantern_jax.measuring.alternate import alternate
from lantern_jax.metrics.agreement import agreement_scores, demo_features
from train.painter.landscapes import caption

METHODS = "led,gumbel,lantern-g:lam=2,led:rule=lantern++,lam=2,near"
REAL = "real"
READERS = ("classifier", "tokenizer", "agreement")


class Keeper:
    """What is kept of a run: a file for every batch of a setting, under the run's setup.

    Raises:
        ValueError: the folder holds another setup's.
    """

    def __init__(self, folder: Path, setup: Mapping[str, Any]):
        self.folder, path = folder, folder / "setup.json"
        if path.exists():
            kept = read_json(path, 2**20)
            if kept != setup:
                changed = ", ".join(name for name in setup if kept.get(name) != setup[name])
                raise LanternError(f"{folder} holds pictures of another setup ({changed}): name a new folder")
        else:
            write_file(path, json.dumps(setup, indent=1) + "\n", parents=True)

    def path(self, setting: str, number: int) -> Path:
        return self.folder / f"{quote(setting, safe='')}-{number:05d}.npz"

    def has(self, setting: str, number: int) -> bool:
        return self.path(setting, number).exists()

    def write(self, setting: str, number: int, arrays: Mapping[str, Any]) -> None:
        write_file(self.path(setting, number), lambda file: np.savez_compressed(file, **arrays))

    def read(self, setting: str, number: int) -> dict[str, np.ndarray]:
        return read_arrays(self.path(setting, number))


def make_batch(bench: Bench, knobs: Mapping[str, Any], seed: int, number: int) -> dict[str, Any]:
    """A batch of pictures, and what is kept of it."""
    first = number * bench.setup.batch
    count = min(bench.setup.batch, bench.setup.pictures - first)
    made = bench.make(knobs, first, count, bench.setup.batch, seed)
    prompts = [caption(scene.attributes) for scene in bench.scenes[first : first + count]]
    run = made.statistics
    substituted = round(run.substituted * run.tokens)
    return {
        "pictures": run.pictures,
        "sampled": run.tokens,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "substituted": substituted,
        "distance": run.mean_distance * substituted,
        "tokens": made.tokens.astype(np.int32),
        "classifier": demo_features().features(made.pictures),
        "tokenizer": bench.features(made.pictures),
        "agreement": agreement_scores().of(made.pictures, prompts)[:, None],
    }


def read_real(bench: Bench, number: int) -> dict[str, Any]:
    """What is kept of the real pictures of a batch's prompts."""
    first = number * bench.setup.batch
    pictures = bench.real(first, min(bench.setup.batch, bench.setup.pictures - first))
    return {
        "classifier": demo_features().features(pictures),
        "tokenizer": bench.features(pictures, real=True),
    }


def make_all(
    bench: Bench,
    settings: Mapping[str, Mapping[str, Any]],
    keeper: Keeper,
    tell: Callable[[str], None],
    minutes: float = math.inf,
) -> int:
    """Makes what ``keeper`` lacks of all settings and of the real pictures; the number of batches that all have.

    After so many minutes nothing more is begun.
    """
    batches, seed = -(-bench.setup.pictures // bench.setup.batch), bench.setup.seed
    end = time.monotonic() + 60 * minutes

    def one(name: str, number: int) -> None:
        if not keeper.has(name, number) and time.monotonic() < end:
            keeper.write(name, number, makers[name](number))
            if name == PLAIN:
                tell(f"batch {number + 1} of {batches}")

    makers: dict[str, Callable[[int], dict[str, Any]]] = {
        name: partial(make_batch, bench, knobs, seed + (name == OTHER_SEED))
        for name, knobs in settings.items()
    }
    for name, make in makers.items():
        if time.monotonic() < end and not all(keeper.has(name, number) for number in range(batches)):
            tell(f"compiling {name}")
            make(0)
    makers[REAL] = partial(read_real, bench)
    alternate({name: partial(one, name) for name in makers}, batches)
    lacking = (number for number in range(batches) if not all(keeper.has(name, number) for name in makers))
    return next(lacking, batches)


def measures_of(real: Sequence[Mapping[str, np.ndarray]]) -> list[Measure]:
    """The measures, given what was read of the real pictures."""

    def gathered(reader: str) -> np.ndarray:
        features = np.concatenate([batch[reader] for batch in real])
        return features.reshape(-1, REFERENCES_A_PROMPT, features.shape[-1])

    return [
        frechet_measure("frechet", "classifier", gathered("classifier")),
        frechet_measure("tokenizer_frechet", "tokenizer", gathered("tokenizer")),
        kernel_measure("kid", "classifier", gathered("classifier")),
        agreement_measure(),
    ]


def described(bench: Bench, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """What a setting is, for its row."""
    settings = bench.pipeline.check("a lake", batch=bench.setup.batch, **knobs)
    strict = settings.is_plain or (settings.rule == "strict" and settings.drafting != "zipar")
    return {"coupling": settings.coupling, "rule": settings.rule, "guidance": settings.guidance} | {
        "strict": strict
    }


def processor() -> str:
    """What computes, in words."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{len(jax.devices())} x {device.device_kind}"
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", path.read_text()) if path.exists() else None
    count = core_count()
    return f"{count} core{'s' * (count != 1)} of {found[1].strip() if found else platform.machine()}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=arguments.working_folder, required=True, help="folder for what was made; goes on there"
    )
    parser.add_argument(
        "--out", type=arguments.new_file, help="file for the rows; DIR/quality.jsonl when left out"
    )
    parser.add_argument("--methods", default=METHODS, help=f"with knobs if need be (default {METHODS})")
    parser.add_argument("--model", type=arguments.model, default="demo", help="checkpoint directory")
    parser.add_argument("--pictures", type=arguments.whole(), default=1000, help="a setting")
    parser.add_argument("--batch", type=arguments.whole(), default=8)
    parser.add_argument("--seed", type=arguments.whole(0), default=0)
    parser.add_argument(
        "--dtype", default=Setup.dtype, choices=DTYPES, help=f"to decode in (default {Setup.dtype})"
    )
    parser.add_argument(
        "--replicates", type=arguments.whole(), default=REPLICATES, help="of the bootstrap and of swaps"
    )
    parser.add_argument(
        "--minutes",
        type=arguments.number(finite=False),
        default=math.inf,
        help="then stop, and compare what all have",
    )
    options = parser.parse_args(argv)
    setup = Setup(options.model, options.pictures, options.batch, options.seed, dtype=options.dtype)
    settings = {PLAIN: {"method": PLAIN}, OTHER_SEED: {"method": PLAIN}} | parse_methods(options.methods)
    keep_compiled_programs()
    bench = Bench(setup)
    rows = {name: described(bench, knobs) for name, knobs in settings.items()}
    versions = {"jax": jax.__version__, "lantern_jax": lantern_jax.__version__}
    machine = {"device": processor(), "dtype": str(bench.pipeline.dtype), "versions": versions}
    reader = {"classifier": demo_features().name}
    keeper = Keeper(options.work, dataclasses.asdict(setup) | machine | reader)
    batches = make_all(bench, settings, keeper, partial(print, flush=True), options.minutes)
    if batches * setup.batch < 2:
        raise LanternError(f"{options.work} has no batch that all settings have yet: give it more --minutes")
    made = {
        name: Made.of([keeper.read(name, number) for number in range(batches)], READERS) for name in settings
    }
    measures = measures_of([keeper.read(REAL, number) for number in range(batches)])
    numbers = rows_of(made, PLAIN, OTHER_SEED, measures, options.replicates, min(options.replicates, SWAPS))
    command = (
        f"python -m eval.quality_runs --methods {options.methods} --pictures {setup.pictures} "
        f"--batch {setup.batch} --seed {setup.seed} --dtype {setup.dtype}"
    )
    common = {"kind": "quality", "model": setup.model, "batch": setup.batch, "seed": setup.seed}
    lines = [
        json.dumps(
            common | {"method": name} | rows[name] | numbers[name] | reader | machine | {"command": command}
        )
        for name in settings
    ]
    write_file(options.out or options.work / "quality.jsonl", "\n".join(lines) + "\n", parents=True)


if __name__ == "__main__":
    run_script(main)
