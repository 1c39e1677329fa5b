"""Two checkouts of the library side by side: is a pass of the newer one slower than one of the older?

    python -m eval.side_by_side --old DIR [--new DIR] [--pictures 12] [--restarts 1] [--rows WORD ...] [--cpu 0]
                                [--out FILE.json]

Each checkout runs in a process of its own, which decodes the demo's pictures on request: the same seed and method in
one, then in the other, and the other way round the next time. Only one of them works at any moment, so a slow minute of
the machine slows both. A seed may take a few rounds more in one version than in the other (noise may differ), so
seconds per pass of the target are compared, prefill and everything around it included, without the VQ decoder: wall
time, and CPU time of the process, which other programs disturb less. Where a process's memory happens to lie makes a
difference of a few hundredths for as long as it lives, so both are restarted several times. With ``--cpu`` both decode
on that one processor (Linux): this measures the work of a pass alone, not how two threads happen to share it.

    wall   median over the pictures of new / old, each pair one after the other; the least and the largest such median
           of a pair of processes; and new / old of the fastest pictures
    cpu    the same for CPU time, without the extremes

``eval.decoding`` measures what a step costs beyond its matrix products, in either checkout.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from eval.report import to_json
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.io.files import write_file

PROMPTS = ("snowy mountains at dusk by a calm lake", "a foggy forest at dawn", "dunes at dawn")
BOUND = 1.03


def rows() -> dict[str, dict]:
    """Returns the options of every row: plain decoding, and every tree with each coupling, rule and path policy."""
    found = {"plain": {"method": "ar"}}
    # A tree without a name is the demo's own.
    for tree in ("tree", "tree:tree=naive_extend_57", "tree:tree=demo_57"):
        for coupling in ("gumbel", "rejection"):
            for rule in ("strict", "lantern++:k=10,lam=2"):
                relaxed = coupling == "gumbel" and rule != "strict"
                for path in ("longest", "followed") if relaxed else ("",):
                    way = {
                        "drafting": tree,
                        "rule": rule,
                        "coupling": coupling + (f":path={path}" if path else ""),
                    }
                    found[" ".join(way.values())] = way
    return found


class Worker:
    """A process that decodes with one checkout, one picture at a time; compiled programs are kept in ``cache``."""

    def __init__(self, directory: Path, cpu: int | None, cache: str):
        pinned = [] if cpu is None else ["taskset", "--cpu-list", str(cpu)]
        paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
        kept = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        self.process = subprocess.Popen(
            [*pinned, sys.executable, str(Path(__file__).with_name("side_by_side_worker.py").resolve())],
            env={**os.environ, **kept, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def picture(self, prompt: str, seed: int, options: dict) -> dict[str, float]:
        """Decodes a picture; returns wall and CPU seconds per pass, and passes."""
        self.process.stdin.write(json.dumps({"prompt": prompt, "seed": seed, "options": options}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker of {self.process.args} ended: see its messages above")
        return json.loads(answer)

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()


def measure(
    directories: dict[str, Path], pictures: int, restarts: int, wanted: list[str], cpu: int | None
) -> dict[str, dict]:
    """Returns ratios new / old of every row, with the fastest passes of either in milliseconds."""
    methods = {name: way for name, way in rows().items() if all(word in name for word in wanted)}
    taken = {name: {"old": [], "new": []} for name in methods}
    with tempfile.TemporaryDirectory() as cache:
        for seed in range(restarts * (pictures + 1)):
            restart, picture = divmod(seed, pictures + 1)
            if not picture:
                workers = {version: Worker(place, cpu, cache) for version, place in directories.items()}
            for name, way in methods.items():
                for version in sorted(workers, reverse=seed % 2 == 0):
                    made = workers[version].picture(PROMPTS[seed % len(PROMPTS)], seed, way)
                    if picture:  # The first one compiles.
                        taken[name][version].append(made)
            done = f"\rstart {restart + 1} of {restarts}: {picture} of {pictures} pictures per row"
            print(done, end="", file=sys.stderr, flush=True)
            if picture == pictures:
                for worker in workers.values():
                    worker.close()
    print(file=sys.stderr)
    return {name: compare(both["old"], both["new"], restarts) for name, both in taken.items()}


def compare(old: list[dict], new: list[dict], restarts: int) -> dict[str, float]:
    """Returns a row that compares two lists of pictures pair by pair, with equally many from each restart."""
    row = {}
    for clock in ("wall", "cpu"):
        ours, theirs = ([picture[clock] for picture in pictures] for pictures in (new, old))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        each = len(ratios) // restarts
        medians = [statistics.median(ratios[start : start + each]) for start in range(0, len(ratios), each)]
        row[f"{clock}_old_ms"], row[f"{clock}_new_ms"] = 1e3 * min(theirs), 1e3 * min(ours)
        row[f"{clock}_median"] = statistics.median(ratios)
        row[f"{clock}_least"], row[f"{clock}_largest"] = min(medians), max(medians)
        row[f"{clock}_min"] = min(ours) / min(theirs)
    return row


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, whole = parser.add_argument, arguments.whole
    add("--old", type=arguments.folder, help="checkout to compare with")
    add("--new", type=arguments.folder, default=".", help="checkout to judge (default: this directory)")
    add("--pictures", type=whole(), default=12, help="pictures per row and start (default: 12)")
    add("--restarts", type=whole(), default=1, help="how often to start both processes (default: 1)")
    add("--rows", nargs="*", default=[], help="only rows whose name holds all of these words")
    add("--cpu", type=whole(0), help="the one processor that both decode on; any when left out")
    add("--out", type=arguments.new_file, help="write all numbers as JSON")
    options = parser.parse_args(argv)
    if options.old is None:
        parser.error("give --old, the checkout to compare with")
    directories = {"old": options.old.resolve(), "new": Path(options.new).resolve()}
    table = measure(directories, options.pictures, options.restarts, options.rows, options.cpu)
    head = f"{'new / old per pass, bound ' + str(BOUND):46}"
    print(f"{head}   wall: ms old, ms new, median,   of starts,   min    cpu: median, min")
    for name, row in table.items():
        slow = min(row["wall_median"], row["wall_min"]) > BOUND
        print(
            f"{name:46} {row['wall_old_ms']:13.3f} {row['wall_new_ms']:7.3f} {row['wall_median']:7.3f} "
            f"{row['wall_least']:6.3f}-{row['wall_largest']:5.3f} {row['wall_min']:6.3f} "
            f"{row['cpu_median']:14.3f} {row['cpu_min']:6.3f}{'  slower' if slow else ''}"
        )
    if options.out:
        write_file(options.out, to_json({"demo": table}))


if __name__ == "__main__":
    run_script(main)
