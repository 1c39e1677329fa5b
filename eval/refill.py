"""What refilling finished slots is worth: pictures per second with and without it, and what idle slots cost.

    python -m eval.refill [--model demo] [--method auto] [--pictures 64] [--batch 8] [--repeats 3] [--out FILE.json]

The same pictures are decoded both ways in turns, without compile time and without drawing.

    idle        share of slot-rounds that no sequence uses: a slot waits until the slowest of its batch is done, or,
                with refill, until the last sequences of all are
    speed-up    pictures per second with refill over those without, the median of the repeats
    expected    what it would be if all rounds cost the same and a refill cost nothing: the ratio
                of the slot-rounds that both ways take for the same sequences
"""

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import lantern_jax
from eval.report import report
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.measuring.measure import alternate
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.engine.jobs import Job
from lantern_jax.pipeline.plan import Plan
from train.painter.scenes import sample_scene

# Seed of the scenes whose attributes are the prompts.
SCENES = 5_010


def prompts(count: int) -> list[str]:
    """Returns prompts that describe landscapes in words."""
    scenes = (sample_scene(SCENES, number) for number in range(count))
    return [" ".join(LANDSCAPES.labels(scene.indices()).values()) for scene in scenes]


def decode(call: Plan, job: Job, count: int, refill: bool) -> dict[str, float]:
    """Decodes ``count`` sequences; returns seconds without compiling, slot-rounds and how many of them were used."""
    numbers = np.arange(count)
    began, slot_rounds, compiling, tokens = time.perf_counter(), 0, 0.0, {}
    seen: dict[int, int] = {}
    for run, part in call.stream(job, numbers, numbers, refill):
        rounds = dict(zip(run.numbers.tolist(), np.asarray(run.state.decoded.rounds).tolist(), strict=False))
        # A piece took as many rounds as its longest sequence.
        slot_rounds += len(rounds) * max(now - seen.get(number, 0) for number, now in rounds.items())
        seen |= rounds
        # With refill there is one run. Without, later ones compile nothing.
        compiling = max(compiling, run.timing.compiling)
        if part is not None:
            tokens |= dict(zip(part.numbers.tolist(), part.decoded.tokens, strict=True))
    seconds = time.perf_counter() - began - compiling
    check = hashlib.sha256(b"".join(tokens[number].tobytes() for number in range(count))).hexdigest()
    return {"seconds": seconds, "slot_rounds": slot_rounds, "used": sum(seen.values()), "check": check}


def measure(
    pipeline: lantern_jax.Pipeline, method: str, pictures: int, batch: int, repeats: int
) -> dict[str, Any]:
    """Decodes the same pictures both ways, in turns."""
    call, job = pipeline.prepare(pipeline.encode(prompts(pictures)), seed=1, method=method, batch=batch)
    ways = {"without": False, "with": True}
    for refill in ways.values():
        decode(call, job, min(pictures, 2 * batch), refill)
    tasks = {
        name: lambda _, refill=refill: decode(call, job, pictures, refill) for name, refill in ways.items()
    }
    records = alternate(tasks, repeats)
    checks = {record["check"] for runs in records.values() for record in runs}
    assert len(checks) == 1, "refill changes tokens"
    found: dict[str, Any] = {"method": method, "batch": batch, "pictures": pictures, "repeats": repeats}
    for name, runs in records.items():
        found[f"pictures_a_second_{name}"] = [pictures / record["seconds"] for record in runs]
        found[f"idle_{name}"] = 1 - runs[0]["used"] / runs[0]["slot_rounds"]
    ratios = [
        old["seconds"] / new["seconds"] for old, new in zip(records["without"], records["with"], strict=True)
    ]
    found["speed_up"] = float(np.median(ratios))
    found["speed_ups"] = ratios
    found["expected"] = records["without"][0]["slot_rounds"] / records["with"][0]["slot_rounds"]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and reports."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=arguments.model, default="demo")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--pictures", type=arguments.whole(), default=64)
    parser.add_argument("--batch", type=arguments.whole(), default=8)
    parser.add_argument("--repeats", type=arguments.whole(), default=3)
    parser.add_argument("--out", type=arguments.new_file)
    given = parser.parse_args(argv)
    keep_compiled_programs()
    pipeline = lantern_jax.load(given.model)
    found = measure(pipeline, given.method, given.pictures, given.batch, given.repeats)
    report(found, given.out)


if __name__ == "__main__":
    run_script(main)
