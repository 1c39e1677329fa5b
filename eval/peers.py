"""Measures the official PyTorch programs, from your own clones of them, beside ours: one table, in one call.

    python -m eval.peers --llamagen DIR --lantern DIR [--size XL] [--batch 1 8] [--repeats 3] [--rounds N]
                         [--only ROW ...] [--accept-lengths 0,0,1] [--window-lengths 3.63] [--out FILE.json]

DIR are clones of https://github.com/FoundationVision/LlamaGen and https://github.com/jadohu/LANTERN, imported as they
are; PyTorch and transformers are needed for them (`pip install torch transformers`). Without a clone its rows are left
out. Rows: `llamagen`, `strongest`, `lantern-ar`, `lantern`, `lantern++-57`, `lantern++`, `ours`, `ours-tree`,
`ours-jacobi`.

All rows decode pictures of 256 tokens in turns with the same guidance and sampling; medians count. Weights are random.
Trees, the official ones and ours, accept lengths drawn from ``--accept-lengths`` (three tokens per round), windows from
``--window-lengths``: this measures programs, not drafters. The first compile and decoding to pixels are not counted.
Seconds are per picture; a row of several pictures says what one token or round of the whole batch takes.

On a CPU, to see that everything runs: `--size tiny --rounds 8`.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from eval import peer_ours
from eval.peer_clones import (
    FEWEST,
    LANTERN,
    LLAMAGEN,
    SIZES,
    TINY,
    Sample,
    Way,
    check_clone,
    commit_of,
    config_of,
    imported,
)
from eval.report import to_json
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.commands.options import DTYPES
from lantern_jax.apps.measuring.accept_lengths import parse_accept_lengths
from lantern_jax.apps.measuring.measure import alternate
from lantern_jax.apps.terminal.console import Console, table
from lantern_jax.decoding.tree import named_tree
from lantern_jax.devices.platform import core_count, default_dtype, device_name, versions
from lantern_jax.io.errors import LanternError, printable
from lantern_jax.io.files import write_file

LLAMAGEN_ROWS = ("llamagen", "strongest")
LANTERN_ROWS = ("lantern-ar", "lantern", "lantern++-57", "lantern++")
ROWS = (*LLAMAGEN_ROWS, *LANTERN_ROWS, *peer_ours.METHODS)
# What the others are compared with.
REFERENCES = {"llamagen": "x llamagen", "lantern++": "x lantern++"}
HEADS = ("row", "batch", "ms", "tokens", "s/picture", *REFERENCES.values())
NOT_COUNTED = "not counted: the first compile, loading, text encoders, decoding to pixels"
ALONE = "the official LANTERN decodes one picture at a time: beside larger batches its seconds are those of batch 1"
_TREE = "mc_sim_7b_63"
# Tokens or rounds before anything is timed.
_WARM_UP = 4


def row_of(way: Way, batch: int, samples: Sequence[Sample]) -> dict[str, Any]:
    """Returns a row of medians, without what it is compared with."""
    return {
        "row": way.name, "program": way.title, "batch": batch,
        "ms": statistics.median(sample.ms for sample in samples),
        "tokens": statistics.fmean(sample.tokens for sample in samples),
        "seconds": statistics.median(sample.seconds for sample in samples),
        "all_seconds": [sample.seconds for sample in samples],
    }  # fmt: skip


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds how many times as fast as the references rows are: as medians over turns where both took part in them."""

    def times(row: dict[str, Any], name: str) -> float | None:
        same = [other for other in rows if other["row"] == name and other["batch"] == row["batch"]]
        if same:
            pairs = zip(same[0]["all_seconds"], row["all_seconds"], strict=True)
            return statistics.median(theirs / ours for theirs, ours in pairs)
        alone = [other for other in rows if other["row"] == name and name in LANTERN_ROWS]
        return alone[0]["seconds"] / row["seconds"] if alone else None

    return [row | {f"times_{name}": times(row, name) for name in REFERENCES} for row in rows]


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns a row's cells, for people."""
    speedups = (row[f"times_{name}"] for name in REFERENCES)
    return (
        row["row"], str(row["batch"]), _digits(row["ms"]), f"{row['tokens']:.2f}", _digits(row["seconds"]),
        *("" if value is None else _digits(value) for value in speedups),
    )  # fmt: skip


