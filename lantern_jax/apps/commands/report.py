"""What the ``lantern`` command shows: progress, statistics, facts about a checkpoint."""

import collections
import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import jax
from jaxtyping import PyTree

from lantern_jax.apps.terminal.console import Console, table
from lantern_jax.apps.terminal.terminal import say, telling
from lantern_jax.checkpoints.checkpoint import PARTS, Checkpoint, picture_size, size_text
from lantern_jax.devices.compilation import is_compiling
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.engine.generation import Generation, Progress, Statistics
from lantern_jax.models.quantization import is_quantized
from lantern_jax.models.sizes import shape_of
from lantern_jax.pipeline.inputs import prompt_encoder
from lantern_jax.settings.settings import Settings
from lantern_jax.settings.tuned import Found

# Tokens per pass that a drafter of the model exceeds by far, and the fewest passes that show it.
_IDLE, _SEEN = 1.2, 100
# The numbers among a model's sampling defaults, which fit one short line.
_NUMBERS = ("guidance", "temperature", "top_k", "top_p", "min_p", "k")


@contextlib.contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Shows what is being done; yields a function that adds the current step."""
    with telling(text) as tell:
        yield lambda now: tell(f"{text}: {now}")


@contextlib.contextmanager
def decoding_progress() -> Iterator[Callable[[Progress], None]]:
    """Shows how far decoding has come, and before that the compiling."""
    told = collections.deque[Progress](maxlen=1)
    began, compiled = time.monotonic(), False

    def now() -> str:
        nonlocal compiled
        compiled |= is_compiling()
        if told:
            full = int(10 * told[-1].tokens / told[-1].total)
            return f"decoding {'━' * full}{'╌' * (10 - full)} {rates(told[-1])}"
        seconds = time.monotonic() - began
        return (
            f"compiling: {seconds:.0f} s, a first run compiles" if compiled else "loading the model's weights"
        )

    with telling(now):
        yield told.append


def rates(now: Progress) -> str:
    """Returns a line: pictures done, tokens done and per second, and the time left at that speed."""
    speed = now.tokens / max(now.seconds, 1e-9)
    left = timedelta(seconds=round((now.total - now.tokens) / max(speed, 1e-9)))
    pictures = f"{now.pictures}/{now.count} pictures, {now.tokens}/{now.total} tokens"
    return f"{pictures}, {speed:.0f} tokens/s, {left} left"


def show_statistics(generation: Generation) -> None:
    """Prints a generation's table, with plain decoding beside it if it was compared."""
    ours, plain, console = generation.statistics, generation.plain, Console(soft_wrap=True)
    runs = {"speculative": ours} if plain is None else {"plain": plain.statistics, "speculative": ours}
    compiling = [run.compile_seconds for run in runs.values()]
    if plain is not None:
        compiling[1] -= compiling[0]
    rows = {
        "passes of the model": [str(run.rounds) for run in runs.values()],
        "tokens per pass": [f"{run.step_compression:.2f}" for run in runs.values()],
        "seconds": [f"{run.seconds:.2f}" for run in runs.values()],
        "tokens per second": [f"{run.tokens_per_second:.0f}" for run in runs.values()],
        "compile seconds, apart": [f"{seconds:.2f}" for seconds in compiling],
        "tokens substituted": [f"{run.substituted:.1%}" for run in runs.values()],
    }
    if plain is not None:
        for line in _comparison(ours, plain.statistics):
            console.print(line)
    heads = ("", *(runs if plain is not None else ("",)))
    console.print(table(heads, ((name, *row) for name, row in rows.items()), box=None, pad_edge=False))


def _comparison(ours: Statistics, plain: Statistics) -> Iterator[str]:
    """Says how many passes were saved, how much time that saved here, and where the rest went."""
    yield f"{ours.rounds} passes in place of {plain.rounds}; {ours.same_tokens:.1%} of the tokens are plain decoding's"
    yield f"{ours.seconds:.2f} s in place of {plain.seconds:.2f} s on this machine: {ours.speedup:.2f} times as fast"
    cost = ours.step_compression / ours.speedup
    if len(ours.accepted) > 1 and cost > 1.05:
        yield (
            f"a pass that checks guesses takes {cost:.2f} times as long as a plain one here; on a GPU, where reading "
            "the weights takes most of a pass, guesses are nearly free"
        )


