"""What a round costs on this device: a pass by its nodes, a level of drafting by its width, and each place of a window.

Everything is measured on rounds of compiled programs with the checkpoint's real shapes, at the batch, dtype and
guidance asked for; all programs take turns. The cost of a single stage is the difference between two such rounds, or
drafts.

Axes: B batch. All milliseconds are for a whole batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np

from lantern_jax.apps.measuring.clock import Clock, alternate
from lantern_jax.apps.measuring.round_costs import Costs, Drafts, on_line
from lantern_jax.apps.measuring.subject import Subject
from lantern_jax.decoding.drafting.eagle import Tree
from lantern_jax.decoding.drafting.jacobi import Jacobi
from lantern_jax.decoding.methods import Method
from lantern_jax.decoding.protocols import Draft, Drafting
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.program_cache import ProgramKey
from lantern_jax.settings.settings import Settings

# Nodes of the passes that are measured, root included: where kernels' tiles and padding end, and one node more.
NODES = (1, 2, 3, 5, 9, 17, 25, 33, 57, 121, 251)
# How many nodes of a level have children.
WIDTHS = (1, 4, 16)
# No tree pays for a pass that costs this many steps.
MOST_STEPS = 9.0
# Seconds that one timing should take.
PIECE_SECONDS = 0.12
_REPEATS = 5
_SHORT, _LONG, _BUSHY, _WINDOW = 1, 5, 3, 16
# Passes that are measured however long that takes, and the shares of a tuning's time by which others must end.
_LEAST_PASSES, _PASSES_UNTIL, _WINDOW_UNTIL = 2, 0.35, 0.5


@cache
def filler(nodes: int) -> Drafting:
    """Returns a drafting of ``nodes`` children of the root that cost nothing and are worth nothing."""
    tree = DraftTree.from_paths([(rank,) for rank in range(nodes)])

    def propose(params, state, pending, draws, sampling):
        root = pending.tokens[:, -1:]
        return Draft(jnp.concatenate([root, jnp.zeros((len(root), nodes), jnp.int32)], axis=1), tree), state

    return Drafting(lambda params, prefix, slots, span: (), propose, lambda params, state, outcome: state, 1)


def chains(count: int, depth: int) -> DraftTree:
    """Returns ``count`` chains below the root."""
    return DraftTree.from_paths([(rank, *(0,) * level) for rank in range(count) for level in range(depth)])


class Stopwatch:
    """Times rounds of jobs at one batch size: every job begins anew, so that only one cache at a time is in memory.

    Args:
        subject: what is decoded.
        batch: pictures decoded together.
    """

    def __init__(self, subject: Subject, batch: int):
        self._subject, self._batch = subject, batch
        self._pace: dict[ProgramKey, int] = {}

    def begin(self, job: Job) -> float:
        """Returns the milliseconds of prefill."""
        return self._subject.start(job, 0, self._batch).timing.decoding * 1e3

    def round(self, job: Job) -> float:
        """Returns the milliseconds per round, from about ``PIECE_SECONDS`` of rounds; the first call compiles."""
        engine = self._subject.engine
        run = engine.advance(self._subject.start(job, 0, self._batch), 1)
        pace = self._pace.get(run.key, 3)
        made, spent = int(run.state.decoded.rounds.max()), run.timing.decoding
        after = engine.advance(run, pace)
        more = int(after.state.decoded.rounds.max()) - made
        if not more:
            # The picture has so few tokens that the first round was the last.
            return spent * 1e3
        ms = (after.timing.decoding - spent) / more * 1e3
        self._pace[run.key] = int(np.clip(PIECE_SECONDS * 1e3 / ms, 3, 200))
        return ms


def _timed(watch: Stopwatch, jobs: Mapping[object, Job]) -> tuple[dict[object, float], float]:
    """Returns each job's median milliseconds per round, timed in turns, and their relative standard error."""
    for job in jobs.values():
        watch.round(job)
    tasks = {name: (lambda repeat, job=job: watch.round(job)) for name, job in jobs.items()}
    given = alternate(tasks, _REPEATS)
    errors = [np.std(times) / np.median(times) / _REPEATS**0.5 for times in given.values()]
    return {name: float(np.median(times)) for name, times in given.items()}, float(np.median(errors))


