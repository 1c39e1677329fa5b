"""``lantern tune``: the fastest way of decoding for a checkpoint on this machine."""

import argparse
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from lantern_jax.apps.commands.arguments import number
from lantern_jax.apps.commands.options import Command, encoded_prompts, open_pipeline
from lantern_jax.apps.commands.prompt_files import read_prompts
from lantern_jax.apps.terminal.terminal import say, telling
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_makeable, check_new_file, write_file
from lantern_jax.settings.settings import NUMBERS

# How many sample prompts are used where none are given.
PROMPTS = 64


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
    take(
        "--out",
        "FILE.json",
        "write here (default: in the folder of --model, where `generate` looks, else here)",
    )
    tune.shared("--overwrite")


def _run(arguments: argparse.Namespace) -> None:
    began, options, budget = time.monotonic(), arguments.options, arguments.max_substituted
    if arguments.out is not None:
        check_new_file(Path(arguments.out), arguments.overwrite)
    prompts = _prompts(arguments)

    from lantern_jax.apps.measuring.subject import checkpoint_subject, sample_prompts
    from lantern_jax.apps.measuring.tune import tune
    from lantern_jax.settings.tuned import Key, file_name

    pipeline = open_pipeline(arguments)
    prompts = sample_prompts(pipeline.checkpoint, PROMPTS, arguments.seed) if prompts is None else prompts
    if budget is not None and pipeline.checkpoint.codebook is None:
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

    def left(share: float) -> float:
        return began + share * 60 * arguments.minutes - time.monotonic()

    with telling("tuning") as tell:

        def report(text: str) -> None:
            tell(lambda: f"tuning, {timedelta(seconds=round(max(left(1), 0)))} left: {text}")

        tuned, is_stopped = tune(subject, options, key, budget, left, report)
    try:
        write_file(file, tuned.to_json())
    finally:
        # Results are shown even if they cannot be written.
        _show(tuned)
    use = "" if file.parent == folder else f"; `lantern generate --tuned {file}` decodes so"
    wrote = f"wrote {file}: {tuned.words}{use}"
    if is_stopped:
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


def _show(tuned) -> None:
    """Prints all that took part: those in the race to the end, then the others, the fastest first."""
    from lantern_jax.apps.terminal.console import Console, table

    def cells(row) -> tuple[str, ...]:
        marks = " *" * (row["options"] == tuned.options) + " (default)" * row["is_default"]
        (speedup, error), (share, _) = row["times_plain"], row["substituted"]
        return (
            " ".join(row["options"].values()) + marks,
            f"{row['tokens_a_pass']:.2f}",
            f"{row['tokens_a_second']:.0f}",
            f"{speedup:.2f}" + ("" if error is None else f" ± {error:.2f}"),
            f"{share:.1%}" if share else "0",
        )

    heads = ("method", "tokens per pass", "tokens/s", "times plain", "substituted")
    shown = table(heads, map(cells, tuned.found["candidates"]), box=None, pad_edge=False)
    # In a file or a pipe the table takes the width that it needs.
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(shown)
