"""Measures the engine on the accelerator of this machine, in one command of nine minutes at most.

    python -m eval.accelerator [--out accelerator.json] [--minutes 9] [--sizes llamagen-xl,llamagen-xxl,chameleon-7b]
                               [--batch 1,8,64] [--passes 48] [--accept-lengths 3.63] [--dtype bfloat16]

For every size: a step of plain decoding, and rounds with a static tree of 25 nodes, a window of 18 nodes without a
drafter, a led window of 25 nodes and a chain; for several pictures together a chain and a window of 4. Weights are
random, accepted lengths are replayed, and pictures stop after some passes. Then the demo's methods. Every row says,
from a profile, where the time of a pass goes: the target's pass (``score``), the draft, verification, the commit, and
the number of kernels; with one picture at a time, the cost of a level of the draft too. The bandwidth is measured once.

Everything is in one JSON file, written after every part: a run that is cut off keeps what it has. A part that does not
fit into the time left is left out and named; the most important ones come first. Compiled programs are cached, so that
a second run gets further. On a CPU: `--sizes llamagen-b --batch 1 --passes 8 --dtype float32`.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lantern_jax
from eval.bandwidth import Bandwidth
from eval.profile import profile_of_a_pass
from eval.report import to_json
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.commands.options import DTYPES
from lantern_jax.apps.measuring.accept_lengths import AcceptLengths, parse_accept_lengths
from lantern_jax.apps.measuring.measure import Member, Procedure, begin, measure, members
from lantern_jax.apps.measuring.random_models import random_model
from lantern_jax.apps.measuring.subject import Subject, checkpoint_subject, random_subject, sample_prompts
from lantern_jax.apps.measuring.sweep import expand, parse_list
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.devices.platform import device_name, versions
from lantern_jax.io.files import write_file

SIZES = "llamagen-xl,chameleon-7b,llamagen-xxl"
METHODS = (
    "gumbel:tree=mc_sim_7b_63",
    "jacobi:nodes=18",
    "led:window=23,branches=3,levels=1",
    "gumbel:tree=chain",
)
METHODS_OF_MANY = ("gumbel:tree=chain", "jacobi:window=4")
DEMO_METHODS = ("led", "gumbel", "lantern-g", "jacobi", "eagle", "echo")
# Expected of a part that has not been timed yet.
_GUESS_SECONDS = 40.0
# Compiling runs every program once, and several large batches may not fit together.
_THREADS, _LARGEST_TOGETHER = 4, 8


def compile_group(subject: Subject, group: Sequence[Member], threads: int = 1) -> list[float]:
    """Compiles what a group needs; returns each member's seconds of compiling; their threads share the machine."""
    _ = subject.engine.parameters  # Reading them is not compiling.
    for member in group:
        if member.job.drafter is not None:
            subject.engine.drafter(member.job.drafter)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda member: begin(subject, member, 0).timing.compiling, group))


class Report:
    """What was measured so far, in a file that is complete at any moment.

    Args:
        file: written after every part.
        seconds: how long everything may take.
    """

    def __init__(self, file: Path, seconds: float):
        self.file, self._begun, self._seconds = file, time.perf_counter(), seconds
        self._lock = threading.Lock()
        self.content: dict[str, Any] = {"seconds": seconds, "finished": False, "parts": []}

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._seconds - (time.perf_counter() - self._begun)

    def part(self, name: str, expected: float, make: Callable[[], Any]) -> float | None:
        """Makes a part if it fits; returns the seconds it took, None if it gave nothing."""
        began, entry = time.perf_counter(), {"name": name}
        if self.left < expected:
            entry["left_out"] = f"{self.left:.0f} s were left, and it was expected to take {expected:.0f} s"
        else:
            print(f"{name}, {self.left:.0f} s left", file=sys.stderr, flush=True)
            self.content["running"] = name
            self.write()
            try:
                entry["rows"] = make()
            except (ValueError, RuntimeError) as error:
                entry["failed"] = " ".join(str(error).split())[:400]
            entry["took"] = time.perf_counter() - began
        self.content["parts"].append(entry)
        self.content.pop("running", None)
        self.write()
        return entry.get("took") if "rows" in entry else None

    def write(self) -> None:
        """Writes the file."""
        with self._lock:
            write_file(self.file, to_json(self.content))

    def stop(self) -> None:
        """Ends the process: nothing else interrupts what runs on a device."""
        self.content["cut_off"] = self.content.get("running", "")
        self.write()
        print(f"time is over, wrote {self.file}", file=sys.stderr, flush=True)
        os._exit(0)


