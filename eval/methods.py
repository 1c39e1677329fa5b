"""Methods on the same prompts: tokens per target pass, speed, and what they cost in quality, all with intervals.

    python -m eval.methods --work DIR [--model demo] [--methods A B ...] [--pictures 200] [--batch 8] [--seed 0]
                           [--dtype float32] [--minutes M] [--replicates 1000] [--out FILE.jsonl] [--plot FILE.svg]

Compares all methods of ``lantern_jax.METHODS`` unless some are named, as ``lantern generate`` takes them; another
rule follows after a space: ``--methods led "led near:tau=1"``.
Plain decoding under two seeds and every method make the same pictures (same prompts, numbers and seed), a batch of each
in turns, forwards and backwards, so that a slow minute of the machine slows all. DIR keeps what was made, by batch, and
the same command continues from there, also with more methods, beside which plain decoding is timed again; a folder of
another setup is an error. With ``--minutes`` the rows are of the batches made by then. The checkpoint must have been
trained on the painted landscapes. A row of FILE (DIR/quality.jsonl) has:

    seconds, speedup          seconds per picture, and those of plain decoding in the same call over them; compiling and
                              drawing are not counted
    tokens_a_pass             tokens after the first of each picture, per target pass
    substituted, distortion   share of tokens that a relaxed rule put in place of the strict one's, their mean distance
    frechet                   distance of the demo classifier's features to those of fresh painted landscapes of the
                              same prompts, 4 per prompt
    tokenizer_frechet         the same on the tokenizer's features (``eval.quality``), to landscapes as the tokenizer
                              reconstructs them; below a few hundred pictures it mostly shows their small number
    kid                       the kernel distance of the classifier's features to the same painted landscapes
    agreement                 the demo classifier's probability of what the prompts ask for
    *_less_plain              the same minus plain decoding's
    same_tokens, ..._pictures share equal to plain decoding's
    windows, outside          how far chance alone gets from plain decoding; the measures in which this row is further
"""

import argparse
import dataclasses
import json
import math
import platform
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

import lantern_jax
from eval.kept import PLAIN, REAL, Keeper
from eval.plots import Point, Scatter, check_plots
from eval.quality import (
    REPLICATES,
    Made,
    Measure,
    agreement_measure,
    feature_reader,
    frechet_measure,
    kernel_measure,
    rows_of,
)
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.commands.options import DTYPES
from lantern_jax.apps.measuring.measure import alternate
from lantern_jax.apps.measuring.sweep import check_methods
from lantern_jax.apps.metrics.agreement import agreement_scores, demo_features
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.apps.terminal.console import Console
from lantern_jax.decoding.methods import Method
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.devices.platform import core_count
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file
from lantern_jax.settings.tuned import digest
from lantern_jax.text.encoded import EncodedPrompts
from train.painter.landscapes import render
from train.painter.scenes import caption, sample_scene

