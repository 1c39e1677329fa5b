"""All methods on the same prompts: how many tokens a target pass, how fast, and what it costs in quality.

    python -m eval.methods [--model demo] [--dtype float32] [--methods a,b,c] [--pictures 200] [--batch 8]
                           [--timing-pictures 0] [--out FILE.json [--resume]] [--plot FILE.svg]

Methods are those of ``lantern_jax.methods()``, all of them unless some are named; ``name:knob=value,knob=value`` is a
variant. Every method makes the same pictures (same prompts, seeds and numbers), a batch of each in turns, so that a
slow minute of the machine slows all; plain decoding is among them whatever is asked for.

    tokens a pass     tokens after the first of each picture, a target pass
    rounds            target passes a picture
    seconds           a picture, decoding only, compiling apart; and at batch 1, picture by picture in turns
    speed-up          seconds of plain decoding of the same pictures, measured in the same turns, over seconds
    substituted       share of tokens that a relaxed rule put in place of the strict one's; and their mean distance in
                      the codebook
    same              share of tokens equal to plain decoding's
    Fréchet           distance of the pictures to fresh rendered landscapes of the same prompts (``eval.quality``),
                      with a 95 % bootstrap interval over pictures; below some hundred pictures it is mostly their
                      small number that shows
    less plain's      the difference to plain decoding's, with its interval, which is narrower: both make the same
                      prompts. The row "other seed" is plain decoding with another seed: what chance alone does

With ``--out`` every batch is kept, and with ``--resume`` what is kept there is not made again; on another device only
the table and the plot are. The checkpoint must have been trained on the rendered landscapes.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

import lantern_jax
from eval.quality import feature_reader, replicated_distances
from eval.scatter import Point, scatter
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.commands.options import DTYPES
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.io.console import Console
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json, write_file
from lantern_jax.measuring.sweep import parse_methods
from lantern_jax.metrics.distances import interval
from lantern_jax.text.landscapes import LANDSCAPES
from train.painter.landscapes import render, sample_scene

PLAIN, OTHER_SEED = "ar", "other seed"
# Of the scenes whose attributes are the prompts; reference pictures of the same attributes have other keys.
SCENES, REFERENCES = 5_000, 5_001
REFERENCES_A_PROMPT = 4
# Programs that are compiled at once.
_THREADS = 12
# Columns of text that the table takes.
WIDTH = 200


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all numbers of a run have in common; those of another setup are not resumed.

    Attributes:
        model: "demo" or a directory.
        pictures: made by each method, of as many prompts.
        batch: how many at once.
        seed: of the pictures; plain decoding's other one is the next.
        timing_pictures: decoded one by one too.
        dtype: that it decodes in. In float32 strict methods on the shared noise make plain decoding's pictures on any
            device; in bfloat16 only up to near-ties.
    """

    model: str = "demo"
    pictures: int = 200
    batch: int = 8
    seed: int = 0
    timing_pictures: int = 0
    dtype: str = "float32"


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
        self.scenes = [sample_scene(SCENES, i) for i in range(max(setup.pictures, setup.timing_pictures))]
        self.labels = LANDSCAPES.label_ids([scene.attributes for scene in self.scenes])
        self.side = checkpoint.target_config.grid * checkpoint.tokenizer_config.downsampling
        self._features: Callable | None = None

    def features(self, pictures, real: bool = False) -> np.ndarray:
        if self._features is None:
            config, params = (
                self.pipeline.checkpoint.tokenizer_config,
                self.pipeline.engine.parameters.tokenizer,
            )
            self._features = feature_reader(config, params)
        return self._features(pictures, real)

    def real(self, first: int, count: int) -> np.ndarray:
        """Fresh renderings of prompts ``first`` to ``first + count``, uint8 [count R, H, W, 3], R in a row a prompt."""
        scenes = [
            dataclasses.replace(self.scenes[i], key=(REFERENCES, REFERENCES_A_PROMPT * i + j))
            for i in range(first, first + count)
            for j in range(REFERENCES_A_PROMPT)
        ]
        return np.stack([render(scene, self.side) for scene in scenes])

    def reference(self) -> np.ndarray:
        """Features [n, R, F] of fresh renderings of the prompts."""
        features = self.features(self.real(0, self.setup.pictures), real=True)
        return features.reshape(-1, REFERENCES_A_PROMPT, features.shape[-1])

    def make(
        self, knobs: Mapping[str, Any], first: int, count: int, batch: int, seed: int
    ) -> lantern_jax.Generation:
        """Pictures ``first`` to ``first + count`` of the run."""
        labels = self.labels[first : first + count]
        return self.pipeline.generate_from(labels, first=first, batch=batch, seed=seed, **knobs)

    def why_not(self, knobs: Mapping[str, Any]) -> str:
        """Why the checkpoint cannot decode so; empty if it can."""
        try:
            self.pipeline.check("a lake", batch=self.setup.batch, **knobs)
        except ValueError as error:
            return str(error)
        return ""