def _digits(value: float) -> str:
    """Formats a number with three digits, or all before its point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def lines_of(report: dict[str, Any]) -> list[str]:
    """Returns what is said below the table."""
    named = [f"{name} {version}" for name, version in report["versions"].items()]
    clones = [f"{name} at {commit}" for name, commit in report["clones"].items()]
    stopped = "" if report["rounds"] is None else f", --rounds {report['rounds']}"
    programs = {row["row"]: row["program"] for row in report["rows"]}
    return [
        *(f"{name}: {program}" for name, program in programs.items()),
        f"ms and tokens per token or round; medians, --repeats {report['repeats']}{stopped}; {report['millions']}",
        *(f"replaced: {line}" for line in report["replaced"]),
        f"accept lengths: trees {report['accept_lengths']}, windows {report['window_lengths']}, drawn for every round",
        NOT_COUNTED,
        *([ALONE] if any(row["row"] in LANTERN_ROWS for row in report["rows"]) else []),
        *(f"left out: {line}" for line in report["left_out"]),
        *([report["busy"]] if report["busy"] else []),
        ", ".join([report["device"], *named, *clones]),
    ]


def busy() -> str:
    """Returns a warning if other programs compete for the cores, where threads wait long for each other."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, core_count()
    if jax.default_backend() != "cpu" or load < 1.5 * cores:
        return ""
    return f"the machine is busy (load {load:.1f}, {cores} cores): ratios say little, OMP_NUM_THREADS=1 helps PyTorch"


def show(report: dict[str, Any]) -> None:
    """Prints the table, and what it rests on."""
    console = Console(soft_wrap=True)
    title = f"LlamaGen-{report['size']}, 256 tokens, guidance {report['guidance']:g}, {report['dtype']}"
    if report["rows"]:
        console.print(table(HEADS, map(cells_of, report["rows"]), title=title))
    for line in lines_of(report):
        console.print(line, markup=False)


