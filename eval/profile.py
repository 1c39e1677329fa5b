"""Where the time of a pass goes, from a profile of the very program that decodes.

The loop names its parts (``draft``, ``score``, ``verify``, ``commit``) in the metadata of what is compiled. A profile
names the instructions that ran, or on a GPU the kernels made from them; the program's text tells each one's part.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from lantern_jax.engine.engine import Engine
from lantern_jax.engine.jobs import Run

_DEVICE = "/device:"
PARTS = ("draft", "score", "verify", "sample", "commit")
_PASSES = 8
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_SCOPE = re.compile(r"op_name=\"([^\"]*)\"")
# What runs inside these is reported separately.
_AROUND = (" while(", " call(", " conditional(")
# A Pallas kernel has the name that its call was given.
_PALLAS = re.compile(r"([^/]*)/pallas_call$")
# A GPU's kernels of the same name are numbered.
_NUMBERED = re.compile(r"__\d+$")


@dataclass(frozen=True)
class PassProfile:
    """Shares of a pass, from a profile.

    Attributes:
        shares: the share of a pass that each part takes, instructions of no part under "other". Only shares, because
            profiling slows down what it watches.
        kernels: how many kernels or operations the device ran; None where the host ran them.
    """

    shares: Mapping[str, float]
    kernels: float | None


def profile_of_a_pass(engine: Engine, run: Run) -> PassProfile | None:
    """Profiles a few passes; returns None if the profile tells nothing.

    Args:
        run: a run that has begun; it is used up.
    """
    owners = owners_of(engine.program_text(run))
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            engine.advance(run, _PASSES)
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        planes = [plane for file in files for plane in jax.profiler.ProfileData.from_file(str(file)).planes]
        spent, events = spent_by_part(planes, owners)
    total = sum(spent.values())
    if not total:
        return None
    on_device = any(plane.name.startswith(_DEVICE) for plane in planes)
    shares = {part: value / total for part, value in spent.items()}
    return PassProfile(shares, events / _PASSES if on_device else None)


def owners_of(program: str) -> dict[str, str]:
    """Returns the part of each instruction in a program's text, and of each Pallas kernel by its call's name; "" for
    instructions that run others.

    An instruction that lost its scope to the compiler belongs to the part of the next one with a scope, which mostly
    reads it; a kernel that several parts call belongs to the part that calls it most often.
    """
    owners: dict[str, str] = {}
    calls: dict[str, Counter[str]] = {}
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
        if scope and (pallas := _PALLAS.search(scope[1])):
            calls.setdefault(pallas[1], Counter())[following] += 1
    return owners | {name: parts.most_common(1)[0][0] for name, parts in calls.items()}


def part_of(path: str) -> str:
    """Returns the part that a scope's path belongs to: the first one named in it."""
    return next((name for name in path.split("/") if name in PARTS), "other")


def spent_by_part(planes: Sequence[Any], owners: Mapping[str, str]) -> tuple[dict[str, float], int]:
    """Returns the nanoseconds of every part over a profile's planes, and the number of their events.

    An accelerator has planes of its own, whose streams, or else operations, are what ran; what ran there under a name
    that is not the program's (a copy, or a library's kernel) is "unknown". Without such planes the host ran it all.
    """
    devices = [plane for plane in planes if plane.name.startswith(_DEVICE)]
    kernels = {_kernel_name(name): part for name, part in owners.items()}
    spent: dict[str, float] = {}
    count = 0
    for plane in devices or planes:
        lines = list(plane.lines)
        if devices:
            streams = [line for line in lines if "Stream" in line.name]
            lines = streams or [line for line in lines if line.name == "XLA Ops"]
        for event in (event for line in lines for event in line.events):
            name = dict(event.stats).get("hlo_op")
            part = owners.get(name)
            # An event launched as part of a graph has only the kernel's name.
            if part is None and devices:
                part = kernels.get(_NUMBERED.sub("", event.name), "unknown")
            if part:
                spent[part] = spent.get(part, 0.0) + event.duration_ns
                count += 1
    return spent, count


def _kernel_name(instruction: str) -> str:
    return re.sub(r"[.-]", "_", instruction)
