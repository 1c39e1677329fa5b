"""``lantern tune``: the fastest way of decoding for a checkpoint on this machine."""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from lantern_jax.apps.commands.arguments import number, whole
from lantern_jax.apps.commands.options import Command, encoded_prompts, open_pipeline
from lantern_jax.apps.commands.prompt_files import read_prompts
from lantern_jax.apps.measuring.clock import Clock
from lantern_jax.apps.terminal.terminal import say, telling
from lantern_jax.decoding.fields import MOST_PICTURES
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_makeable, check_new_file, write_file
from lantern_jax.settings.settings import NUMBERS

# How many sample prompts are used where none are given.
PROMPTS = 64
# Pictures for the statistics: the default, and the most per minute of tuning.
PICTURES, PICTURES_A_MINUTE = 16, 4
# The most rows of the table.
SHOWN = 20


def add(commands) -> None:
    """Adds ``tune`` to a parser's commands."""
    tune = Command(
        commands, "tune", "find the fastest way of decoding here", _run,
        "--model", "--dtype", "--mesh", "--seed", "--search-tilings",
    )  # fmt: skip
    take = tune.take
    take("words", "PROMPT", "prompts like those to come (default: some of our own)", nargs="*")
    take("--prompts", "FILE", "prompts, one per line, or those that `lantern encode` wrote (.npz)")
    # Without a batch, the aim is one picture as soon as possible.
    tune.decoding(NUMBERS, batch=1)
    share = "allow relaxed rules: at most this share of tokens"
    take("--max-substituted", "X", share, type=number(0, 1))
    take("--minutes", "M", "how long it may take", 5, type=number(above=True))
    # At least two, for the errors of the measurements.
    pictures = f"decoded together for statistics (default: {PICTURES}, fewer where --minutes are)"
    take("--pictures", "N", pictures, type=whole(2, MOST_PICTURES))
    take(
        "--out",
        "FILE.json",
        "write here (default: in the folder of --model, where `generate` looks, else here)",
    )
    tune.shared("--overwrite")


def _run(arguments: argparse.Namespace) -> None:
    clock, options = Clock(60 * arguments.minutes), arguments.options
    if arguments.out is not None:
        check_new_file(Path(arguments.out), arguments.overwrite)
    prompts = _prompts(arguments)

    from lantern_jax.apps.measuring.choose import Budget
    from lantern_jax.apps.measuring.subject import checkpoint_subject, sample_prompts
    from lantern_jax.apps.measuring.tune import Goal, Tuner
    from lantern_jax.settings.tuned import Key, file_name

    pipeline = open_pipeline(arguments)
    prompts = sample_prompts(pipeline.checkpoint, PROMPTS, arguments.seed) if prompts is None else prompts
    budget = Budget(arguments.max_substituted)
    if budget.allows_relaxed and pipeline.checkpoint.codebook is None:
        raise LanternError(
            f"{arguments.model} has no codebook, which relaxed rules need: leave --max-substituted "
            "out, or convert it again with its VQ tokenizer"
        )
    settings = pipeline.check(prompts, **options)
    key = Key.of(pipeline.checkpoint, settings, pipeline.dtype, devices=pipeline.engine.devices)
    # In its folder it is found; a model of another's, or the demo, has none to write to.
    folder = Path(arguments.model) if Path(arguments.model).is_dir() else None
    if arguments.out is None:
        file = (Path() if folder is None else folder) / file_name(key)
        check_makeable(file.parent)
    else:
        file = Path(arguments.out)
    subject = checkpoint_subject(arguments.model, pipeline, prompts, arguments.seed)
    pictures = arguments.pictures or int(min(PICTURES, max(2, PICTURES_A_MINUTE * arguments.minutes)))
    goal = Goal(options, budget, pictures, arguments.minutes)
    with telling("tuning") as tell:

        def report(text: str) -> None:
            tell(lambda: f"tuning, {timedelta(seconds=round(max(clock.remaining, 0)))} left: {text}")

        tuning = Tuner(subject, goal, key, report, clock).run()
    try:
        write_file(file, tuning.tuned.to_json())
    finally:
        # Results are shown even if they cannot be written.
        _show(tuning)
    use = "" if file.parent == folder else f"; `lantern generate --tuned {file}` decodes so"
    wrote = f"wrote {file}: {tuning.tuned.words}{use}"
    if tuning.is_stopped:
        raise KeyboardInterrupt(f"interrupted, {wrote}")
    say(wrote)


def _prompts(arguments: argparse.Namespace) -> Any:
    """Returns what was given: a list of texts, encoded prompts, or None."""
    if arguments.prompts is None:
        return arguments.words or None
    if arguments.words:
        raise LanternError("give prompts, or --prompts FILE: one of the two")
    read = encoded_prompts if Path(arguments.prompts).suffix == ".npz" else read_prompts
    return read(arguments.prompts)


def _show(tuning) -> None:
    """Prints the confirmed candidates, and the best of the others."""
    from lantern_jax.apps.terminal.console import Console, table

    def cells(made) -> tuple[str, ...]:
        name = f"{made.name} *" if made.name == tuning.tuned.name else made.name
        return (
            f"{name} (default)" if made.name == tuning.default else name,
            str(made.nodes), _pair(made.tokens_a_pass, 2), f"{made.ms:.2f}",
            _pair(made.predicted if made.tokens_a_pass else None, 0), _pair(made.measured, 0), _pair(made.speedup, 2),
            f"{made.substituted.mean():.1%}" if len(made.substituted) else "0",
        )  # fmt: skip

    heads = (
        "",
        "nodes",
        "tokens per pass",
        "ms per round",
        "predicted tokens/s",
        "measured",
        "times plain",
        "substituted",
    )
    shown = table(heads, map(cells, tuning.rows[:SHOWN]), box=None, pad_edge=False)
    # In a file or a pipe the table takes the width that it needs.
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(shown)


def _pair(pair: tuple[float, float] | None, digits: int) -> str:
    return "" if pair is None else " ± ".join(f"{number:.{digits}f}" for number in pair)
