"""Measuring configurations beside plain decoding, in turns: a slow minute of the machine slows all of them.

Every repetition decodes one batch of the same pictures plainly and with each configuration. Medians count: a single
disturbance does not matter.

Axes: n sequences of a batch, T stream tokens, L = max depth + 1.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Int

from lantern_jax.apps.measuring.accept_lengths import AcceptLengths
from lantern_jax.apps.measuring.forced import Forced
from lantern_jax.apps.measuring.rows import PLAIN, Row
from lantern_jax.apps.measuring.subject import Subject
from lantern_jax.apps.measuring.sweep import Configuration
from lantern_jax.decoding.stream import Decoded
from lantern_jax.devices.platform import device_name, versions
from lantern_jax.engine.jobs import Job, Run
from lantern_jax.io.errors import LanternError
from lantern_jax.settings.settings import SAMPLING, Settings

T = TypeVar("T")
LEAST_REPEATS = 3
# Passes before the first timed one.
_WARM_UP = 4


@dataclass(frozen=True)
class Procedure:
    """How configurations are measured.

    Attributes:
        pictures: how many each decodes, in whole batches and at least ``LEAST_REPEATS`` of them.
        passes: the passes after which a picture is stopped and the rest extrapolated; None for whole pictures.
        profile: accepted lengths to replay; None for those that verification finds.
        parts: (engine, run) -> a profile of a pass, with ``shares`` by part and ``kernels``; None for none.
    """

    pictures: int = 8
    passes: int | None = None
    profile: AcceptLengths | None = None
    parts: Callable[[Any, Run], Any] | None = None

    def repeats(self, batch: int) -> int:
        """Returns how many batches are decoded."""
        return max(LEAST_REPEATS, -(-self.pictures // batch))


@dataclass(frozen=True)
class Member:
    """A configuration with its settings and job for a model."""

    configuration: Configuration
    settings: Settings
    job: Job

    @property
    def group(self) -> tuple:
        """Members of a group have the same plain decoding."""
        return self.settings.batch, *(getattr(self.settings, name) for name in SAMPLING)


class Batch(NamedTuple):
    """One decoded batch: seconds per picture, seconds per pass of the whole batch, and what is known of it."""

    seconds: float
    pass_seconds: float
    decoded: Decoded


def members(
    subject: Subject, configurations: Iterable[Configuration], profile: AcceptLengths | None = None
) -> tuple[list[list[Member]], list[str]]:
    """Returns groups of members, plain decoding first in each, and why the other configurations cannot be measured."""
    groups: dict[tuple, dict[Settings, Member]] = {}
    reasons = []
    for configuration in configurations:
        try:
            settings = subject.settings(configuration.given)
            plain = subject.job(settings, plain=True)
            job = _forced(subject.job(settings), settings, profile)
        except ValueError as error:
            reasons.append(f"{configuration}: {error}")
            continue
        member = Member(configuration, settings, job)
        if member.group not in groups:
            options = {name: value for name, value in configuration.options.items() if name in SAMPLING}
            first = dataclasses.replace(configuration, method=PLAIN, options=options)
            alone = subject.settings(first.given)
            groups[member.group] = {alone: Member(first, alone, plain)}
        if not settings.is_plain:
            groups[member.group].setdefault(settings, member)
    return [list(group.values()) for group in groups.values()], reasons


def _forced(job: Job, settings: Settings, profile: AcceptLengths | None) -> Job:
    if profile is None or settings.is_plain:
        return job
    if job.program.rows is not None:
        raise LanternError(
            "rows in parallel accept nothing: leave the accept lengths or the method zipar out"
        )
    chances = profile.over(settings.tree.max_depth)
    return dataclasses.replace(
        job, program=job.program._replace(coupling=Forced(job.program.coupling, chances))
    )


def measure(
    subject: Subject,
    group: Sequence[Member],
    plan: Procedure,
    report: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measures the rows of one group, plain decoding's first.

    Args:
        group: of ``members``.
        report: told which row is being worked on.

    Raises:
        LanternError: a model whose numbers are not finite.
    """
    profiles = []
    for member in group:
        report(f"{member.configuration}, a pass")
        run = begin(subject, member, 0)
        run = subject.engine.advance(run, _WARM_UP)
        profiles.append(plan.parts and plan.parts(subject.engine, run))
        del run
    repeats = plan.repeats(group[0].settings.batch)

    def decode(member: Member, repeat: int) -> Batch:
        report(f"{member.configuration}, decoding {repeat + 1} of {repeats}")
        return decode_batch(subject, member, plan.passes, repeat)

    taken = alternate({str(number): partial(decode, member) for number, member in enumerate(group)}, repeats)
    return [
        _row(subject, member, plan, taken[str(number)], taken["0"], profiles[number])
        for number, member in enumerate(group)
    ]


