"""Commands and training stages that are ended at random moments and gone on with, against the same let run.

    python -m eval.kills --demo DIR [--kills 50] [--interrupts 20] [--terminations 20] [--each 4] [--seed 0]
                         [--out FILE.json]

``--demo`` is the working folder of a finished ``python -m train.demo --experiment tiny``, which the stages read. A round
is one command in a new folder: up to ``--each`` signals, each after a random time and followed by the same command, then
the command to its end. Wanted: one line and the status of the signal, the files of the undisturbed run, nothing besides.
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

import numpy as np

from lantern_jax import arguments
from lantern_jax.command_line import Parser, run_script
from lantern_jax.files import write_file

NAMES = {signal.SIGKILL: "kill -9", signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


@dataclasses.dataclass(frozen=True)
class Work:
    """One command.

    Attributes:
        words: of its line after ``python -m``, for a folder that it may make.
        again: more words once it was ended.
        trained: whether it is a training run, whose checkpoint is compared by its arrays.
    """

    words: Callable[[Path], Sequence[str]]
    again: Sequence[str] = ()
    trained: bool = False


def works(demo: Path, prompts: Path) -> Mapping[str, Work]:
    """All that is tried, by name."""

    def training(stage: str, *words: str) -> Work:
        config = f"--config=configs/tiny_{stage}.py"
        short = ("--config.steps=60", "--config.save_every=20")
        return Work(
            lambda folder: [f"train.{stage}", config, *short, *words, f"--workdir={folder}"], trained=True
        )

    def stage(name: str, *words: str) -> Work:
        return Work(lambda folder: [f"train.{name}", *words, f"--workdir={folder}"])

    def lantern(*words: str, again: Sequence[str] = ()) -> Work:
        return Work(lambda folder: ["lantern_jax", *words, "--out", str(folder)], again)

    target, tokens, features = (f"--{name}={demo / name}" for name in ("target", "tokens", "features"))
    export = ["--drafter", str(demo / "drafter"), "--checkpoint", str(demo / "export")]
    return {
        "train.tokenizer": training("tokenizer", "--config.pictures=300"),
        "train.encode": stage("encode", f"--tokenizer={demo / 'tokenizer'}", "--pictures=300", "--validation=32"),
        "train.target": training("target", tokens),
        "train.features": stage("features", target, tokens, "--pictures=32", "--samples=16"),
        "train.drafter": training("drafter", target, features),
        "train.tree": stage("tree", target, f"--drafter={demo / 'drafter'}", "--pictures=8"),
        "train.export": Work(lambda folder: ["train.export", *export, "--out", str(folder), "--overwrite"]),
        "lantern generate": lantern("generate", "a lake", "--num", "6", "--batch", "2", again=["--overwrite"]),
        "lantern set": lantern("set", "--prompts", str(prompts), "--shard-size", "2", "--batch", "2"),
        "lantern quantize": lantern("quantize", "demo", again=["--overwrite"]),
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


def trained_state(folder: Path) -> list[bytes]:
    """All arrays of a run's newest checkpoint."""
    import jax
    import orbax.checkpoint as ocp

    from train.loop import open_checkpoints

    with open_checkpoints(folder, keep=1000) as checkpoints:
        state = checkpoints.restore(checkpoints.latest_step(), args=ocp.args.StandardRestore())
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def leftovers(folder: Path) -> list[str]:
    """Names around and in a command's folder that are none of a result's."""
    names = [str(path.relative_to(folder.parent)) for path in folder.parent.rglob("*")]
    return [name for name in names if name.endswith((".part", ".lock", ".old")) or "tmp" in name]


def one_round(
    work: Work, folder: Path, cache: Path, seconds: float, numbers: Sequence[int], chance: random.Random
) -> tuple[list[str], list[int]]:
    """(what was wrong, signals that took effect) of one command that is ended by each signal, then let run."""
    wrong, sent, words = [], [], work.words(folder)
    for number in numbers:
        process = start([*words, *(work.again if folder.exists() else ())], cache)
        try:
            process.wait(chance.uniform(0.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
        said = process.communicate(timeout=300)[1]
        if process.returncode == 0:
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
    return wrong, sent


def said_once(lines: Sequence[str]) -> bool:
    """Whether the last line, and no other, says that the command was ended; a set tells each shard before."""
    ended = [any(word in line for word in ("interrupted", "terminated")) for line in lines]
    traced = any("Traceback" in line or "Error" in line or "Exception" in line for line in lines)
    return ended[-1:] == [True] and sum(ended) == 1 and not traced


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--demo", type=arguments.folder, required=True, help="working folder of train.demo, tiny, finished")
    add("--kills", type=arguments.whole(0), default=50, help="with -9 (default: 50)")
    add("--interrupts", type=arguments.whole(0), default=20, help="as Ctrl-C (default: 20)")
    add("--terminations", type=arguments.whole(0), default=20, help="by SIGTERM (default: 20)")
    add("--each", type=arguments.whole(), default=4, help="signals a round (default: 4)")
    add("--seed", type=arguments.whole(0), default=0, help="of the moments (default: 0)")
    add("--out", type=arguments.new_file, help="write all as JSON")
    options = parser.parse_args(argv)
    if not (options.demo / "export.done").is_file():
        raise ValueError(
            f"{options.demo} is no finished demo: run python -m train.demo --experiment tiny there"
        )
    chance = random.Random(options.seed)
    left = {
        signal.SIGKILL: options.kills,
        signal.SIGINT: options.interrupts,
        signal.SIGTERM: options.terminations,
    }
    report: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        prompts = place / "prompts.txt"
        prompts.write_text(
            "".join(f"a {word}\n" for word in ("lake", "forest", "dune", "lake at night", "dune at noon"))
        )
        whole = {}
        for name, work in works(options.demo.absolute(), prompts).items():
            began = time.perf_counter()
            folder = place / f"whole {name}" / "made"
            folder.parent.mkdir()
            # The first run compiles what the others read.
            wrong, _ = one_round(work, folder, place / "compiled", 0, (), chance)
            if wrong:
                raise RuntimeError(f"{name}: {wrong}")
            whole[name] = work, contents(folder, work), time.perf_counter() - began
            report[name] = dict.fromkeys(NAMES.values(), 0) | {"seconds": whole[name][2], "wrong": []}
            print(f"{name}: {whole[name][2]:.0f} s", flush=True)
        rounds = 0
        while any(left.values()):
            name = list(whole)[rounds % len(whole)]
            rounds += 1
            work, expected, seconds = whole[name]
            numbers = [number for number, count in left.items() for _ in range(count)]
            numbers = chance.sample(numbers, min(options.each, len(numbers)))
            folder = place / f"round {rounds}" / "made"
            folder.parent.mkdir()
            wrong, sent = one_round(work, folder, place / "compiled", seconds, numbers, chance)
            for number in sent:
                left[number] -= 1
                report[name][NAMES[number]] += 1
            made = contents(folder, work) if folder.exists() else {}
            wrong += [
                f"differs: {part}" for part in {*made, *expected} if made.get(part) != expected.get(part)
            ]
            wrong += [f"left: {part}" for part in leftovers(folder)]
            report[name]["wrong"] += wrong
            print(f"{name}: {[NAMES[number] for number in sent]} {wrong or 'as undisturbed'}", flush=True)
    text = json.dumps(report, indent=1) + "\n"
    print(text, end="")
    if options.out is not None:
        write_file(options.out, text)
    raise SystemExit(any(row["wrong"] for row in report.values()))


if __name__ == "__main__":
    run_script(main)
