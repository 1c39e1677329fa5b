"""``tune``: measure costs and acceptance, choose by predicted tokens per second, confirm side by side.

There are three sets of pictures: trees grow on the first, everything is estimated on the second, and the best
candidates are decoded side by side on the third.

Axes: n pictures, T stream tokens.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace

import numpy as np

from lantern_jax.apps.measuring import choose, costs, paths
from lantern_jax.apps.measuring.choose import PLAIN, Candidate, Goal, Guesses, Tuning
from lantern_jax.apps.measuring.clock import Clock, alternate
from lantern_jax.apps.measuring.costs import Costs
from lantern_jax.apps.measuring.paths import TreePath
from lantern_jax.apps.measuring.ranks import collect_ranks
from lantern_jax.apps.measuring.subject import Decodings, Subject
from lantern_jax.decoding.stream import Stream
from lantern_jax.decoding.tree import DraftTree, named_tree, tree_names
from lantern_jax.devices.platform import versions
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.engine.jobs import Job
from lantern_jax.settings.settings import Settings
from lantern_jax.settings.tuned import Key, Tuned

DEFAULT = "default"
# Shares of the time by which searching ends: trees of the first drafter, windows, other drafters, relaxed rules.
_TREES_UNTIL, _WINDOWS_UNTIL, _KINDS_UNTIL, _RULES_UNTIL = 0.65, 0.75, 0.8, 0.9
# Repetitions of the confirming run.
_LEAST, _MOST = 4, 16
# Repetitions needed to tell an error, and candidates that are compared however short the time is.
_SIDES = 2
_TREES = 3
# Candidates of the confirming run besides plain decoding and the default.
_FASTEST = 3
# Relaxed rules from loose to strict: the first of a kind that keeps to the budget is taken.
_RULES = (
    tuple(f"near:tau={tau:g}" for tau in (3.0, 2.0, 1.5, 1.0)),
    tuple(f"lantern++:lam={lam:g}" for lam in (3.0, 2.0, 1.5)),
)


class Tuner:
    """A tuning in progress.

    Args:
        subject: the model, with prompts like those to come.
        key: the key of the calls that it is for.
        report: told what is going on.
        clock: a clock for the plan's minutes; None begins one.

    Raises:
        LanternError: options that are not valid.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Goal,
        key: Key,
        report: Callable[[str], None],
        clock: Clock | None = None,
    ):
        self.subject, self.plan, self.key, self.report = subject, plan, key, report
        self.base = {name: value for name, value in plan.options.items() if value is not None}
        self.settings = subject.settings(self.base | {"method": "ar"})
        self.clock = Clock(60 * plan.minutes) if clock is None else clock
        self.kinds = [kind for kind in DRAFTERS if kind in subject.recipe.drafters]
        self.run_lengths, self.tokens = Stream(subject.recipe.target()).run, len(subject.free)
        # What was tried; how calls decode without tuning; what the confirming run decoded, by name.
        self.found: list[Candidate] = []
        self.default: Candidate | None = None
        self.given: dict[str, list[Decodings]] = {}
        self.is_stopped = False
        self.costs = Costs({})

    def run(self) -> Tuning:
        """Finds the fastest way of decoding or, after Ctrl-C, the fastest of those tried by then.

        Raises:
            LanternError: numbers that are not finite.
            KeyboardInterrupt: before anything was tried.
        """
        try:
            self._search()
            self._confirm()
        except KeyboardInterrupt:
            if not self.found:
                raise
            self.is_stopped = True
        return self._tuning()

    def _search(self) -> None:
        """Collects candidates and predicts how fast they are."""
        plan, subject = self.plan, self.subject
        self.report("decoding plainly")
        with self.clock.piece("plain"):
            plain = subject.decode(subject.job(self.settings), 0, 2 * plan.pictures, plan.pictures)
        self.costs = costs.measure(subject, self.settings, self.clock, report=self.report)
        step = self.costs.a_pass(1)
        # A confirming run of plain decoding and two others that are no slower.
        self.clock.keep(self._confirming([self.tokens * step / 1e3] * 3))
        self.found = [self._candidate(PLAIN, {"method": "ar"}, 1, plain.rounds[plan.pictures :], step)]
        for kind in self.kinds[:1]:
            self.found += self._trees(kind, plain, _TREES_UNTIL)
        self._windows()
        for kind in self.kinds[1:]:
            self.found += self._trees(kind, plain, _KINDS_UNTIL)
        if plan.budget.allows_relaxed:
            self._relaxed([row for row in sorted(self.found, key=_speed) if row.name != PLAIN])

    def _candidate(
        self, name: str, options: Mapping[str, str], nodes: int, rounds, ms: float, *relaxed
    ) -> Candidate:
        """Returns a candidate with what is predicted for it; the arguments are as its fields."""
        rate = choose.tokens_a_second(
            rounds, ms, tokens=self.tokens, begin=self.costs.begin, batch=self.settings.batch, error=self.costs.error
        )  # fmt: skip
        made = Candidate(name, options, nodes, rounds, ms, *relaxed)
        return replace(made, tokens_a_pass=paths.tokens_a_pass(rounds, self.tokens - 1), predicted=rate)

    def _confirming(self, seconds: list[float]) -> float:
        """Returns the least seconds of confirming candidates that decode in these; plain decoding is compiled."""
        return self.clock.predicted(draft=len(seconds) - 1) + (1 + _LEAST) * sum(seconds)

    def _decoded(self, options: Mapping[str, str]) -> Decodings:
        """Decodes the pictures that everything is estimated on."""
        count, job = self.plan.pictures, self._job(options)
        with self.clock.piece("pictures"):
            return self.subject.decode(job, count, count, count)

    def _job(self, options: Mapping[str, str]) -> Job:
        return self.subject.job(self._settings(options))

    def _settings(self, options: Mapping[str, str]) -> Settings:
        return self.subject.settings(self.base | dict(options))

    def _trees(self, kind: str, plain: Decodings, until: float) -> list[Candidate]:
        """Returns the best grown trees, and all named ones, with the rounds they take on other pictures.

        Adds the drafter's costs first; does neither if that would take too long.
        """
        programs = len(costs.draft_jobs(self.subject, self.settings, kind))
        if not self.clock.fits(until, ranks=1, draft=programs):
            return []
        self.report(f"timing the {kind} drafter")
        self.costs = costs.measure_drafts(self.subject, self.settings, self.clock, kind, self.costs)
        self.report(f"ranks of the {kind} drafter")
        count = self.plan.pictures
        with self.clock.piece("ranks"):
            ranks = collect_ranks(self.subject, kind, self.settings, plain.tokens, batch=count)
        counts = paths.path_counts(paths.roots(ranks[:count]))

        def cost(nodes: int, expanded: tuple[int, ...]) -> float:
            return self.costs.tree(kind, nodes, expanded)

        def candidate(name: str, tree: DraftTree) -> Candidate:
            options = {"method": f"gumbel:drafter={kind},tree={tree}"}
            rounds = paths.rounds_of(ranks[count:], tree, self.run_lengths)
            return self._candidate(name, options, tree.num_nodes, rounds, cost(tree.num_nodes, tree.expanded))

        def tokens(grown: list[TreePath]) -> float:
            # Not the sum of the counts: where much is accepted there are few rounds.
            rounds = paths.rounds_of(ranks[:count], DraftTree.from_paths(grown), self.run_lengths)
            return paths.tokens_a_pass(rounds, self.tokens - 1)[0]

        grown = choose.best_trees(counts, tokens, cost, most=_TREES)
        made = []
        for given in grown:
            tree = DraftTree.from_paths(given)
            name = f"tree of {tree.num_nodes - 1}, {tree.max_depth} deep ({kind})"
            made.append(candidate(name, tree))
        named = {name: named_tree(name) for name in tree_names()}
        codes = self.subject.recipe.config.num_codes
        fitting = {name: tree for name, tree in named.items() if tree.max_rank < codes}
        return made + [candidate(f"tree {name} ({kind})", tree) for name, tree in fitting.items()]

    def _windows(self) -> None:
        """Climbs from the platform's own windows: tokens per pass are measured, costs are predicted."""
        kind = next(iter(self.costs.drafts), None)

        def usual(method: str) -> Guesses:
            drafting = self._settings({"method": method}).drafting
            return Guesses(method, drafting.nodes, getattr(drafting, "refine", None))

        def value(guesses: Guesses) -> float:
            self.report(f"a window of {guesses.nodes}")
            options = {"method": str(guesses)}
            drafting = self._settings(options).drafting
            ms = self.costs.window(drafting.tree, kind if drafting.passes else None, drafting.passes)
            rounds = self._decoded(options).rounds
            self.found.append(self._candidate(str(guesses), options, drafting.tree.num_nodes, rounds, ms))
            return self.found[-1].predicted[0]

        def more() -> bool:
            return self.clock.fits(_WINDOWS_UNTIL, pictures=1)

        if more():
            starts = [usual(method) for method in (("led", "jacobi") if kind else ("jacobi",))]
            choose.climb(starts, choose.neighbours, value, more)

    def _relaxed(self, strict: list[Candidate]) -> None:
        """Tries the best strict candidates under the loosest rules that keep to the budget."""
        tried = False
        for base in strict[:2]:
            for rules in _RULES:
                for rule in rules:
                    if tried and not self.clock.fits(_RULES_UNTIL, pictures=1):
                        return
                    tried = True
                    self.report(f"{base.name}, rule {rule}")
                    options = {**base.options, "rule": rule}
                    decoded = self._decoded(options)
                    if self.plan.budget.holds(decoded.substituted):
                        name = f"{base.name}, {rule}"
                        given = decoded.rounds, base.ms, decoded.substituted, decoded.distance
                        self.found.append(self._candidate(name, options, base.nodes, *given))
                        break

    def _confirm(self) -> None:
        """Decodes the best by prediction, the default and plain decoding side by side on pictures of their own."""
        rows = sorted(self.found, key=_speed)
        plain = next(row for row in rows if row.name == PLAIN)
        self.default = self._default(rows)
        chosen = self._to_confirm(rows, plain, self.default)
        batch, first = self.settings.batch, 2 * self.plan.pictures
        jobs = {name: self._job(row.options) for name, row in chosen.items()}
        for name, job in list(jobs.items()):
            # If compiling took longer than expected, no time is left for others.
            if self.clock.remaining < self.clock.predicted(draft=1) and name not in list(jobs)[:_SIDES]:
                del jobs[name]
                continue
            self.report(f"compiling: {name}")
            self.subject.decode(job, first, batch, batch)
        seconds = sum(self._seconds(chosen[name]) for name in jobs)
        repeats = int(np.clip(self.clock.left() / seconds, _LEAST, _MOST))
        self.report(f"side by side, {repeats} times")

        def task(name, job):
            made = self.given[name] = []
            return lambda repeat: made.append(self.subject.decode(job, first + repeat * batch, batch, batch))

        tasks = {name: task(name, job) for name, job in jobs.items()}
        alternate(tasks, repeats, lambda repeat: repeat < _SIDES or self.clock.remaining > 0)

    def _tuning(self) -> Tuning:
        """Returns what was found: confirmed candidates by measured speed, before the others by predicted speed."""
        every = {row.name: row for row in [*self.found, *filter(None, [self.default])]}
        rows, default = sorted(every.values(), key=_speed), self.default.name if self.default else ""
        kept = {row.name for row in rows if self.plan.budget.holds(row.substituted)}
        whole = min(map(len, self.given.values()), default=0)
        confirmed = []
        if whole >= _SIDES:
            plain = self.given[PLAIN][:whole]
            confirmed = [
                self._measured(row, self.given[row.name][:whole], plain)
                for row in rows
                if row.name in self.given
            ]
            confirmed.sort(key=lambda row: -row.measured[0])
        rows = confirmed + [row for row in rows if whole < _SIDES or row.name not in self.given]
        return Tuning(self._tuned(rows, default, kept), tuple(rows), default, self.is_stopped)

    def _to_confirm(
        self, rows: list[Candidate], plain: Candidate, default: Candidate
    ) -> dict[str, Candidate]:
        """Returns the fastest three, or fewer if time is short, by name, with plain decoding and the default."""
        fastest = [row for row in rows if row is not plain][:_FASTEST]
        chosen = {row.name: row for row in [plain, *fastest[:1], default]}
        self.clock.keep(0.0)
        for row in fastest[1:]:
            more = chosen | {row.name: row}
            if self._confirming(list(map(self._seconds, more.values()))) < self.clock.left():
                chosen = more
        return chosen

    def _seconds(self, row: Candidate) -> float:
        """Returns the predicted seconds of a batch."""
        return self.tokens * self.settings.batch / row.predicted[0]

    def _default(self, rows: list[Candidate]) -> Candidate:
        """Returns the candidate that a call decodes with without tuning: one of the rows, or a new one."""
        settings = self.subject.settings(self.base)
        for row in rows:
            if self._settings(row.options) == settings:
                return row
        # If there is no time to see how many rounds it takes, it is predicted to take as many as plain decoding. What a
        # relaxed rule costs must be seen.
        is_relaxed = not settings.rule.is_strict
        is_known = is_relaxed or self.clock.fits(pictures=1)
        if is_known:
            decoded = self._decoded({})
            rounds, relaxed = decoded.rounds, (decoded.substituted, decoded.distance) if is_relaxed else ()
        else:
            rounds, relaxed = next(row.rounds for row in rows if row.name == PLAIN), ()
        # A round of it was not predicted: it is what others are compared with.
        nodes = settings.tree.num_nodes
        made = self._candidate(
            DEFAULT, settings.method.texts, nodes, rounds, self.costs.a_pass(nodes), *relaxed
        )
        return made if is_known else replace(made, tokens_a_pass=None)

    def _measured(self, row: Candidate, made: list[Decodings], plain: list[Decodings]) -> Candidate:
        """Adds what the confirming run measured; a relaxed rule's cost is then that of the run's pictures alone."""
        if row.tokens_a_pass is None:
            rounds = np.concatenate([part.rounds for part in made])
            row = self._candidate(row.name, row.options, row.nodes, rounds, row.ms)
        seconds = np.array([part.timing.decoding for part in made])
        rate = float(self.tokens * self.settings.batch * len(made) / seconds.sum())
        spread = float(seconds.std(ddof=1) / seconds.mean() / len(seconds) ** 0.5)
        plainly = np.array([part.timing.decoding for part in plain])
        error = float((plainly / seconds).std(ddof=1) / len(seconds) ** 0.5)
        if len(row.substituted):
            # Each part's distance is a mean over its own substitutions.
            counts = np.array([part.substituted.sum() for part in made])
            distance = float(counts @ [part.distance for part in made] / max(counts.sum(), 1e-9))
            shares = np.concatenate([part.substituted for part in made])
            row = replace(row, substituted=shares, distance=distance)
        speedup = float(plainly.sum() / seconds.sum()), error
        return replace(row, measured=(rate, rate * spread), speedup=speedup)

    def _tuned(self, rows: list[Candidate], default: str, kept: Collection[str]) -> Tuned:
        """Returns the fastest candidate that keeps to the budget and also did where it was estimated (in ``kept``)."""
        budget = self.plan.budget
        best = next(row for row in rows if row.name in kept and budget.holds(row.substituted))
        plain = next(row for row in rows if row.name == PLAIN)
        return Tuned(
            key=self.key,
            options=dict(best.options),
            name=best.name,
            speedup=best.predicted[0] / plain.predicted[0] if best.speedup is None else best.speedup[0],
            substituted=float(best.substituted.mean()) if len(best.substituted) else 0.0,
            budget={"max_substituted": budget.substituted} if budget.allows_relaxed else {},
            found={
                "candidates": [row.to_json() for row in rows],
                "default": default,
                "confirmed": best.speedup is not None,
                "costs": asdict(self.costs),
                "prompts": self.subject.prompts,
                "pictures": self.plan.pictures,
                "seconds": self.clock.spent,
                "versions": versions(),
            },
        )


def _speed(row: Candidate) -> float:
    """Returns a sort key: by predicted speed, the fastest first."""
    return -row.predicted[0]
