"""``tune``: a race. Ways of decoding make the same pictures in turns, and the slower half drops out until one is left.

This is successive halving (arXiv 1502.07943): each way gets one turn, the faster half of them two more, the faster half
of these four more, and so on. Plain decoding and what a call takes without tuning stay to the end. Speeds are relative
to plain decoding of the same pictures, so that a slow minute of the machine slows all of them.
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from lantern_jax.apps.measuring.subject import Decodings, Subject
from lantern_jax.decoding.tree import tree_names
from lantern_jax.devices.platform import versions
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.engine.jobs import Job
from lantern_jax.io.errors import LanternError
from lantern_jax.settings.settings import Settings
from lantern_jax.settings.tuned import Key, Tuned

PLAIN = "ar"
# How many of the windows that ``auto`` knows take part, those that it expects most of.
_WINDOWS = 8
# Relaxed rules from loose to strict, and how many of the fastest strict ways take part with them.
RULES = (
    *(f"near:tau={tau:g}" for tau in (3.0, 2.0, 1.5, 1.0)),
    *(f"lantern++:lam={lam:g}" for lam in (3.0, 2.0, 1.5)),
)
_RELAXED = 2
# Shares of the time by which first turns, compiling included, should end: of strict ways, and of relaxed ones.
_STRICT_UNTIL, _RELAXED_UNTIL = 0.5, 0.7
# Turns of the first round, which takes place however short the time is, and the fewest of the last.
_LEAST, _ENOUGH = 2, 8


@dataclass(frozen=True)
class Entrant:
    """A way of decoding in the race.

    Attributes:
        options: a method, and a rule, as text: options of a generation that decodes this way.
        job: what decodes a batch.
        is_default: whether a call decodes this way without tuning.
        turns: what it has made of batch 0, 1, 2, ...
        is_out: whether it has dropped out.
    """

    options: Mapping[str, str]
    job: Job
    is_default: bool = False
    turns: tuple[Decodings, ...] = ()
    is_out: bool = False

    @property
    def name(self) -> str:
        """Its options in a line."""
        return " ".join(self.options.values())

    @property
    def may_drop_out(self) -> bool:
        """Whether it is in the race, and neither plain decoding nor the default."""
        return not (self.is_out or self.is_default or self.name == PLAIN)

    @property
    def seconds(self) -> Float[np.ndarray, " turns"]:
        """Seconds of decoding alone."""
        return np.array([turn.timing.decoding for turn in self.turns])

    def times_plain(self, plain: "Entrant") -> tuple[float, float | None]:
        """Returns how many times as fast as plain decoding it is, and the standard error; None for a single turn.

        The first turn, right after compiling, counts only where there is no other.
        """
        both = min(len(self.turns), len(plain.turns))
        ours, theirs = (one.seconds[min(1, both - 1) : both] for one in (self, plain))
        error = float((theirs / ours).std(ddof=1) / len(ours) ** 0.5) if len(ours) > 1 else None
        return float(theirs.sum() / ours.sum()), error

    def substituted(self) -> tuple[float, float]:
        """Returns the share of tokens that its rule put in place of the strict rule's, and its standard error."""
        shares = np.concatenate([turn.substituted for turn in self.turns])
        error = float(shares.std(ddof=1) / len(shares) ** 0.5) if len(shares) > 1 else 0.0
        return float(shares.mean()), error

    def keeps_to(self, budget: float | None) -> bool:
        """Tells whether it is strict, or substitutes at most this share of tokens, the error counted against it."""
        return self.job.rule.is_strict or (budget is not None and sum(self.substituted()) <= budget)


# Entrants by name, plain decoding first.
Field = dict[str, Entrant]


def tune(
    subject: Subject,
    options: Mapping[str, Any],
    key: Key,
    budget: float | None,
    left: Callable[[float], float],
    report: Callable[[str], None],
) -> tuple[Tuned, bool]:
    """Returns the fastest way of decoding, and whether Ctrl-C came before the end of the race.

    Args:
        subject: the model, with prompts like those to come.
        options: batch, guidance and sampling of the calls that it is for.
        key: theirs.
        budget: the share of tokens that relaxed rules may substitute; None for no such rules.
        left: share -> the seconds until that share of the time is over.
        report: told what is going on.

    Raises:
        LanternError: options that are not valid; numbers that are not finite.
        KeyboardInterrupt: before the end of the first turn.
    """
    field: Field = {}
    is_stopped = False
    try:
        for after in race(subject, options, budget, left, report):
            field = after
    except KeyboardInterrupt:
        if not field:
            raise
        is_stopped = True
    return _tuned(subject, field, key, budget), is_stopped


