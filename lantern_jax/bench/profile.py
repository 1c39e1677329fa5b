"""Where the time of a pass goes, from a profile of the very program that decodes.

The loop names its parts (``draft``, ``score``, ``verify``, ``commit``) in the metadata of what is compiled. A profile
names the instructions that ran; the program's text says which part each is of.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from lantern_jax.engine import Engine, Run

PARTS = ("draft", "score", "verify", "sample", "commit")
_PASSES = 8
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_SCOPE = re.compile(r"op_name=\"([^\"]*)\"")
# What runs inside these is told apart from them.
_AROUND = (" while(", " call(", " conditional(")


def shares_of_a_pass(engine: Engine, run: Run) -> dict[str, float] | None:
    """The share of a pass that each part takes, instructions of no part under "other"; None where nothing is told.

    Shares alone, for profiling slows what it watches.

    Args:
        run: on its way; it is used up.
    """
    owners = owners_of(engine.program_text(run))
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            engine.advance(run, _PASSES)
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        spent = spent_by_part(
            [plane for file in files for plane in jax.profiler.ProfileData.from_file(str(file)).planes],
            owners,
        )
    total = sum(spent.values())
    return {part: value / total for part, value in spent.items()} if total else None


def owners_of(program: str) -> dict[str, str]:
    """The part that each instruction of a program's text is of; none, "", for those that run others.

    One that lost its scope to the compiler is of the part of the next one that has a scope, which mostly reads it.
    """
    owners: dict[str, str] = {}
    following = "other"
    for line in reversed(program.splitlines()):
        found = _INSTRUCTION.match(line)
        if found is None:
            following = "other"  # Another computation.
            continue
        name, what = found.groups()
        if any(word in what for word in _AROUND):
            owners[name] = ""
            continue
        scope = _SCOPE.search(what)
        following = part_of(scope[1]) if scope else following
        owners[name] = following
    return owners


def part_of(path: str) -> str:
    """The part that a scope's path belongs to: the first one named in it."""
    return next((name for name in path.split("/") if name in PARTS), "other")


def spent_by_part(planes: Sequence[Any], owners: Mapping[str, str]) -> dict[str, float]:
    """Nanoseconds of every part over a profile's planes.

    An accelerator has planes of its own, whose streams, or else operations, are what ran; what ran there under no name
    of the program (a graph that was launched as a whole, say) is "unknown". Without such planes the host ran it all.
    """
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    spent: dict[str, float] = {}
    for plane in devices or planes:
        lines = list(plane.lines)
        if devices:
            streams = [line for line in lines if "Stream" in line.name]
            lines = streams or [line for line in lines if line.name == "XLA Ops"]
        for event in (event for line in lines for event in line.events):
            name = dict(event.stats).get("hlo_op")
            part = owners.get(name, "unknown" if devices else "")
            if part:
                spent[part] = spent.get(part, 0.0) + event.duration_ns
    return spent
