"""A picture set whose process is killed over and over, against the set made at once: byte for byte the same.

    python -m eval.set_kills [--pictures 500] [--kills 20] [--shard-size 10] [--seed 0] [--out FILE.json]

Both are made by the command itself, in processes of its own, with the demo. A life lasts a random time, from before the
first import to somewhere in a later shard; the last life is let run. Prints how the kills fell, and how long all took.
"""

import dataclasses
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.io.files import write_file
from lantern_jax.sets.reading import read_set
from lantern_jax.text.landscapes import LANDSCAPES
from train.painter.landscapes import sample_scene

# Of the scenes whose attributes are the prompts.
SCENES = 5_010
# Seconds that a process takes before it decodes, or more.
BEGINNING = 5.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was seen.

    Attributes:
        pictures, shards: of the set.
        kills: how many took effect: a process that is done cannot be killed.
        seconds_at_once: of the process that was let run.
        seconds_with_kills: of all the others.
        written_at_kill: shards that were there at each kill.
        differing: names of files that are not the same; none where all is well.
    """

    pictures: int
    shards: int
    kills: int
    seconds_at_once: float
    seconds_with_kills: float
    written_at_kill: tuple[int, ...]
    differing: tuple[str, ...]


def prompts(count: int) -> list[str]:
    """Landscapes in words."""
    scenes = (sample_scene(SCENES, number) for number in range(count))
    return [" ".join(LANDSCAPES.labels(scene.attributes).values()) for scene in scenes]


def run_kills(folder: Path, pictures: int, kills: int, shard_size: int, seed: int) -> Outcome:
    """Makes both sets in a folder and compares them."""
    file = folder / "prompts.txt"
    file.write_text("\n".join(prompts(pictures)) + "\n")
    command = [
        sys.executable,
        "-m",
        "lantern_jax",
        "set",
        "--prompts",
        str(file),
        "--shard-size",
        str(shard_size),
    ]

    def start(name: str) -> subprocess.Popen:
        return subprocess.Popen([*command, "--out", str(folder / name)], stdout=subprocess.DEVNULL)

    def shards() -> int:
        return len(list((folder / "killed").glob("*.tar")))

    began = time.perf_counter()
    if start("whole").wait():
        raise RuntimeError("the set made at once failed")
    at_once = time.perf_counter() - began
    generator, written = random.Random(seed), []
    began = time.perf_counter()
    for _ in range(kills):
        process = start("killed")
        try:
            process.wait(generator.uniform(0, BEGINNING + 1.5 * at_once / kills))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            written.append(shards())
    if start("killed").wait():
        raise RuntimeError("the set that was killed could not be gone on with")
    with_kills = time.perf_counter() - began
    differing = differences(folder / "killed", folder / "whole")
    count = sum(1 for _ in read_set(folder / "killed"))
    return Outcome(count, shards(), len(written), at_once, with_kills, tuple(written), differing)


def differences(ours: Path, theirs: Path) -> tuple[str, ...]:
    """Names of the files that are not the same, byte for byte, in two sets."""
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (ours, theirs))
    return tuple(sorted(name for name in {*first, *second} if first.get(name) != second.get(name)))


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=arguments.whole(), default=500)
    parser.add_argument("--kills", type=arguments.whole(), default=20)
    parser.add_argument("--shard-size", type=arguments.whole(), default=10)
    parser.add_argument("--seed", type=arguments.whole(0), default=0)
    parser.add_argument("--out", type=arguments.new_file)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_kills(Path(folder), given.pictures, given.kills, given.shard_size, given.seed)
    text = json.dumps(dataclasses.asdict(outcome), indent=1) + "\n"
    print(text, end="")
    if given.out is not None:
        write_file(given.out, text)
    raise SystemExit(bool(outcome.differing or outcome.pictures != given.pictures))


if __name__ == "__main__":
    run_script(main)