OTHER_SEED = "other seed"
READERS = ("classifier", "tokenizer", "agreement")
# Seed of the scenes whose attributes are the prompts; reference pictures of the same attributes have other keys.
SCENES, REFERENCES = 5_000, 5_001
REFERENCES_A_PROMPT = 4
# Programs that are compiled together where an accelerator decodes.
_THREADS = 12
# Width of the table in characters.
_WIDTH = 150


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all numbers of a run have in common.

    Attributes:
        model: "demo" or a directory.
        pictures: number of pictures that each method makes, of as many prompts.
        batch: how many are decoded together.
        seed: of the pictures; plain decoding's other seed is the next.
        dtype: to decode in. In float32 strict methods on the shared noise make plain decoding's pictures on any device;
            in bfloat16 only up to near-ties.
    """

    model: str = "demo"
    pictures: int = 200
    batch: int = 8
    seed: int = 0
    dtype: str = "float32"

    @property
    def batches(self) -> int:
        """The number of batches that make all pictures."""
        return -(-self.pictures // self.batch)


class Bench:
    """A pipeline with the prompts of a run: labels [n, A] of the first scenes of ``SCENES``."""

    def __init__(self, setup: Setup, pipeline: lantern_jax.Pipeline | None = None):
        pipeline = lantern_jax.load(setup.model, setup.dtype) if pipeline is None else pipeline
        checkpoint = pipeline.checkpoint
        if not pipeline.draws or checkpoint.vocabulary != LANDSCAPES:
            raise LanternError(
                f"{setup.model} does not draw landscapes: give the demo or one trained like it"
            )
        self.setup, self.pipeline = setup, pipeline
        self.scenes = [sample_scene(SCENES, i) for i in range(setup.pictures)]
        self.labels = LANDSCAPES.label_ids([scene.indices() for scene in self.scenes])
        self.side = checkpoint.target_config.grid * checkpoint.tokenizer_config.downsampling

    @cached_property
    def features(self) -> Callable[..., np.ndarray]:
        """Reads the tokenizer's features; see ``feature_reader``."""
        parameters = self.pipeline.engine.parameters
        return feature_reader(self.pipeline.checkpoint.tokenizer_config, parameters.tokenizer)

    def rows(self, number: int) -> range:
        """Returns the places of a batch's prompts."""
        first = number * self.setup.batch
        return range(first, min(first + self.setup.batch, self.setup.pictures))

    def make(self, options: Mapping[str, Any], seed: int, number: int) -> lantern_jax.Generation:
        """Makes a batch of pictures."""
        rows, batch = self.rows(number), self.setup.batch
        labels = self.labels[rows.start : rows.stop]
        encoded = EncodedPrompts("labels", tuple(map(str, rows)), {"labels": labels})
        return self.pipeline.generate(encoded, first=rows.start, batch=batch, seed=seed, **options)

    def make_batch(self, options: Mapping[str, Any], seed: int, number: int) -> dict[str, Any]:
        """Makes a batch of pictures and returns what is kept of it."""
        made = self.make(options, seed, number)
        prompts = [caption(self.scenes[row].indices()) for row in self.rows(number)]
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
            "tokenizer": self.features(made.pictures),
            "agreement": agreement_scores().of(made.pictures, prompts)[:, None],
        }

    def read_real(self, number: int) -> dict[str, Any]:
        """Returns what is kept of fresh renderings of a batch's prompts, R consecutive ones per prompt."""
        scenes = [
            dataclasses.replace(self.scenes[row], key=(REFERENCES, REFERENCES_A_PROMPT * row + j))
            for row in self.rows(number)
            for j in range(REFERENCES_A_PROMPT)
        ]
        pictures = np.stack([render(scene, self.side) for scene in scenes])
        return {
            "classifier": demo_features().features(pictures),
            "tokenizer": self.features(pictures, real=True),
        }

    def described(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Describes a setting. Raises LanternError if the checkpoint cannot be decoded with it."""
        settings = self.pipeline.check("a lake", batch=self.setup.batch, **options)
        return settings.method.texts | {"guidance": settings.guidance, "strict": is_strict(settings)}


def is_strict(settings: lantern_jax.Settings) -> bool:
    """Tells whether decoded tokens follow the target's own distribution."""
    return settings.is_plain or (settings.rule.is_strict and settings.drafting.verifies)


def make_all(
    bench: Bench,
    settings: Mapping[str, Mapping[str, Any]],
    keeper: Keeper,
    tell: Callable[[str], None],
    minutes: float = math.inf,
) -> int:
    """Makes the batches of settings and real pictures that ``keeper`` lacks; returns how many batches all of them have.

    After ``minutes`` nothing more is begun. Plain decoding is timed again for a batch that only others lack.
    """
    batches, seed = bench.setup.batches, bench.setup.seed
    end = time.monotonic() + 60 * minutes
    lacking = {
        name: {number for number in range(batches) if not keeper.has(name, number)}
        for name in (*settings, REAL)
    }
    timed = set().union(*(lacking[name] for name in settings))
    if _compiles_beside():
        begun = [name for name in settings if minutes and (timed if name == PLAIN else lacking[name])]
        _compile(bench, {name: settings[name] for name in begun}, tell)

    def one(name: str, number: int) -> None:
        if time.monotonic() >= end:
            return
        if number in lacking[name]:
            keeper.write(name, number, makers[name](number))
        elif name == PLAIN and number in timed:
            keeper.write_plain_seconds(number, bench.make(settings[name], seed, number).statistics.seconds)
        if name == PLAIN and number in timed:
            tell(f"batch {number + 1} of {batches}")

    makers: dict[str, Callable[[int], dict[str, Any]]] = {
        name: partial(bench.make_batch, options, seed + (name == OTHER_SEED))
        for name, options in settings.items()
    }
    makers[REAL] = bench.read_real
    alternate({name: partial(one, name) for name in makers}, batches)
    whole = (all(keeper.has(name, number) for name in makers) for number in range(batches))
    return next((number for number, there in enumerate(whole) if not there), batches)


def _compiles_beside() -> bool:
    """Tells whether programs are compiled ahead: a CPU that decodes compiles each when it gets to it."""
    return jax.default_backend() != "cpu"


def _compile(bench: Bench, settings: Mapping[str, Mapping[str, Any]], tell: Callable[[str], None]) -> None:
    """Compiles every setting's programs, several together, by making a batch with each."""
    for options in settings.values():
        job = bench.pipeline.job(bench.pipeline.check("a lake", batch=bench.setup.batch, **options))
        if job.drafter is not None:
            bench.pipeline.engine.drafter(job.drafter)  # Threads would each read it.

    def compile_one(name: str) -> None:
        tell(f"compiling {name}")
        bench.make(settings[name], bench.setup.seed, 0)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(compile_one, settings))