def measure(
    subject: Subject,
    settings: Settings,
    clock: Clock,
    report: Callable[[str], None] = lambda _: None,
) -> Costs:
    """Measures the costs of passes and of windows.

    Args:
        settings: batch, guidance and sampling; the rest is not read.
        clock: limits the number of passes, and times programs.
    """
    watch = Stopwatch(subject, settings.batch)
    plain = subject.job(settings, plain=True)
    jobs: dict[object, Job] = {1: plain}
    rough = {1: _first(watch, plain)}
    for nodes in NODES[1:]:
        if len(rough) >= _LEAST_PASSES and not clock.fits(_PASSES_UNTIL, program=2):
            break
        # A pass that is too expensive by the line of the others need not be compiled.
        if on_line(rough, nodes) > MOST_STEPS * rough[1]:
            break
        report(f"timing passes of {nodes} nodes")
        jobs[nodes] = replace(plain, program=plain.program._replace(drafting=filler(nodes - 1)))
        with clock.piece("program"):
            rough[nodes] = _first(watch, jobs[nodes])
    window = DraftTree.window(_WINDOW)
    if clock.fits(_WINDOW_UNTIL, draft=1):
        jobs["window"] = subject.job(replace(settings, method=Method(Jacobi(window=_WINDOW))))
    report("timing all in turns")
    times, error = _timed(watch, jobs)
    passes = _rising({nodes: ms for nodes, ms in times.items() if isinstance(nodes, int)})
    begin = float(np.median([watch.begin(plain) for _ in range(_REPEATS)]))
    costs = Costs(passes, begin, error=error)
    place = max(0.0, times.get("window", 0.0) - costs.a_pass(window.num_nodes)) / window.max_depth
    return replace(costs, place=place)


def measure_drafts(subject: Subject, settings: Settings, clock: Clock, kind: str, costs: Costs) -> Costs:
    """Adds the costs of a kind of drafter; a plain step is timed again beside it, to correct for the machine's pace."""
    watch = Stopwatch(subject, settings.batch)
    jobs = {1: subject.job(settings, plain=True), **draft_jobs(subject, settings, kind)}
    for job in jobs.values():
        with clock.piece("draft"):
            watch.round(job)
    times, error = _timed(watch, jobs)
    pace = costs.passes[1] / times[1]
    times = {name: ms * pace for name, ms in times.items()}
    drafts = {**costs.drafts, kind: draft_costs(costs, times, kind)}
    return replace(costs, drafts=drafts, error=max(error, costs.error))


def draft_jobs(subject: Subject, settings: Settings, kind: str) -> dict[object, Job]:
    """Returns jobs whose rounds tell what drafting costs, by (kind, width, depth)."""
    codes = subject.recipe.config.num_codes
    shapes = [(1, _SHORT), (1, _LONG), *((width, _BUSHY) for width in WIDTHS[1:] if width <= codes)]
    return {
        (kind, *shape): subject.job(replace(settings, method=Method(Tree(drafter=kind, tree=chains(*shape)))))
        for shape in shapes
    }


def draft_costs(costs: Costs, times: Mapping[object, float], kind: str) -> Drafts:
    """Returns what the rounds of ``draft_jobs`` cost beyond a pass over their nodes."""
    beyond = {
        shape: times[kind, *shape] - costs.a_pass(1 + shape[0] * shape[1])
        for shape in (name[1:] for name in times if isinstance(name, tuple) and name[0] == kind)
    }
    root = max(0.0, beyond[1, _SHORT])
    levels = {
        width: max(0.0, (ms - root) / (depth - 1)) for (width, depth), ms in beyond.items() if depth > 1
    }
    return Drafts(root, _rising(levels))


def _rising(measured: Mapping[int, float]) -> dict[int, float]:
    """Averages neighbours until more nodes never cost less: a fall is timing noise."""
    pools: list[list[float]] = []
    for size in sorted(measured):
        pools.append([measured[size]])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    values = [float(np.mean(pool)) for pool in pools for _ in pool]
    return dict(zip(sorted(measured), values, strict=True))


def _first(watch: Stopwatch, job: Job) -> float:
    watch.round(job)
    return watch.round(job)