def measured(subject: Subject, pair: Sequence[Member], plan: Procedure) -> list[dict[str, Any]]:
    """Returns rows of plain decoding and other methods, as JSON."""
    return [asdict(row) for row in measure(subject, pair, plan)]


def measure_size(
    report: Report, size: str, batch: int, plan: Procedure, dtype: str, expected: float
) -> float:
    """Measures all methods at one size and batch; returns the seconds they took."""
    began, name = time.perf_counter(), f"{size}, batch {batch}"
    methods = METHODS if batch == 1 else METHODS_OF_MANY
    held: dict[str, Any] = {}

    def compiled() -> list[float]:
        held["subject"] = subject = random_subject(size, dtype, prompts=batch)
        groups, reasons = members(subject, expand(methods, batches=(batch,)), plan.profile)
        held["group"] = group = groups[0]
        report.content.setdefault("reasons", []).extend(reasons)
        return compile_group(subject, group, _THREADS if batch <= _LARGEST_TOGETHER else 1)

    if report.part(f"{name}, compiling", expected, compiled) is None:
        return time.perf_counter() - began
    plain, *others = held["group"]
    least = 5.0
    for member in others:
        what = f"{name}, {member.configuration}"
        took = report.part(
            what, least, lambda member=member: measured(held["subject"], (plain, member), plan)
        )
        least = took or least
    return time.perf_counter() - began


def measure_demo(plan: Procedure) -> list[dict[str, Any]]:
    """Measures the demo's methods on whole pictures."""
    pipeline = lantern_jax.load("demo")
    subject = checkpoint_subject("demo", pipeline, sample_prompts(pipeline.checkpoint, 8))
    groups, _ = members(subject, expand(DEMO_METHODS))
    compile_group(subject, groups[0], _THREADS)
    return measured(subject, groups[0], plan)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures everything and writes it."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=arguments.new_file, default="accelerator.json", help="the file")
    add("--minutes", type=arguments.number(above=True), default=9.0, help="for everything (default: 9)")
    add("--sizes", type=arguments.words, default=SIZES, help=f"published sizes (default: {SIZES})")
    add("--batch", default="1,8,64", help="pictures decoded together (default: 1,8,64)")
    add("--passes", type=arguments.whole(), default=48, help="per picture (default: 48)")
    add("--pictures", type=arguments.whole(3), default=5, help="batches of each method (default: 5)")
    add("--accept-lengths", default="3.63", help="as of `lantern bench` (default: 3.63)")
    add("--dtype", default="bfloat16", choices=DTYPES, help="of the random models (default: bfloat16)")
    add("--no-demo", action="store_true", help="leave the demo out")
    options = parser.parse_args(argv)
    profile: AcceptLengths = parse_accept_lengths(options.accept_lengths)
    batches, sizes = [arguments.whole()(word) for word in parse_list("batch", options.batch)], options.sizes
    for size in sizes:
        random_model(size)
    report = Report(options.out, 60 * options.minutes)
    watch = threading.Timer(max(report.left - 5, 1), report.stop)
    watch.daemon = True
    watch.start()
    keep_compiled_programs()
    report.content |= {"device": device_name(), "versions": versions()}
    report.part("bandwidth", 0, lambda: {"bytes_a_second": Bandwidth().measure(10)})
    common = {"profile": profile, "parts": profile_of_a_pass}
    expected: dict[str, float] = {}
    for place, batch in enumerate(batches):
        for size in sizes:
            plan = Procedure(pictures=batch * options.pictures, passes=options.passes, **common)
            guess = expected.get(size, _GUESS_SECONDS if place else 0.0)
            expected[size] = measure_size(report, size, batch, plan, options.dtype, guess)
        if place == 0 and not options.no_demo:
            plan = Procedure(pictures=8, parts=profile_of_a_pass)
            report.part("demo", _GUESS_SECONDS, lambda plan=plan: measure_demo(plan))
    watch.cancel()
    report.content["finished"] = True
    report.write()
    print(f"wrote {options.out}")


if __name__ == "__main__":
    run_script(main)