def race(
    subject: Subject,
    options: Mapping[str, Any],
    budget: float | None,
    left: Callable[[float], float],
    report: Callable[[str], None],
) -> Iterator[Field]:
    """Yields the field after every turn; arguments as of ``tune``.

    Nothing begins that should not end in time by what it took before. Two first turns, and two more of plain decoding,
    the default and one other way, take place however short the time is.
    """
    batch = subject.settings(options).batch
    field: Field = {}

    def turn(entrant: Entrant) -> Field:
        made = subject.decode(entrant.job, len(entrant.turns) * batch, batch, batch)
        return field | {entrant.name: replace(entrant, turns=(*entrant.turns, made))}

    def first_turns(entrants: Iterable[Entrant], until: float) -> Iterator[Field]:
        nonlocal field
        for entrant in entrants:
            if len(field) >= 2 and max(map(_first, field.values())) > left(until):
                return
            report(f"first turn of {entrant.name}")
            field = turn(entrant)
            yield field

    yield from first_turns(strict(subject, options), _STRICT_UNTIL)
    if budget is not None:
        yield from first_turns(relaxed(subject, options, field), _RELAXED_UNTIL)
    turns = _LEAST
    while True:
        field = halved(field, budget)
        while _challengers(field) > 1 and turns * _seconds(field) > left(1):
            field = halved(field, budget)
        for number in range(turns):
            if turns > _LEAST and _seconds(field) > left(1):
                return
            racing = [entrant.name for entrant in field.values() if not entrant.is_out]
            # What ran before a program changes its time: each turn has an order of its own.
            for name in random.Random(number).sample(racing, len(racing)):
                report(f"{len(racing)} ways in the race, turn {number + 1} of {turns}: {name}")
                field = turn(field[name])
                yield field
        if _challengers(field) <= 1 and turns >= _ENOUGH:
            return
        turns *= 2


def strict(subject: Subject, options: Mapping[str, Any]) -> list[Entrant]:
    """Returns plain decoding, what a call takes without tuning, and other ways that give plain decoding's tokens."""
    recipe, usual = subject.recipe, subject.settings(options)
    best, expected = recipe.choice(usual, usual.batch, jax.default_backend(), len(subject.engine.devices))
    default = {"method": best.method} if usual.keeps_tokens else usual.method.texts
    methods = [row.method for row in expected if row.nodes][:_WINDOWS]
    kinds = [kind for kind in DRAFTERS if kind in recipe.drafters]
    methods += [f"gumbel:drafter={kind}" for kind in kinds]
    if kinds:
        methods += ["echo", *(f"gumbel:drafter={kinds[0]},tree={name}" for name in tree_names())]
    ways = [{"method": PLAIN}, default, *({"method": method} for method in methods)]
    return _entrants(subject, options, ways, default)


def relaxed(subject: Subject, options: Mapping[str, Any], field: Field) -> list[Entrant]:
    """Returns the fastest strict ways but plain decoding, each with all relaxed rules."""
    fastest = [entrant for entrant in _fastest(field) if entrant.job.rule.is_strict and entrant.name != PLAIN]
    ways = [{**entrant.options, "rule": rule} for entrant in fastest[:_RELAXED] for rule in RULES]
    return _entrants(subject, options, ways)


def _entrants(
    subject: Subject, options: Mapping[str, Any], ways: Iterable[Mapping[str, str]], default: Any = None
) -> list[Entrant]:
    """Returns the ways that fit the model, those with the same settings once."""
    found: dict[Settings, Entrant] = {}
    for way in ways:
        with contextlib.suppress(LanternError):
            settings = subject.settings({**options, **way})
            found.setdefault(settings, Entrant(way, subject.job(settings), way == default))
    return list(found.values())


def halved(field: Field, budget: float | None) -> Field:
    """Returns the field with the slower half of those that may drop out, and all beyond the budget, out of the race."""
    racing = [entrant for entrant in _fastest(field) if entrant.may_drop_out]
    fitting = [entrant.name for entrant in racing if entrant.keeps_to(budget)]
    kept = fitting[: max(1, len(fitting) // 2)]
    dropped = [replace(entrant, is_out=True) for entrant in racing if entrant.name not in kept]
    return field | {entrant.name: entrant for entrant in dropped}


def _fastest(field: Field) -> list[Entrant]:
    """Sorts the entrants, those that are in the race before the others."""
    plain = field[PLAIN]
    return sorted(field.values(), key=lambda entrant: (entrant.is_out, -entrant.times_plain(plain)[0]))


def _challengers(field: Field) -> int:
    return sum(entrant.may_drop_out for entrant in field.values())


def _first(entrant: Entrant) -> float:
    """Returns the seconds of a first turn, compiling included."""
    return entrant.turns[0].timing.decoding + entrant.turns[0].timing.compiling


def _seconds(field: Field) -> float:
    """Returns the seconds of a turn of all that are in the race, as the last one took."""
    return sum(entrant.seconds[-1] for entrant in field.values() if not entrant.is_out)


def _tuned(subject: Subject, field: Field, key: Key, budget: float | None) -> Tuned:
    """Returns the fastest of those that are in the race and keep to the budget, with the numbers of all."""
    plain, tokens, rows = field[PLAIN], len(subject.free), _fastest(field)

    def numbers(entrant: Entrant) -> dict[str, Any]:
        counted = entrant.turns[1:] or entrant.turns
        seconds = sum(turn.timing.decoding for turn in counted)
        return {
            "options": dict(entrant.options),
            "is_default": entrant.is_default,
            "turns": len(entrant.turns),
            "tokens_a_pass": (tokens - 1) / float(np.mean([turn.rounds for turn in entrant.turns])),
            "tokens_a_second": tokens * sum(len(turn.rounds) for turn in counted) / seconds,
            "times_plain": entrant.times_plain(plain),
            "substituted": entrant.substituted(),
        }

    best = next(entrant for entrant in rows if not entrant.is_out and entrant.keeps_to(budget))
    return Tuned(
        key=key,
        options=dict(best.options),
        speedup=best.times_plain(plain)[0],
        substituted=best.substituted()[0],
        budget=budget,
        confirmed=len(best.turns) > 1,
        found={
            "candidates": list(map(numbers, rows)),
            "prompts": subject.prompts,
            "versions": versions(),
        },
    )