def measure(
    bench: Bench, methods: Mapping[str, Mapping[str, Any]], kept: dict[str, Any], save: Callable[[], None]
) -> None:
    """Makes what ``kept`` lacks of the batches and of the single pictures of all methods; calls ``save`` after each.

    ``kept`` is filled in: "batches" and "singles" hold a list of records for every row, "compiling" seconds.
    """
    setup = bench.setup
    plans = (
        ("batches", setup.batch, setup.pictures),
        ("singles", 1, setup.timing_pictures),
    )
    rows = dict(methods)
    for part, size, total in plans:
        if part == "batches":
            rows = {PLAIN: {"method": PLAIN}, OTHER_SEED: {"method": PLAIN}, **methods}
        _warm_up(bench, rows, size, total, kept, part)
        for number, first in enumerate(range(0, total, size)):
            left = [name for name in rows if len(kept[part].setdefault(name, [])) <= number]
            if left:
                _one_turn(bench, rows, left, kept[part], first, min(size, total - first), size)
                save()


def _warm_up(bench: Bench, rows, size: int, total: int, kept, part: str) -> None:
    """Compiles what is still to be run, several at once beside an accelerator; the seconds are kept."""
    count, engine = min(size, total), bench.pipeline.engine
    left = {name: knobs for name, knobs in rows.items() if len(kept[part].get(name, ())) * size < total}
    for knobs in left.values():
        job = bench.pipeline.job(bench.pipeline.check("a lake", batch=size, **knobs))
        if job.drafter is not None:
            engine.drafter(job.drafter)

    def compiling(name: str) -> tuple[str, float]:
        made = bench.make(left[name], 0, count, size, bench.setup.seed)
        return name, made.statistics.compile_seconds

    with ThreadPoolExecutor(1 if jax.default_backend() == "cpu" else _THREADS) as pool:
        for name, seconds in pool.map(compiling, left):
            kept["compiling"][name] = round(kept["compiling"].get(name, 0.0) + seconds, 3)


def _one_turn(bench: Bench, rows, left: Sequence[str], records, first: int, count: int, size: int) -> None:
    """The same pictures by every method left, beginning with another one each time, and by plain decoding first."""
    seed, turn = bench.setup.seed, first // size
    plain = bench.make({"method": PLAIN}, first, count, size, seed)
    order = [name for name in left if name != PLAIN]
    shift = turn % max(len(order), 1)
    for name in [PLAIN] * (PLAIN in left) + order[shift:] + order[:shift]:
        made = plain
        if name != PLAIN:
            made = bench.make(rows[name], first, count, size, seed + (name == OTHER_SEED))
        records[name].append(_record(made, plain, bench.features if size > 1 or count > 1 else None))


