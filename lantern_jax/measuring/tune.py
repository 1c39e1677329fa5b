"""``tune``: measure costs and acceptance, choose by predicted tokens a second, confirm side by side.

Pictures are of three kinds: trees grow on the first, everything is estimated on the second, and the best are decoded
side by side on the third.

Axes: n pictures, T stream tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.decoding.stream import Stream
from lantern_jax.decoding.tree import DraftTree, named_tree, tree_names
from lantern_jax.devices.platform import versions
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.measuring import choose, costs, paths
from lantern_jax.measuring.alternate import alternate
from lantern_jax.measuring.choose import Budget, Candidate, WindowPoint
from lantern_jax.measuring.clock import Clock
from lantern_jax.measuring.costs import Costs
from lantern_jax.measuring.paths import TreePath
from lantern_jax.measuring.ranks import collect_ranks
from lantern_jax.measuring.samples import Decodings, Samples
from lantern_jax.settings.tuned import Key, Tuned

PLAIN, DEFAULT = "plain", "default"
# Of the time there is: when searching ends among trees of the first drafter, windows, other drafters, relaxed rules.
_TREES_UNTIL, _WINDOWS_UNTIL, _KINDS_UNTIL, _RULES_UNTIL = 0.65, 0.75, 0.8, 0.9
# Repetitions of the confirming run.
_LEAST, _MOST = 4, 16
_TREES = 3
# Candidates of the confirming run beside plain decoding and the default.
_FASTEST = 3
# Relaxed rules from loose to strict: the first of a kind that keeps to the budget is taken.
_RULES = (
    tuple({"rule": "near", "tau": tau} for tau in (3.0, 2.0, 1.5, 1.0)),
    tuple({"rule": "lantern++", "lam": lam} for lam in (3.0, 2.0, 1.5)),
)


@dataclass(frozen=True)
class Plan:
    """How a tuning goes about.

    Attributes:
        knobs: batch, guidance and sampling of the calls that it is for; None for the defaults.
        budget: what relaxed rules may cost.
        pictures: that trees grow on, and as many again that everything is estimated on; decoded at once.
        minutes: how long it takes, unless decoding the pictures plainly and the confirming run alone take longer.
    """

    knobs: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    pictures: int = 16
    minutes: float = 5.0


@dataclass(frozen=True)
class Row:
    """A candidate with what was predicted and measured of it.

    Attributes:
        candidate: the candidate.
        tokens_a_pass, predicted: (value, standard error); the latter in tokens a second.
        measured: (tokens a second, standard error) of the confirming run; None where it had no part in it.
        speedup: (times plain decoding's speed, standard error) there.
    """

    candidate: Candidate
    tokens_a_pass: tuple[float, float]
    predicted: tuple[float, float]
    measured: tuple[float, float] | None = None
    speedup: tuple[float, float] | None = None

    def to_json(self) -> dict:
        """Plain numbers by name."""
        made, relaxed = self.candidate, len(self.candidate.substituted) > 0
        values = {"name": made.name, "knobs": dict(made.knobs), "nodes": made.nodes, "ms_a_round": made.ms,
                  "tokens_a_pass": self.tokens_a_pass, "predicted": self.predicted, "measured": self.measured,
                  "speedup": self.speedup}  # fmt: skip
        return values | (
            {"substituted": float(made.substituted.mean()), "distance": made.distance} if relaxed else {}
        )


@dataclass(frozen=True)
class Tuning:
    """What a tuning found.

    Attributes:
        tuned: to be written.
        rows: all candidates: those confirmed by their measured speed, then the others by their predicted one.
        default: the name of the one that a call decodes by without tuning.
    """

    tuned: Tuned
    rows: tuple[Row, ...]
    default: str


class Tuner:
    """A tuning on its way.

    Args:
        samples: pictures of prompts that are like those to come; of a pipeline without tuned settings.
        report: told what is going on.
        clock: of the plan's minutes; None begins one.

    Raises:
        ValueError: knobs that are not valid.
    """

    def __init__(
        self, samples: Samples, plan: Plan, report: Callable[[str], None], clock: Clock | None = None
    ):
        self.samples, self.plan, self.report = samples, plan, report
        self.base = {name: value for name, value in plan.knobs.items() if value is not None}
        self.settings = samples.settings(self.base | {"method": "ar"})
        self.clock = Clock(60 * plan.minutes) if clock is None else clock
        held = samples.pipeline.checkpoint.drafters
        self.kinds = [kind for kind in DRAFTERS if kind in held]
        self.run_lengths = Stream(samples.target).run
        self.statistics: dict[str, Any] = {}

    def run(self) -> Tuning:
        """Finds the fastest way of decoding; ValueError for numbers that are not finite."""
        plan, samples = self.plan, self.samples
        self.report("decoding plainly")
        with self.clock.piece("plain"):
            plain = samples.decode(samples.pipeline.job(self.settings), 0, 2 * plan.pictures, plan.pictures)
        measured = costs.measure(samples, self.settings, self.clock, report=self.report)
        # Of plain decoding and two others that are no slower.
        self.clock.keep(self._confirming([samples.free * measured.a_pass(1) / 1e3] * 3))
        held_out = plain.rounds[plan.pictures :]
        found = [Candidate(PLAIN, {"method": "ar"}, 1, held_out, measured.a_pass(1))]
        for kind in self.kinds[:1]:
            measured, trees = self._drafted(kind, plain, measured, _TREES_UNTIL)
            found += trees
        found += self._windows(measured)
        for kind in self.kinds[1:]:
            measured, trees = self._drafted(kind, plain, measured, _KINDS_UNTIL)
            found += trees
        rows = sorted(map(self._row(measured), found), key=lambda row: -row.predicted[0])
        if plan.budget.allows_relaxed:
            relaxed = self._relaxed([row.candidate for row in rows if row.candidate.name != PLAIN])
            rows = sorted([*rows, *map(self._row(measured), relaxed)], key=lambda row: -row.predicted[0])
        default = self._default(rows, measured)
        rows = self._confirmed(rows, default, measured)
        return Tuning(self._tuned(rows, default, measured), tuple(rows), default.candidate.name)

    def _confirming(self, seconds: list[float]) -> float:
        """Seconds that a confirming run takes at least, of candidates that decode in so many; plain's is compiled."""
        return self.clock.predicted(draft=len(seconds) - 1) + (1 + _LEAST) * sum(seconds)

    def _decoded(self, knobs: Mapping[str, Any]) -> Decodings:
        """The pictures that everything is estimated on."""
        count, samples = self.plan.pictures, self.samples
        job = samples.pipeline.job(samples.settings(self.base | dict(knobs)))
        with self.clock.piece("pictures"):
            return samples.decode(job, count, count, count)

    def _drafted(
        self, kind: str, plain: Decodings, measured: Costs, until: float
    ) -> tuple[Costs, list[Candidate]]:
        """With a drafter's costs, and its trees; no more than there was where they would take too long."""
        programs = len(costs.draft_jobs(self.samples, self.settings, kind))
        if not self.clock.fits(until, ranks=1, draft=programs):
            return measured, []
        self.report(f"timing the {kind} drafter")
        measured = costs.measure_drafts(self.samples, self.settings, self.clock, kind, measured)
        return measured, self._trees(kind, plain, measured)

    def _trees(self, kind: str, plain: Decodings, measured: Costs) -> list[Candidate]:
        """The trees that pay best by what grew, and all named ones, with the rounds they take on other pictures."""
        self.report(f"ranks of the {kind} drafter")
        count = self.plan.pictures
        with self.clock.piece("ranks"):
            ranks = collect_ranks(self.samples, kind, self.settings, plain.tokens, batch=count)
        grown_on = paths.roots(ranks[:count])
        counts = paths.path_counts(grown_on)

        def cost(nodes: int, expanded: tuple[int, ...]) -> float:
            return measured.tree(kind, nodes, expanded)

        def candidate(name: str, given: Any, tree: DraftTree) -> Candidate:
            knobs = {"method": "gumbel", "drafting": kind, "tree": given}
            rounds = paths.rounds_of(ranks[count:], tree, self.run_lengths)
            return Candidate(name, knobs, tree.num_nodes, rounds, cost(tree.num_nodes, tree.expanded))

        def tokens(grown: list[TreePath]) -> float:
            # Not the counts' sum: where much is accepted there are few rounds.
            rounds = paths.rounds_of(ranks[:count], DraftTree.from_paths(grown), self.run_lengths)
            return paths.tokens_a_pass(rounds, self.samples.free - 1)[0]

        grown = choose.best_trees(counts, tokens, cost, most=_TREES)
        self.statistics[kind] = self._path_statistics(ranks, counts, grown_on)
        made = []
        for given in grown:
            tree = DraftTree.from_paths(given)
            name = f"tree of {tree.num_nodes - 1}, {tree.max_depth} deep ({kind})"
            made.append(candidate(name, [list(path) for path in given], tree))
        named = {name: named_tree(name) for name in tree_names()}
        codes = self.samples.pipeline.checkpoint.target_config.num_codes
        fitting = {name: tree for name, tree in named.items() if tree.max_rank < codes}
        return made + [candidate(f"tree {name} ({kind})", name, tree) for name, tree in fitting.items()]

    def _path_statistics(self, ranks: Int[np.ndarray, "n T depth"], counts, grown_on) -> dict[str, Any]:
        """Tokens a pass of the best trees of some sizes: by the pictures they grew on, and on others, with errors."""
        count, sizes = self.plan.pictures, [size - 1 for size in costs.NODES[1:]]
        expected = []
        for size in sizes:
            grown = paths.growth(counts, size)
            rounds = paths.rounds_of(ranks[count:], DraftTree.from_paths(grown), self.run_lengths)
            value, error = paths.tokens_a_pass(rounds, self.samples.free - 1)
            by_counts = paths.expected_tokens(counts, len(grown_on), grown)
            expected.append({"nodes": len(grown) + 1, "grown": by_counts, "held_out": value, "error": error})
        return {
            "roots": len(grown_on),
            "rank_probability": paths.rank_probabilities(grown_on),
            "tokens_a_pass": expected,
        }

    def _windows(self, measured: Costs) -> list[Candidate]:
        """Windows, from the platform's own ones upwards: their tokens a pass is measured, their cost predicted."""
        kind = next(iter(measured.drafts), None)
        made: dict[WindowPoint, Candidate] = {}
        starts = {}
        for method in ("led", "jacobi") if kind else ("jacobi",):
            settings = self.samples.settings(self.base | {"method": method})
            reach = settings.reach if method == "led" else 0
            starts[settings.window, settings.branches, settings.levels, reach] = method
        codes = self.samples.pipeline.checkpoint.target_config.num_codes

        def value(point: WindowPoint) -> float:
            window, branches, levels, reach = point
            self.report(f"a window of {window}")
            tree = DraftTree.window(window, branches, levels)
            name = f"{'led' if reach else 'jacobi'}, window {window}"
            knobs = {
                "method": "led" if reach else "jacobi",
                "window": window,
                "branches": branches,
                "levels": levels,
            }
            if reach:
                name, knobs = f"{name}, reach {reach}", knobs | {"reach": reach}
            if levels:
                name = f"{name}, {branches} guesses for {levels}"
            ms = measured.window(tree, kind if reach else None, reach)
            made[point] = Candidate(name, knobs, tree.num_nodes, self._decoded(knobs).rounds, ms)
            return self._row(measured)(made[point]).predicted[0]

        def near(point: WindowPoint) -> list[WindowPoint]:
            return [other for other in choose.window_neighbours(point) if other[1] <= codes]

        def more() -> bool:
            return self.clock.fits(_WINDOWS_UNTIL, pictures=1)

        if more():
            choose.climb(starts, near, value, more)
        return list(made.values())

    def _relaxed(self, strict: list[Candidate]) -> list[Candidate]:
        """The best strict candidates under the loosest rules that keep to the budget."""
        made, tried = [], False
        for base in strict[:2]:
            for rules in _RULES:
                for rule in rules:
                    if tried and not self.clock.fits(_RULES_UNTIL, pictures=1):
                        return made
                    tried = True
                    self.report(f"{base.name}, rule {rule['rule']}")
                    knobs = {**base.knobs, **rule}
                    decoded = self._decoded(knobs)
                    if self.plan.budget.holds(decoded.substituted, decoded.distance):
                        bound = next(f"{name} {value:g}" for name, value in rule.items() if name != "rule")
                        name = f"{base.name}, {rule['rule']} with {bound}"
                        given = decoded.rounds, base.ms, decoded.substituted, decoded.distance
                        made.append(Candidate(name, knobs, base.nodes, *given))
                        break
        return made

    def _row(self, measured: Costs) -> Callable[[Candidate], Row]:
        def row(candidate: Candidate) -> Row:
            rate = choose.tokens_a_second(
                candidate.rounds, candidate.ms, tokens=self.samples.free, begin=measured.begin,
                batch=self.settings.batch, error=measured.error,
            )  # fmt: skip
            return Row(candidate, paths.tokens_a_pass(candidate.rounds, self.samples.free - 1), rate)

        return row

    def _confirmed(self, rows: list[Row], default: Row, measured: Costs) -> list[Row]:
        """The best by prediction, the default and plain decoding, side by side on pictures of their own."""
        plain = next(row for row in rows if row.candidate.name == PLAIN)
        chosen = self._to_confirm(rows, plain, default)
        batch, samples = self.settings.batch, self.samples
        first = 2 * self.plan.pictures
        jobs = {
            name: samples.pipeline.job(samples.settings(self.base | dict(row.candidate.knobs)))
            for name, row in chosen.items()
        }
        for name, job in jobs.items():
            self.report(f"compiling: {name}")
            samples.decode(job, first, batch, batch)
        seconds = sum(map(self._seconds, chosen.values()))
        repeats = int(np.clip(self.clock.left() / seconds, _LEAST, _MOST))
        self.report(f"side by side, {repeats} times")

        def task(job):
            return lambda repeat: samples.decode(job, first + repeat * batch, batch, batch)

        given = alternate({name: task(job) for name, job in jobs.items()}, repeats)
        confirmed = [
            self._measured(row, given[name], given[plain.candidate.name]) for name, row in chosen.items()
        ]
        confirmed.sort(key=lambda row: -row.measured[0])
        return confirmed + [row for row in rows if row.candidate.name not in chosen]

    def _to_confirm(self, rows: list[Row], plain: Row, default: Row) -> dict[str, Row]:
        """The fastest three, or as many as there is time for, by name, with plain decoding and the default."""
        fastest = [row for row in rows if row is not plain][:_FASTEST]
        chosen = {row.candidate.name: row for row in [plain, *fastest[:1], default]}
        self.clock.keep(0.0)
        for row in fastest[1:]:
            more = chosen | {row.candidate.name: row}
            if self._confirming(list(map(self._seconds, more.values()))) < self.clock.left():
                chosen = more
        return chosen

    def _seconds(self, row: Row) -> float:
        """What decoding a batch by it is predicted to take."""
        return self.samples.free * self.settings.batch / row.predicted[0]

    def _default(self, rows: list[Row], measured: Costs) -> Row:
        """What a call decodes by without any tuning: one of the rows, or another one."""
        settings = self.samples.settings(self.base)
        for row in rows:
            if self.samples.settings(self.base | dict(row.candidate.knobs)) == settings:
                return row
        # Without the time to see how many rounds it takes it is predicted to take as many as plain decoding.
        plain = next(row.candidate for row in rows if row.candidate.name == PLAIN)
        rounds = self._decoded({}).rounds if self.clock.fits(pictures=1) else plain.rounds
        # A round of it was not predicted: it is what others are compared with.
        candidate = Candidate(
            DEFAULT, {}, settings.tree.num_nodes, rounds, measured.a_pass(settings.tree.num_nodes)
        )
        return self._row(measured)(candidate)

    def _measured(self, row: Row, made: list[Decodings], plain: list[Decodings]) -> Row:
        """With what the confirming run says; a relaxed rule's cost is then of all its pictures."""
        seconds = np.array([part.timing.decoding for part in made])
        rate = self.samples.free * self.settings.batch * len(made) / seconds.sum()
        spread = seconds.std(ddof=1) / seconds.mean() / len(seconds) ** 0.5
        times = np.array([part.timing.decoding for part in plain]) / seconds
        speedup = sum(part.timing.decoding for part in plain) / seconds.sum()
        candidate, relaxed = row.candidate, [part.substituted for part in made]
        if len(candidate.substituted):
            distance = float(np.mean([part.distance for part in made]))
            candidate = Candidate(
                candidate.name, candidate.knobs, candidate.nodes, candidate.rounds, candidate.ms,
                np.concatenate([candidate.substituted, *relaxed]), max(candidate.distance, distance),
            )  # fmt: skip
        error = float(times.std(ddof=1) / len(times) ** 0.5)
        return Row(
            candidate,
            row.tokens_a_pass,
            row.predicted,
            (float(rate), float(rate * spread)),
            (float(speedup), error),
        )

    def _tuned(self, rows: list[Row], default: Row, measured: Costs) -> Tuned:
        budget = self.plan.budget
        best = next(row for row in rows if budget.holds(row.candidate.substituted, row.candidate.distance))
        bounds = {"max_substituted": budget.substituted, "max_distance": budget.distance}
        shares = best.candidate.substituted
        pipeline = self.samples.pipeline
        return Tuned(
            key=Key.of(pipeline.checkpoint, pipeline.dtype, self.settings, devices=pipeline.engine.devices),
            knobs=dict(best.candidate.knobs),
            name=best.candidate.name,
            speedup=best.speedup[0],
            substituted=float(shares.mean()) if len(shares) else 0.0,
            budget={name: bound for name, bound in bounds.items() if bound is not None},
            found={
                "candidates": [row.to_json() for row in rows],
                "default": default.candidate.name,
                "costs": measured.to_json(),
                "paths": self.statistics,
                "prompts": len(self.samples.encoded.prompts),
                "pictures": self.plan.pictures,
                "seconds": self.clock.spent,
                "versions": versions(),
            },
        )