def alternate(tasks: Mapping[str, Callable[[int], T]], repeats: int) -> dict[str, list[T]]:
    """Runs all tasks in turns, in reverse order every other time; returns what each gives in each repetition.

    A task is given the number of the repetition. Warm up and compile beforehand.
    """
    given: dict[str, list[T]] = {name: [] for name in tasks}
    for repeat in range(repeats):
        for name in list(tasks)[:: -1 if repeat % 2 else 1]:
            given[name].append(tasks[name](repeat))
    return given


def begin(subject: Subject, member: Member, repeat: int) -> Run:
    batch = member.settings.batch
    return subject.start(member.job, repeat * batch, batch)


def decode_batch(subject: Subject, member: Member, passes: int | None, repeat: int) -> Batch:
    """Decodes one batch; one that is stopped after some passes is assumed to continue as it began."""
    run = begin(subject, member, repeat)
    begun = run.timing.decoding
    run = subject.engine.advance(run, passes)
    took, decoded = run.timing.decoding - begun, subject.finish(run)
    count = len(decoded.tokens)
    share = subject.tokens_after_first(decoded) / (count * (len(subject.free) - 1))
    return Batch((begun + took / share) / count, took / int(decoded.rounds.max()), decoded)


def _row(
    subject: Subject,
    member: Member,
    plan: Procedure,
    samples: Sequence[Batch],
    plain: Sequence[Batch],
    profile: Any,
) -> Row:
    """Summarises several batches."""
    settings, configuration = member.settings, member.configuration
    is_forced = plan.profile is not None and not settings.is_plain
    # Nothing verifies rows in parallel either.
    is_known = not is_forced and member.job.program.rows is None
    seconds = [sample.seconds for sample in samples]
    decoded = jax.tree.map(lambda *parts: np.concatenate(parts), *(sample.decoded for sample in samples))
    tokens, rounds = subject.tokens_after_first(decoded), int(decoded.rounds.sum())
    substituted = int(decoded.substituted.sum())
    ms_a_pass = 1e3 * statistics.median(sample.pass_seconds for sample in samples)
    typical, plain_seconds = statistics.median(seconds), statistics.median(sample.seconds for sample in plain)
    speedup, quartiles = plain_seconds / typical, np.quantile(seconds, (0.25, 0.75)).tolist()
    return Row(
        model=subject.name,
        pixels=subject.pixels,
        dtype=subject.recipe.dtype.name,
        device=device_name(subject.engine.devices),
        batch=settings.batch,
        guidance=float(settings.guidance),
        method=configuration.method,
        options=dict(configuration.options),
        nodes=settings.tree.num_nodes - 1,
        depth=settings.tree.max_depth,
        passes=(len(subject.free) - 1) * rounds / tokens,
        tokens_a_pass=tokens / rounds,
        acceptance=_acceptance(decoded.accepted.sum(axis=0), rounds),
        ms_a_pass=ms_a_pass,
        seconds=typical,
        quartiles=quartiles,
        repeats=len(samples),
        plain_seconds=plain_seconds,
        speedup=speedup,
        speedup_quartiles=[plain_seconds / each for each in reversed(quartiles)],
        efficiency=speedup * rounds / tokens,
        substituted=substituted / tokens if is_known else None,
        distortion=float(decoded.distance.sum()) / max(substituted, 1) if is_known else None,
        forced=is_forced,
        accept_lengths=plan.profile.to_json() if is_forced else None,
        measured_passes=plan.passes,
        parts=profile and {name: share * ms_a_pass for name, share in profile.shares.items()},
        kernels=profile and profile.kernels,
        versions=versions(),
    )


def _acceptance(accepted: Int[np.ndarray, " L"], rounds: int) -> list[float]:
    """Returns the share of passes that accepted at least 1, 2, ... tokens, as far as any did."""
    least = np.cumsum(accepted[::-1])[::-1][1:]
    return [float(count) / rounds for count in least[least > 0]]