def _record(made: lantern_jax.Generation, plain: lantern_jax.Generation, features) -> dict[str, Any]:
    """What is kept of some pictures: sums, not means."""
    run = made.statistics
    substituted = round(run.substituted * run.tokens)
    return {
        "pictures": run.pictures,
        "tokens": run.tokens,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "plain_seconds": plain.statistics.seconds,
        "substituted": substituted,
        "distance": run.mean_distance * substituted,
        "same": int(np.sum(made.tokens == plain.tokens)),
        "features": None if features is None else np.round(features(made.pictures), 6).tolist(),
    }


def summarize(records: Sequence[Mapping[str, Any]], singles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of a row but for the distance to real pictures."""
    total = {name: sum(record[name] for record in records) for name in records[0] if name != "features"}
    row = {
        "pictures": total["pictures"],
        "tokens_a_pass": (total["tokens"] - total["pictures"]) / max(total["rounds"], 1),
        "rounds": total["rounds"] / total["pictures"],
        "seconds": total["seconds"] / total["pictures"],
        "speedup": total["plain_seconds"] / total["seconds"],
        "substituted": total["substituted"] / total["tokens"],
        "distance": total["distance"] / max(total["substituted"], 1),
        "same": total["same"] / total["tokens"],
    }
    if singles:
        seconds, plain = (sum(record[name] for record in singles) for name in ("seconds", "plain_seconds"))
        row |= {"single_seconds": seconds / len(singles), "single_speedup": plain / seconds}
    return row


def evaluate(
    bench: Bench, methods: Mapping[str, Mapping[str, Any]], kept: dict[str, Any], save: Callable[[], None]
) -> list[dict[str, Any]]:
    """All rows: numbers of those that run, the reason of those that do not."""
    reasons = {name: bench.why_not(knobs) for name, knobs in methods.items()}
    able = {name: knobs for name, knobs in methods.items() if not reasons[name]}
    measure(bench, able, kept, save)
    reference, rows, distances = bench.reference(), [], {}
    for name in dict.fromkeys((PLAIN, OTHER_SEED, *methods)):
        if reasons.get(name):
            rows.append({"method": name, "reason": reasons[name]})
            continue
        records = kept["batches"][name]
        features = np.concatenate([np.asarray(record["features"]) for record in records])
        distances[name] = replicated_distances(features, reference)
        frechet, low, high = interval(distances[name])
        difference = interval(distances[name] - distances[PLAIN])
        numbers = summarize(records, kept["singles"].get(name, ()))
        compiling = kept["compiling"].get(name, 0.0)
        rows.append(
            {
                "method": name,
                **numbers,
                "compiling": compiling,
                "frechet": frechet,
                "low": low,
                "high": high,
                "less_plain": difference,
            }
        )
    return rows


def read_kept(path: Path | None, resume: bool, setup: Setup) -> dict[str, Any]:
    """What an earlier run kept, or nothing; ValueError where it had another setup or nobody wants to resume it."""
    nothing = {"setup": dataclasses.asdict(setup), "batches": {}, "singles": {}, "compiling": {}}
    if path is None or not path.exists():
        return nothing
    if not resume:
        raise LanternError(f"{path} exists: name a new file, or go on with --resume")
    kept = read_json(path, 2**28)
    if not isinstance(kept, dict) or not isinstance(kept.get("setup"), dict) or not set(nothing) <= set(kept):
        raise LanternError(f"{path} holds no numbers of eval.methods: name a new file")
    # More pictures one by one are no other setup.
    wanted = nothing["setup"] | {"timing_pictures": kept["setup"].get("timing_pictures")}
    if kept["setup"] != wanted:
        raise LanternError(f"{path} holds numbers of {kept['setup']}, not of {wanted}: name a new file")
    return kept | {"setup": nothing["setup"]}


def check_device(kept: dict[str, Any], setup: Setup, methods: Iterable[str], device: str) -> None:
    """Notes the device; ValueError where something is left to be made and the rest was made on another one."""
    batches, singles = -(-setup.pictures // setup.batch), setup.timing_pictures
    whole = all(len(kept["batches"].get(name, ())) >= batches for name in (PLAIN, OTHER_SEED, *methods))
    whole = whole and all(len(kept["singles"].get(name, ())) >= singles for name in methods)
    made_on = kept.setdefault("device", device)
    if made_on != device and not whole:
        raise LanternError(
            f"the numbers so far are of {made_on}, this is {device}: go on there, or name a new file"
        )


def show(console: Console, rows: Sequence[Mapping[str, Any]], setup: Setup) -> None:
    """Prints the table, then the methods that do not run."""
    title = f"{setup.model}, {setup.pictures} pictures, batch {setup.batch}"
    heads = [
        "method",
        "tokens a pass",
        "rounds",
        "seconds",
        "speed-up",
        "substituted",
        "distance",
        "same",
        "Fréchet",
        "less plain's",
    ]
    alone = any("single_seconds" in row for row in rows)
    table = Table(*heads, *(("batch 1, s", "speed-up") if alone else ()), title=title)
    for row in rows:
        if "reason" in row:
            continue
        cells = [
            row["method"], f"{row['tokens_a_pass']:.2f}", f"{row['rounds']:.1f}", f"{row['seconds']:.3f}",
            f"{row['speedup']:.2f}", f"{row['substituted']:.1%}", f"{row['distance']:.3f}", f"{row['same']:.1%}",
            f"{row['frechet']:.3f} [{row['low']:.3f}, {row['high']:.3f}]",
            "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["less_plain"]),
        ]  # fmt: skip
        if "single_seconds" in row:
            cells += [f"{row['single_seconds']:.3f}", f"{row['single_speedup']:.2f}"]
        table.add_row(*cells)
    console.print(table)
    for row in rows:
        if "reason" in row:
            console.print(f"{row['method']}: {row['reason']}")


def plot(rows: Sequence[Mapping[str, Any]], setup: Setup) -> str:
    """Tokens a pass against quality, with its intervals; plain decoding, under either seed, in another colour."""
    points = [
        Point(row["method"], row["tokens_a_pass"], row["frechet"], row["low"], row["high"],
              row["method"] in (PLAIN, OTHER_SEED))
        for row in rows if "reason" not in row
    ]  # fmt: skip
    x_title = "tokens a target pass (more is faster)"
    y_title = "Fréchet distance to rendered landscapes (less is better)"
    return scatter(points, f"Methods on {setup.model}, {setup.pictures} pictures each", x_title, y_title)


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=arguments.model, default="demo", help="checkpoint directory")
    parser.add_argument("--methods", default="", help="names, with knobs if need be; all when left out")
    parser.add_argument("--pictures", type=arguments.whole(), default=200, help="a method")
    parser.add_argument("--batch", type=arguments.whole(), default=8)
    parser.add_argument("--seed", type=arguments.whole(0), default=0)
    parser.add_argument(
        "--timing-pictures", type=arguments.whole(0), default=0, help="decoded one by one too"
    )
    parser.add_argument(
        "--dtype", default=Setup.dtype, choices=DTYPES, help=f"to decode in (default {Setup.dtype})"
    )
    parser.add_argument("--out", type=arguments.new_file, help="write all numbers as JSON, after every batch")
    parser.add_argument("--resume", action="store_true", help="go on with what --out holds")
    parser.add_argument("--plot", type=arguments.new_file, help="draw tokens a pass against quality as SVG")
    options = parser.parse_args(argv)
    methods = parse_methods(options.methods)
    setup = Setup(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Setup)})
    kept = read_kept(options.out, options.resume, setup)
    keep_compiled_programs()
    console, bench = Console(width=max(WIDTH, Console().width)), Bench(setup)
    check_device(kept, setup, methods, f"{jax.devices()[0].device_kind}, jax {jax.__version__}")

    def save() -> None:
        if options.out is not None:
            write_file(options.out, json.dumps(kept).encode())

    kept["methods"] = evaluate(bench, methods, kept, save)
    save()
    console.print(kept["device"])
    show(console, kept["methods"], setup)
    if options.plot is not None:
        write_file(options.plot, plot(kept["methods"], setup).encode())


if __name__ == "__main__":
    run_script(main)