class Peers:
    """The programs that are measured: each is loaded when its first row is asked for.

    Args:
        options: of the command line.

    Attributes:
        left_out: rows that could not be measured, and why.
    """

    def __init__(self, options: argparse.Namespace):
        self.options, self.config = options, config_of(options.size)
        self.dtype = default_dtype() if options.dtype is None else jax.numpy.dtype(options.dtype)
        self.left_out = [_needs(rows, clone) for rows, clone, folder in _clones(options) if folder is None]
        self.device, self.loaded, self.busy = "cpu", {}, busy()
        if options.llamagen or options.lantern:
            torch = imported("torch")
            torch.manual_seed(0)
            self.device, ours = "cuda" if torch.cuda.is_available() else "cpu", jax.default_backend()
            if (self.device == "cuda") != (ours == "gpu"):
                raise LanternError(
                    f"JAX computes on {ours} and PyTorch on {self.device}: install both for the same device, or set "
                    "CUDA_VISIBLE_DEVICES= and JAX_PLATFORMS=cpu to compare on the CPU"
                )
        if options.lantern:
            imported("transformers")

    def ways(self, batch: int) -> list[Way]:
        """Returns the rows of a batch size that can be measured."""
        wanted = [name for name in ROWS if name in self.options.only]
        made = []
        for name in wanted:
            if name in LLAMAGEN_ROWS and self.options.llamagen:
                made += self._attempt(partial(self._llamagen, name, batch), name)
            elif name in LANTERN_ROWS and self.options.lantern and batch == min(self.options.batch):
                made += self._attempt(partial(self._lantern, name), name)
            elif name in peer_ours.METHODS:
                made.append(self._ours(name, batch))
        return [way for way in made if self._runs(way)]

    def row_batch(self, way: Way, batch: int) -> int:
        """Returns how many pictures a row decodes together."""
        return 1 if way.name in LANTERN_ROWS else batch

    def _llamagen(self, name: str, batch: int) -> Way:
        from eval.peer_llamagen import LlamaGen

        program = self._load(LLAMAGEN.name, LlamaGen, self.options.llamagen)
        make = program.eager if name == LLAMAGEN_ROWS[0] else program.strongest
        return make(batch, self.options.guidance, self.options.top_k)

    def _lantern(self, name: str) -> Way:
        from eval.peer_lantern import PLAIN, Lantern

        program = self._load(LANTERN.name, Lantern, self.options.lantern)
        if name == PLAIN:
            return program.plain(self.options.guidance, self.options.top_k)
        chances = self.options.accept_lengths.over(named_tree(_TREE).max_depth)
        return program.speculative(name, self.options.guidance, self.options.top_k, chances)

    def _ours(self, name: str, batch: int) -> Way:
        given = self.options.size, self.config, self.dtype, max(self.options.batch)
        if "ours" not in self.loaded:
            self.loaded["ours"] = peer_ours.random_subject(*given)
        lengths = {
            peer_ours.TREE: self.options.accept_lengths, peer_ours.WINDOW: self.options.window_lengths
        }.get(name)  # fmt: skip
        return peer_ours.way(
            self.loaded["ours"], name, batch, self.options.guidance, self.options.top_k, lengths
        )

    def _load(self, name: str, program: Callable[..., Any], folder: Path) -> Any:
        """Returns a program, loaded once; an error is kept too: its other rows are not tried again."""
        if name not in self.loaded:
            import torch

            print(f"{name}, loading", file=sys.stderr, flush=True)
            dtype = getattr(torch, self.dtype.name)
            try:
                self.loaded[name] = program(folder, self.config, dtype, self.device)
            except Exception as error:
                self.loaded[name] = error
        if isinstance(self.loaded[name], Exception):
            raise self.loaded[name]
        return self.loaded[name]

    def _attempt(self, make: Callable[[], Way], name: str) -> list[Way]:
        try:
            return [make()]
        except Exception as error:
            self._leave_out(name, error)
            return []

    def _runs(self, way: Way) -> bool:
        """Decodes a little, which compiles; what the official code raises is recorded in place of its row."""
        print(f"{way.title}, warming up", file=sys.stderr, flush=True)
        try:
            way.decode(0, _WARM_UP)
        except Exception as error:
            if way.name in peer_ours.METHODS:
                raise
            self._leave_out(way.name, error)
            return False
        return True

    def _leave_out(self, name: str, error: Exception) -> None:
        program = self.loaded.get(LANTERN.name)
        if name in LANTERN_ROWS and not isinstance(error, LanternError) and hasattr(program, "unfit"):
            error = program.unfit(error)
        what = "" if isinstance(error, LanternError) else f"{type(error).__name__}: "
        self.left_out.append(f"{name}: {what}{printable(' '.join(str(error).split()), 400)}")

    def report(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns everything that was measured and how, for JSON."""
        options = self.options
        known = [(clone.name, self.loaded.get(clone.name)) for clone in (LLAMAGEN, LANTERN)]
        programs = {name: program for name, program in known if hasattr(program, "replaced")}
        sizes = [f"{name} {program.millions:.1f}M" for name, program in programs.items()]
        leaves = self.loaded["ours"].engine.parameters.target if "ours" in self.loaded else {}
        ours = sum(leaf.size for leaf in jax.tree.leaves(leaves)) / 1e6
        parameters = ", ".join(sizes + ([f"lantern_jax {ours:.1f}M"] if ours else []))
        used = ("torch", "transformers") if options.llamagen or options.lantern else ()
        installed = versions() | {name: sys.modules[name].__version__ for name in used if name in sys.modules}
        return {
            "size": options.size, "dtype": self.dtype.name, "device": device_name(), "versions": installed,
            "clones": {clone.name: commit_of(folder) for _, clone, folder in _clones(options) if folder},
            "guidance": options.guidance, "top_k": options.top_k, "rounds": options.rounds,
            "repeats": options.repeats, "accept_lengths": options.accept_lengths.to_json(),
            "window_lengths": options.window_lengths.to_json(), "millions": f"parameters: {parameters}",
            "replaced": [line for program in programs.values() for line in program.replaced] + [peer_ours.REPLACED],
            "not_counted": NOT_COUNTED, "busy": self.busy, "left_out": self.left_out, "rows": compared(rows),
        }  # fmt: skip


def _clones(options: argparse.Namespace) -> list[tuple]:
    """Returns the asked rows of each repository, the repository, and the folder of its clone or None."""
    every = ((LLAMAGEN_ROWS, LLAMAGEN, options.llamagen), (LANTERN_ROWS, LANTERN, options.lantern))
    asked = [
        ([name for name in rows if name in options.only], clone, folder) for rows, clone, folder in every
    ]
    return [part for part in asked if part[0]]


def _needs(rows: Sequence[str], clone: Any) -> str:
    return f"{', '.join(rows)}: give {clone.option} DIR, a clone of {clone.url}"


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options; LanternError for a folder that is no clone, and for rows that lack theirs."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, number = parser.add_argument, arguments.number
    add("--llamagen", type=arguments.folder, metavar="DIR", help="a clone of the official LlamaGen")
    add("--lantern", type=arguments.folder, metavar="DIR", help="a clone of the official LANTERN")
    add("--size", default="XL", choices=SIZES, help=f"published size, or {TINY} (default: XL)")
    add("--batch", nargs="+", type=arguments.whole(), default=[1, 8], help="pictures together (default: 1 8)")
    add("--rounds", type=arguments.whole(FEWEST + 1), help="stop after N tokens or rounds, estimate the rest")
    add("--repeats", type=arguments.whole(), default=3, help="turns, whose medians count (default: 3)")
    add("--only", nargs="+", choices=ROWS, metavar="ROW", default=None, help=f"of {', '.join(ROWS)}")
    add("--accept-lengths", default="0,0,1", help="of trees, as of `lantern bench` (default: 0,0,1)")
    add("--window-lengths", default="3.63", help="of our window, likewise (default: 3.63)")
    add("--guidance", type=number(1, above=True), default=4.0, help="the scale (default: 4)")
    add("--top-k", type=arguments.whole(0), default=0, help="sample from K codes (default: 0, all)")
    add("--dtype", choices=DTYPES, help="of everything (default: bfloat16 on GPUs, float32 on CPUs)")
    add("--out", type=arguments.new_file, metavar="FILE.json", help="write all numbers as JSON")
    options = parser.parse_args(argv)
    for name in ("accept_lengths", "window_lengths"):
        setattr(options, name, parse_accept_lengths(getattr(options, name)))
    options.accept_lengths.over(named_tree(_TREE).max_depth)
    if options.top_k > config_of(options.size).vocab_size:
        raise LanternError(f"--top-k {options.top_k} is more codes than there are: give fewer")
    is_asked, options.only = options.only is not None, options.only or ROWS
    for rows, clone, folder in _clones(options):
        if folder is not None:
            check_clone(folder, clone)
        elif is_asked:
            raise LanternError(_needs(rows, clone))
    options.batch = sorted(set(options.batch))
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    options = parsed(argv)
    # JAX would take most of a GPU's memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    peers, rows = Peers(options), []
    for batch in options.batch:
        ways = peers.ways(batch)
        tasks = {way.name: partial(_timed, way, options.rounds) for way in ways}
        taken = alternate(tasks, options.repeats)
        rows += [row_of(way, peers.row_batch(way, batch), taken[way.name]) for way in ways]
        if rows and options.out is not None:
            write_file(options.out, to_json(peers.report(rows)))
    if not rows:
        raise LanternError(f"nothing could be measured: {'; '.join(peers.left_out)}")
    show(peers.report(rows))


def _timed(way: Way, rounds: int | None, repeat: int) -> Sample:
    print(f"{way.title}, turn {repeat + 1}", file=sys.stderr, flush=True)
    return way.decode(repeat, rounds)


if __name__ == "__main__":
    run_script(main)
