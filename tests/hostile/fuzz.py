"""Hostile inputs for as long as there is time.

    python -m tests.hostile.fuzz [--minutes 10] [--seed 0] [--kinds commands,torch,configs] [--found]

Kinds are ``commands`` (whole command lines), ``streams`` (the same with standard streams closed or in ASCII),
``numbers`` (every option with numbers of hundreds and thousands of digits), ``scripts`` (what
``tests.hostile.scripts`` lists), ``special`` (pipes, devices and the like for every option that takes a name),
``texts`` (in files, that steer a terminal), every kind of ``tests.hostile.files``, ``configs``, ``flips`` (bits and
pages of a checkpoint), ``folders`` (what ``tests.hostile.folders`` makes of a checkpoint of several files) and
``clients`` (of ``lantern serve``: streams of bytes).

A seed stands for some cases of a kind; each is a process of its own, which must end within seconds, by itself, without
a traceback, in little more memory than one that works, and with one line where it refuses. It must never go on
with anything other than what was written. Faults are printed, and their kinds and seeds are kept in
``tests/hostile/fuzz_found.json``, which ``--found`` runs again: they stay there once they are mended.
"""

import argparse
import hashlib
import importlib
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lantern_jax.apps.commands import command_line
from tests.hostile import paths as hostile_paths
from tests.hostile import texts as hostile_texts
from tests.hostile.commands import COMPUTES, LINES, Outcome, clutter, command, command_lines, huge_lines, run
from tests.hostile.files import KINDS as FILES
from tests.hostile.files import READERS
from tests.hostile.folders import hostile_folders, save_sharded
from tests.hostile.mutated_configs import mutated, mutations
from tests.hostile.mutations import damage
from tests.hostile.scripts import WRONG, litter

FOUND = Path(__file__).with_name("fuzz_found.json")
CASES = 25
STREAMS = ("0", "1", "2", "12", "012", "a", "0a", "1a")
MORE_MEMORY = 1.5
Work = Callable[[], int]


def turn(cases: Sequence[Any], seed: int) -> Sequence[Any]:
    return cases[seed * CASES % len(cases) :][:CASES]


def shown(words: Sequence[str]) -> str:
    return repr([word[:60] for word in words])


def called(name: str, words: Sequence[str]) -> Work:
    if name == "lantern":
        return command(list(words))
    return lambda: command_line.run(name, lambda: importlib.import_module(name).main(words))


def told(work: Callable[[], object]) -> Work:
    """Returns work whose refusal is printed as the command prints it."""
    return lambda: command_line.run("lantern", work)