def measures_of(real: Sequence[Mapping[str, np.ndarray]]) -> list[Measure]:
    """Returns the measures, given what was read from the real pictures."""

    def gathered(reader: str) -> np.ndarray:
        features = np.concatenate([batch[reader] for batch in real])
        return features.reshape(-1, REFERENCES_A_PROMPT, features.shape[-1])

    return [
        frechet_measure("frechet", "classifier", gathered("classifier")),
        frechet_measure("tokenizer_frechet", "tokenizer", gathered("tokenizer")),
        kernel_measure("kid", "classifier", gathered("classifier")),
        agreement_measure(),
    ]


def processor() -> str:
    """Returns the name of the devices that compute."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{len(jax.devices())} x {device.device_kind}"
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", path.read_text()) if path.exists() else None
    count = core_count()
    return f"{count} core{'s' * (count != 1)} of {found[1].strip() if found else platform.machine()}"


def table(rows: Sequence[Mapping[str, Any]], setup: Setup) -> Table:
    """Returns the rows as a table for people."""
    heads = ("method", "tokens per pass", "seconds", "speed-up", "substituted", "distance", "same tokens",
             "Fréchet, tokenizer's features", "less plain's", "outside")  # fmt: skip
    found = Table(*heads, title=f"{setup.model}, {setup.pictures} pictures, batch {setup.batch}")
    for row in rows:
        digits = {"tokens_a_pass": ".2f", "seconds": ".3f", "speedup": ".2f", "substituted": ".1%"}
        numbers = [format(row[name][0], form) for name, form in (digits | {"distortion": ".3f"}).items()]
        frechet = "{:.3f} [{:.3f}, {:.3f}]".format(*row["tokenizer_frechet"])
        less = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["tokenizer_frechet_less_plain"])
        same, outside = f"{row['same_tokens']:.1%}", ", ".join(row["outside"])
        found.add_row(row["method"], *numbers, same, frechet, less, outside)
    return found


def plot(rows: Sequence[Mapping[str, Any]], setup: Setup) -> Scatter:
    """Returns tokens per pass against quality; plain decoding, under either seed, is in another colour."""
    title = f"Methods on {setup.model}, {setup.pictures} pictures each"
    points = [
        Point(row["method"], row["tokens_a_pass"][0], *row["tokenizer_frechet"], row["method"] in (PLAIN, OTHER_SEED))
        for row in rows
    ]  # fmt: skip
    x_title = "tokens per target pass (more is faster)"
    return Scatter(title, x_title, "Fréchet distance to rendered landscapes (less is better)", points)


def named_settings(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns options by the text that describes them, of all methods for none; raises LanternError for a wrong one."""
    found = {}
    for text in texts or check_methods(()):
        method, _, rule = text.partition(" ")
        found[text] = {"method": method} | ({"rule": rule} if rule else {})
        Method.of(**found[text])
    return found


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the script's options."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--work", type=arguments.working_folder, required=True, help="folder for what is made")
    add("--model", type=arguments.model, default="demo", help="checkpoint directory")
    add("--methods", nargs="+", default=(), help="each with its rule if need be; all when left out")
    add("--pictures", type=arguments.whole(), default=200, help="per setting (default: 200)")
    add("--batch", type=arguments.whole(), default=8, help="decoded together (default: 8)")
    add("--seed", type=arguments.whole(0), default=0, help="of the pictures (default: 0)")
    add("--dtype", default=Setup.dtype, choices=DTYPES, help=f"to decode in (default: {Setup.dtype})")
    add("--replicates", type=arguments.whole(), default=REPLICATES, help="of the bootstrap and of swaps")
    add("--minutes", type=arguments.number(), default=math.inf, help="then compare what all have")
    add("--out", type=arguments.new_file, help="file for the rows (default: DIR/quality.jsonl)")
    add("--plot", type=arguments.new_file, help="draw tokens per pass against quality as SVG")
    options = parser.parse_args(argv)
    options.methods = named_settings(options.methods)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Makes what is missing, compares and writes."""
    options = read_options(argv)
    if options.plot is not None:
        check_plots()
    setup = Setup(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Setup)})
    keep_compiled_programs()
    bench, settings, rows = Bench(setup), {}, {}
    plain = {name: {"method": PLAIN} for name in (PLAIN, OTHER_SEED)}
    for name, way in (plain | options.methods).items():
        try:
            rows[name], settings[name] = bench.described(way), way
        except LanternError as error:
            print(f"left out: {name}: {error}", flush=True)
    versions = {"jax": jax.__version__, "lantern_jax": lantern_jax.__version__}
    machine = {"device": processor(), "dtype": str(bench.pipeline.dtype), "versions": versions}
    common = machine | {"classifier": demo_features().name, "checkpoint": digest(bench.pipeline.checkpoint)}
    keeper = Keeper(options.work, dataclasses.asdict(setup) | common)
    count = make_all(bench, settings, keeper, partial(print, flush=True), options.minutes)
    if count * setup.batch < 2:
        raise LanternError(f"{options.work} has no batch that all settings have yet: give it more --minutes")
    made = {name: Made.of(keeper.read(name, count), READERS) for name in settings}
    measures = measures_of(keeper.read(REAL, count))
    numbers = rows_of(made, PLAIN, OTHER_SEED, measures, options.replicates)
    common |= {"kind": "quality", "model": setup.model, "batch": setup.batch, "seed": setup.seed}
    common["command"] = (
        f"python -m eval.methods --work DIR --methods {shlex.join(options.methods)} --pictures {setup.pictures} "
        f"--batch {setup.batch} --seed {setup.seed} --dtype {setup.dtype}"
    )
    lines = [{"method": name} | rows[name] | numbers[name] | common for name in settings]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_file(options.out or options.work / "quality.jsonl", text, parents=True)
    Console(width=max(_WIDTH, Console().width)).print(table(lines, setup))
    if options.plot is not None:
        write_file(options.plot, plot(lines, setup).draw())


if __name__ == "__main__":
    run_script(main)