def show_choice(found: Found) -> None:
    """Prints the table that ``auto`` chose from, with the chosen row marked, or why it chose nothing."""
    console, heads = Console(soft_wrap=True), ("", "tokens per pass", "a pass in steps", "times plain")
    if found.file is not None:
        console.print(f"auto chooses nothing: the settings are those of {found.file}")
    elif not found.rows:
        console.print(
            "auto chooses nothing: the call says how to decode, has a relaxed rule, or --tuned is off or a file"
        )
    else:
        chosen, rows = found.options["method"], []
        for row in found.rows:
            values = (f"{value:.2f}" for value in (row.tokens, row.cost, row.speedup))
            rows.append((f"{row.method}{' *' * (row.method == chosen)}", *values))
        console.print(table(heads, rows, box=None, pad_edge=False))


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Describes a checkpoint for people and JSON: sizes, parameter counts, defaults, metadata."""
    parts = {}
    for part in PARTS:
        config = getattr(checkpoint, f"{part}_config")
        if config is not None:
            parts[part] = _describe_part(config, getattr(checkpoint, f"{part}_params"), PARTS[part](config))
    parts["drafters"] = {
        kind: _describe_part(config, params, DRAFTERS.find(kind).shapes(config))
        for kind, (config, params) in checkpoint.drafters.items()
    }
    codebook, vocabulary = checkpoint.codebook, checkpoint.vocabulary
    words = (
        None if vocabulary is None else {name: [*values] for name, values in vocabulary.attributes.items()}
    )
    return {
        "model": checkpoint.model,
        "tokens": checkpoint.target_config.num_tokens,
        "picture_size": size_text(picture_size(checkpoint)),
        **parts,
        "neighbours": None if codebook is None else int(codebook.neighbours.shape[1]),
        "vocabulary": words,
        "defaults": checkpoint.defaults,
        "metadata": checkpoint.metadata,
    }


def _describe_part(config: Any, params: PyTree | None, shapes: PyTree) -> dict[str, Any]:
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    described = {"parameters": count, **dataclasses.asdict(config)}
    if params is None:
        return described
    described |= {"dtype": jax.tree.leaves(params)[0].dtype.name}
    return described | {"weights": "int8"} if is_quantized(params) else described


def show_main_facts(checkpoint: Checkpoint) -> None:
    """Prints what most people want to know about a checkpoint, in a dozen lines of 80 columns."""
    described, console = describe(checkpoint), Console(soft_wrap=True)
    target, vocabulary, size = (described[name] for name in ("target", "vocabulary", "picture_size"))
    tokens = f"{described['tokens']} tokens"
    kind, near = prompt_encoder(checkpoint).kind, described["neighbours"]
    prompts = {"labels": "classes, by number or name", "captions": "text, through a text encoder"}
    facts = {
        "model": f"{described['model']}, {_count(target['parameters'])}, {target.get('weights', target['dtype'])}",
        "pictures": tokens if size is None else f"{size} pixels, {tokens}",
        **({"prompts": prompts.get(kind, "text")} if vocabulary is None else vocabulary),
        "tokenizer": _count(described["tokenizer"]["parameters"]) if "tokenizer" in described else "none",
        "drafters": ", ".join(described["drafters"]) or "none; methods such as jacobi need none",
        "neighbours": f"{near} of each code, for relaxed rules" if near else "none",
        "defaults": ", ".join(f"{name} {value}" for name, value in checkpoint.defaults.items() if name in _NUMBERS),
        "folder": str(checkpoint.directory),
    }  # fmt: skip
    for name, text in facts.items():
        line = f"{name:<12}{text if isinstance(text, str) else ', '.join(text)}"
        if text:
            console.print(line if len(line) <= 80 else f"{line[:76]} ...")
    console.print("lantern info --verbose shows every size and setting")


def show_drawn(checkpoint: Checkpoint) -> None:
    """Prints what a checkpoint draws, and where a conversion has its sizes from, in a line."""
    described, (rows, columns) = describe(checkpoint), shape_of(checkpoint.target_config)
    size = f"{described['picture_size']} pixels" if described["picture_size"] else "no tokenizer for pictures"
    source = checkpoint.metadata.get("grid_from")
    say(
        f"{checkpoint.model}: {size}, {columns} x {rows} codes, {described['tokens']} tokens, "
        f"{_count(described['target']['parameters'])}; sizes from the tensors{f', grid {source}' if source else ''}"
    )


def _count(parameters: int) -> str:
    scale, letter = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / scale:.{2 if letter == 'B' else 1}f}{letter} parameters"


def show_description(checkpoint: Checkpoint) -> None:
    """Prints what a checkpoint holds, as JSON."""
    console = Console(soft_wrap=True)
    for line in json.dumps(describe(checkpoint), indent=1).splitlines():
        console.print(line)


def weak_drafter(settings: Settings, tokens_a_pass: float, passes: float) -> str | None:
    """Returns advice where a drafter guesses nearly nothing, as one of another model does; else None."""
    if not settings.drafting.drafts or passes < _SEEN or tokens_a_pass >= _IDLE:
        return None
    return (
        f"its drafter guesses nearly nothing, {tokens_a_pass:.2f} tokens per pass: check that it was made for this "
        "model, or take a method without one, such as jacobi"
    )