def of_commands(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    for line in itertools.islice(command_lines(seed), CASES):
        yield shown(line), command(line)


def of_numbers(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    for line in turn(list(huge_lines()), seed):
        yield shown(line), command(line)


def of_scripts(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    for script, words in turn([(script, words) for script, lines in WRONG.items() for words in lines], seed):
        yield shown([script, *words]), called(script, words)


def of_special(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    every = list(hostile_paths.cases())
    random.Random(0).shuffle(every)
    if not (folder / "no-empty").exists():
        hostile_paths.special(folder)
    for name, words in turn(every, seed):
        yield shown([name, *words]), called(name, words)


def of_texts(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    for name, words in itertools.islice(hostile_texts.lines(folder), seed % 17, None, 17):
        yield name, command(words)


def of_files(kind: str, seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    for number, file in enumerate(FILES[kind](seed=seed)):
        path = folder / f"{number}{file.suffix}"
        path.write_bytes(file.content)
        yield file.name, told(partial(READERS[kind], path))
        path.unlink()


def of_configs(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    path = folder / "tiny" / "config.json"
    whole = path.read_text()
    config = json.loads(whole)
    for entry, value in random.Random(seed).sample(mutations(config), CASES):
        path.write_text(mutated(config, entry, value))
        yield f"{'.'.join(entry)}: {value}", command(LINES["generate"].split())
    path.write_text(whole)


def of_clients(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    yield "streams", partial(_streams, folder / "tiny", seed)


def of_flips(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    chance, tiny = random.Random(seed), folder / "tiny"
    whole = run(lambda: print(_digest(tiny), file=sys.stderr) or 0, folder).said.strip()
    files = [path for path in sorted(tiny.rglob("*")) if path.is_file()]
    for _ in range(CASES):
        path = chance.choice(files)
        content = path.read_bytes()
        what, damaged = damage(content, chance)
        path.write_bytes(damaged)
        yield f"{path.relative_to(tiny)} {what}", told(partial(_same, tiny, whole))
        path.write_bytes(content)


def of_folders(seed: int, folder: Path) -> Iterator[tuple[str, Work]]:
    from lantern_jax.checkpoints.store import load

    sharded = folder / "sharded"
    made = run(told(lambda: save_sharded(sharded, load(folder / "tiny", None))), folder, seconds=60)
    assert made.status == 0, made.said
    for name in hostile_folders(sharded, seed):
        yield name, told(partial(load, sharded))
    shutil.rmtree(sharded)


KINDS = {
    "commands": of_commands, "numbers": of_numbers, "streams": of_commands, "scripts": of_scripts,
    "special": of_special, "texts": of_texts, **{kind: partial(of_files, kind) for kind in FILES},
    "configs": of_configs, "flips": of_flips, "folders": of_folders, "clients": of_clients,
}  # fmt: skip


def _streams(model: Path, seed: int) -> int:
    """Runs clients whose requests are cut, slow or damaged: all of them end, and others are answered meanwhile."""
    from lantern_jax.pipeline.pipeline import load
    from tests.hostile.requests import streams
    from tests.serve.running import outlive

    outlive(load(str(model), tuned="off"), list(streams(seed, 4 * CASES)))
    return 0


def _digest(folder: Path) -> str:
    import jax
    import numpy as np

    from lantern_jax.checkpoints.store import load

    checkpoint, digest = load(folder), hashlib.sha256()
    for leaf in jax.tree.leaves((checkpoint.target_params, checkpoint.drafters, checkpoint.tokenizer_params)):
        digest.update(np.asarray(leaf).tobytes() if isinstance(leaf, np.ndarray) else repr(leaf).encode())
    return digest.hexdigest()


def _same(folder: Path, whole: str) -> None:
    assert _digest(folder) == whole, "it holds something else"


class Table:
    """What happened, by kind.

    Attributes:
        base: megabytes of a run that works.
        more: megabytes that every case has had since making the cases imported something, torch for one.
    """

    def __init__(self, base: float):
        self.base, self.more, self.rows, self.found = base, 0.0, {}, []

    def add(self, kind: str, seed: int, name: str, outcome: Outcome) -> None:
        row = self.rows.setdefault(kind, Counter())
        went = outcome.status in (0, COMPUTES)
        row["good"] += went
        row["refused"] += outcome.status == 2
        row["seconds"] = max(row["seconds"], outcome.seconds)
        row["megabytes"] = max(row["megabytes"], outcome.megabytes)
        fault = outcome.fault
        if not fault and outcome.megabytes > MORE_MEMORY * self.base + self.more:
            fault = f"{outcome.megabytes:.0f} MB"
        if fault:
            row["faults"] += 1
            self.found.append([kind, seed])
            print(f"{kind}, seed {seed}, {name}: {fault}: {outcome.said[-500:]!r} {outcome.left}", flush=True)

    def show(self) -> None:
        print(f"{'kind':12} {'good':>6} {'refused':>8} {'faults':>7} {'longest s':>10} {'most MB':>8}")
        for kind, row in self.rows.items():
            counts = f"{row['good']:6} {row['refused']:8} {row['faults']:7}"
            print(f"{kind:12} {counts} {row['seconds']:10.1f} {row['megabytes']:8.0f}")
        print(f"a good run takes {self.base:.0f} MB, and {self.more:.0f} of what making the cases imported")


def fuzz(seeds: Iterator[tuple[str, int]], end: float) -> Table:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        filled = run(lambda: clutter(folder) or litter() or 0, folder, seconds=120)
        assert filled.status == 0, filled.said
        # A line that loses its --model takes the demo, which is larger than the tiny one.
        good = run(command(["generate", "lake", "--out", "new.png"]), folder, seconds=60)
        assert good.status == COMPUTES, good.said
        table, idle = Table(good.megabytes), run(lambda: 0, folder).megabytes
        for kind, seed in seeds:
            for number, (name, work) in enumerate(KINDS[kind](seed, folder)):
                if not number:
                    table.more = max(table.more, run(lambda: 0, folder).megabytes - idle)
                # Some streams are closed, or in ASCII.
                hostile = STREAMS[(seed + number) % len(STREAMS)] if kind == "streams" else ""
                outcome = run(work, folder, streams=hostile)
                for left in sorted(outcome.left, reverse=True):
                    path = folder / left
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                table.add(kind, seed, name, outcome)
            if time.monotonic() > end:
                break
    return table


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first cases (default: 0)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas between them")
    parser.add_argument("--found", action="store_true", help="what failed before, and nothing else")
    given = parser.parse_args()
    # Imported here, so that every case's process has them.
    import lantern_jax.apps.measuring.measure
    import lantern_jax.pipeline.pipeline  # noqa: F401

    known = [tuple(entry) for entry in json.loads(FOUND.read_text())]
    kinds = given.kinds.split(",")
    endless = ((kind, seed) for seed in itertools.count(given.seed) for kind in kinds)
    table = fuzz(iter(known) if given.found else endless, time.monotonic() + 60 * given.minutes)
    table.show()
    found = sorted({*known, *map(tuple, table.found)})
    FOUND.write_text(json.dumps([list(entry) for entry in found]) + "\n")
    return bool(table.found)


if __name__ == "__main__":
    raise SystemExit(main())
