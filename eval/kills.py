"""Commands and training stages that are ended at random moments and gone on with, against the same let run.

    python -m eval.kills --demo DIR [--kills 5] [--interrupts 2] [--terminations 2] [--only NAME,NAME] [--seed 0]
                         [--out FILE.json]

``--demo`` is the working folder of a finished ``python -m train.demo --experiment tiny``, which the stages read. In a
round a command gets the signals one after the other, each after a random time and followed by the same command; then it
is let run. Wanted: one line and the status of the signal, the files of the undisturbed run, nothing besides.
"""

import argparse
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.tree import leaves

from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file
from train.painter.landscapes import render_batch

# A tokenizer that compiles sooner.
SMALLER = ("--config.model.mid_attention=False", "--config.loss.pyramid_levels=1")
# Seconds within which a signal comes at most, also where a first run, which compiles, takes longer.
MOST_SECONDS = 15.0
# At most, a command: signals that came once it was done are tried again.
ROUNDS = 6
NAMES = {signal.SIGKILL: "kill -9", signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@dataclasses.dataclass(frozen=True)
class Work:
    """One command.

    Attributes:
        words: of its line after ``python -m``, for a folder or file that it may make.
        again: more words once it was ended.
        trained: whether it is a training run, whose checkpoint is compared by its arrays.
        timed: whether it writes times, of which the names alone are compared.
        suffix: of the file, where it makes one that has to have it.
    """

    words: Callable[[Path], Sequence[str]]
    again: Sequence[str] = ()
    trained: bool = False
    timed: bool = False
    suffix: str = ""


def prepare(place: Path) -> None:
    """Writes what commands read besides the demo: prompts, pictures, a model with random weights as it is published."""
    (place / "prompts.txt").write_text("a lake\na forest\na lake at night\na foggy forest\nmountains\n")
    for seed, name in enumerate(("made.npz", "real.npz")):
        np.savez(place / name, arr_0=render_batch(seed, range(100), 128)[0])
    writer = ["tests.fixtures.published_layouts", "t2i-hf", "--model", "B", "--out", str(place / "gpt")]
    subprocess.run([sys.executable, "-m", *writer], check=True, stdout=subprocess.DEVNULL)


def works(demo: Path, place: Path) -> Mapping[str, Work]:
    """All that is tried, by name; ``place`` holds what ``prepare`` wrote."""

    def training(stage: str, *words: str) -> Work:
        config = f"--config=configs/tiny_{stage}.py"
        short = ("--config.steps=60", "--config.save_every=20")
        return Work(
            lambda folder: [f"train.{stage}", config, *short, *words, f"--workdir={folder}"], trained=True
        )

    def stage(name: str, *words: str) -> Work:
        return Work(lambda folder: [f"train.{name}", *words, f"--workdir={folder}"])

    def lantern(*words: str, **more: Any) -> Work:
        return Work(lambda folder: ["lantern_jax", *words, "--out", str(folder)], **more)

    target, tokens, features = (f"--{name}={demo / name}" for name in ("target", "tokens", "features"))
    model = ["--model", str(demo / "export")]
    overwrite = ["--overwrite"]
    export = ["--drafter", str(demo / "drafter"), "--checkpoint", str(demo / "export")]
    return {
        "train.tokenizer": training("tokenizer", "--config.pictures=300", *SMALLER),
        "train.encode": stage("encode", f"--tokenizer={demo / 'tokenizer'}", "--pictures=300", "--validation=32"),
        "train.target": training("target", tokens),
        "train.features": stage("features", target, tokens, "--pictures=32", "--samples=16"),
        "train.drafter": training("drafter", target, features),
        "train.tree": stage("tree", target, f"--drafter={demo / 'drafter'}", "--pictures=8"),
        "train.export": Work(lambda folder: ["train.export", *export, "--out", str(folder), "--overwrite"]),
        "lantern generate": Work(
            lambda folder: [
                "lantern_jax", "generate", "a lake", *model, "--num", "6", "--batch", "2", "--out", f"{folder}/"
            ],
            overwrite,
        ),
        "lantern set": lantern(
            "set", *model, "--prompts", str(place / "prompts.txt"), "--shard-size", "2", "--batch", "2"
        ),
        "lantern quantize": lantern("quantize", model[1], again=overwrite),
        "lantern convert": lantern("convert", "llamagen", "--gpt", str(place / "gpt"), again=overwrite),
        "lantern encode": lantern("encode", "a lake", "a forest", *model, again=overwrite, suffix=".npz"),
        "lantern metrics": lantern(
            "metrics", str(place / "made.npz"), "--reference", str(place / "real.npz"), again=overwrite
        ),
        "lantern bench": lantern(
            "bench", *model, "--methods", "gumbel", "--batch", "1,2", "--pictures", "2", "--use-cache",
            again=overwrite, timed=True,
        ),
        "lantern tune": lantern(
            "tune", *model, "--minutes", "0.1", "--pictures", "2", again=overwrite, timed=True
        ),
    }  # fmt: skip


def start(words: Sequence[str], cache: Path) -> subprocess.Popen:
    """The command in a process group of its own, which is what a terminal and a scheduler end."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, start_new_session=True, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def contents(folder: Path, work: Work) -> dict[str, object]:
    """What a command made, by name, without what depends on the clock."""
    if folder.is_file():
        return {"file": names_in(folder.read_text()) if work.timed else folder.read_bytes()}
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or name.startswith("checkpoints/"):
            continue
        found[name] = path.read_bytes()
        if path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [line | {"examples_per_second": 0} for line in lines]
    if work.trained:
        found["state"] = trained_state(folder)
    return found


def names_in(text: str) -> list[list[str]]:
    """The names in a JSON object, or in each of several, one a line."""
    try:
        objects = [json.loads(text)]
    except json.JSONDecodeError:
        objects = [json.loads(line) for line in text.splitlines()]
    return [sorted(one) for one in objects]


def trained_state(folder: Path) -> list[bytes]:
    """All arrays of a run's newest checkpoint."""
    import orbax.checkpoint as ocp

    from train.loop import open_checkpoints

    with open_checkpoints(folder, keep=1000) as checkpoints:
        state = checkpoints.restore(checkpoints.latest_step(), args=ocp.args.StandardRestore())
    return [np.asarray(leaf).tobytes() for leaf in leaves(state)]


def leftovers(folder: Path) -> list[str]:
    """Names in a folder that are none of a result's."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return [name for name in names if name.endswith((".part", ".lock", ".old")) or "tmp" in name]


def one_round(
    work: Work, folder: Path, cache: Path, seconds: float, numbers: Sequence[int], chance: random.Random
) -> tuple[list[str], list[int], float]:
    """(what was wrong, signals that took effect, seconds to the end at most) of a command, ended by each signal."""
    wrong, sent, words = [], [], work.words(folder)
    for number in numbers:
        began, process = time.perf_counter(), start([*words, *(work.again if folder.exists() else ())], cache)
        try:
            process.wait(chance.uniform(0.0, min(seconds, MOST_SECONDS)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
        said = process.communicate(timeout=300)[1]
        if process.returncode == 0:
            seconds = min(seconds, time.perf_counter() - began)
            break
        sent.append(number)
        expected = -number if number == signal.SIGKILL else 128 + number
        lines = [line for line in said.splitlines() if line.strip()]
        if process.returncode != expected or (number != signal.SIGKILL and not said_once(lines)):
            wrong.append(f"{NAMES[number]}: status {process.returncode}, {said[-1000:]!r}")
    process = start([*words, *(work.again if folder.exists() else ())], cache)
    said = process.communicate(timeout=600)[1]
    if process.returncode:
        wrong.append(f"going on: status {process.returncode}, {said[-1000:]!r}")
    return wrong, sent, seconds


def said_once(lines: Sequence[str]) -> bool:
    """Whether the last line, and no other, says that the command was ended; a set tells each shard before."""
    ended = [any(word in line for word in ("interrupted", "terminated")) for line in lines]
    traced = any("Traceback" in line or "Error" in line or "Exception" in line for line in lines)
    return ended[-1:] == [True] and sum(ended) == 1 and not traced


def tried(name: str, work: Work, place: Path, cache: Path, numbers: list[int], chance: random.Random) -> dict:
    """A row of the report: how many of these signals took effect on one command, and all that was wrong."""
    place.mkdir()
    began = time.perf_counter()
    # The first run compiles what the others read.
    wrong, *_ = one_round(work, place / f"whole{work.suffix}", cache, 0, (), chance)
    seconds, expected = time.perf_counter() - began, contents(place / f"whole{work.suffix}", work)
    row = dict.fromkeys(NAMES.values(), 0) | {"rounds": 0, "seconds": seconds, "wrong": wrong}
    chance.shuffle(numbers)
    while numbers and row["rounds"] < ROUNDS:
        row["rounds"] += 1
        folder = place / f"round-{row['rounds']}{work.suffix}"
        wrong, sent, seconds = one_round(work, folder, cache, seconds, numbers, chance)
        numbers = numbers[len(sent) :]
        for number in sent:
            row[NAMES[number]] += 1
        made = contents(folder, work)
        wrong += [f"differs: {part}" for part in {*made, *expected} if made.get(part) != expected.get(part)]
        row["wrong"] += wrong
        print(f"{name}: {[NAMES[number] for number in sent]} {wrong or 'as undisturbed'}", flush=True)
    row["wrong"] += [f"left: {part}" for part in leftovers(place)]
    return row


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--demo", type=arguments.folder, required=True, help="working folder of train.demo, tiny, finished")
    add("--kills", type=arguments.whole(0), default=5, help="with -9, a command (default: 5)")
    add("--interrupts", type=arguments.whole(0), default=2, help="as Ctrl-C (default: 2)")
    add("--terminations", type=arguments.whole(0), default=2, help="by SIGTERM (default: 2)")
    add("--only", type=arguments.words, help="names of commands, with commas between them (default: all)")
    add("--seed", type=arguments.whole(0), default=0, help="of the moments (default: 0)")
    add("--out", type=arguments.new_file, help="write all as JSON, after each command")
    options = parser.parse_args(argv)
    if not (options.demo / "export.done").is_file():
        raise LanternError(f"{options.demo} is no finished demo: run train.demo --experiment tiny there")
    # Where a shell started this in the background, interrupts are ignored, by the commands too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chance, rows = random.Random(options.seed), {}
    counts = zip(NAMES, (options.kills, options.interrupts, options.terminations), strict=True)
    numbers = [number for number, count in counts for _ in range(count)]
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        prepare(place)
        tries = works(options.demo.absolute(), place)
        for name in options.only or tries:
            if name not in tries:
                raise errors.unknown("command", name, tries)
            rows[name] = tried(name, tries[name], place / name, place / "compiled", [*numbers], chance)
            if options.out is not None:
                write_file(options.out, json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))
    raise SystemExit(any(row["wrong"] for row in rows.values()))


if __name__ == "__main__":
    run_script(main)
