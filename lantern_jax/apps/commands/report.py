"""What the ``lantern`` command shows: progress, statistics, facts about a checkpoint."""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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
    told: list[Progress] = []
    began, compiles = time.monotonic(), threading.Event()

    def now() -> str:
        if is_compiling():
            compiles.set()
        if compiles.is_set() and not told:
            return f"compiling: {time.monotonic() - began:.0f} s, a first run compiles"
        return f"decoding {_bar(told[-1])} {rates(told[-1])}" if told else "loading the model's weights"

    def show(one: Progress) -> None:
        told[:] = [one]

    with telling(now):
        yield show


def _bar(now: Progress, width: int = 10) -> str:
    full = int(width * now.tokens / now.total)
    return "━" * full + "╌" * (width - full)


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
    console = Console(soft_wrap=True)
    if found.file is not None:
        console.print(f"auto chooses nothing: the settings are those of {found.file}")
    elif not found.rows:
        console.print(
            "auto chooses nothing: the call says how to decode, has a relaxed rule, or --tuned is off or a file"
        )
    else:
        heads = ("", "tokens per pass", "a pass in steps", "times plain")
        names = [f"{row.method}{' *' * (row.method == found.options['method'])}" for row in found.rows]
        values = [[f"{value:.2f}" for value in (row.tokens, row.cost, row.speedup)] for row in found.rows]
        rows = [(name, *row) for name, row in zip(names, values, strict=True)]
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
    return {
        "model": checkpoint.model,
        "tokens": checkpoint.target_config.num_tokens,
        "picture_size": size_text(picture_size(checkpoint)),
        **parts,
        "neighbours": None if codebook is None else int(codebook.neighbours.shape[1]),
        "vocabulary": None
        if vocabulary is None
        else {name: list(values) for name, values in vocabulary.attributes.items()},
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
        text = text if isinstance(text, str) else ", ".join(text)
        if text:
            console.print(_cut(f"{name:<12}{text}"))
    console.print("lantern info --verbose shows every size and setting")


def show_drawn(checkpoint: Checkpoint) -> None:
    """Prints what a checkpoint draws, and where a conversion has its sizes from, in a line."""
    described, config = describe(checkpoint), checkpoint.target_config
    rows, columns = shape_of(config)
    size = f"{described['picture_size']} pixels" if described["picture_size"] else "no tokenizer for pictures"
    source = checkpoint.metadata.get("grid_from")
    say(
        f"{checkpoint.model}: {size}, {columns} x {rows} codes, {config.num_tokens} tokens, "
        f"{_count(described['target']['parameters'])}; sizes from the tensors"
        + (f", grid {source}" if source else "")
    )


def _count(parameters: int) -> str:
    return (
        f"{parameters / 1e9:.2f}B parameters" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M parameters"
    )


def _cut(line: str, most: int = 80) -> str:
    return line if len(line) <= most else f"{line[: most - 4]} ..."


def show_description(checkpoint: Checkpoint) -> None:
    """Prints what a checkpoint holds, an indented line for every entry."""
    description = describe(checkpoint)
    console = Console(soft_wrap=True)
    for line in _lines(description, 0):
        console.print(line)


def _lines(entries: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, value in entries.items():
        label = f"{'  ' * depth}{name.replace('_', ' ')}"
        if isinstance(value, Mapping) and value:
            yield label
            yield from _lines(value, depth + 1)
        elif value not in (None, {}, [], ()):
            yield f"{label}: {_short(value)}"


def _short(value: Any, limit: int = 100) -> str:
    """Returns a value as part of a line: whole numbers with commas, long lists cut."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if not isinstance(value, list | tuple):
        return str(value)
    text = ", ".join(map(str, value))
    return text if len(text) <= limit else f"{text[:limit].rsplit(', ', 1)[0]} ... ({len(value)} in all)"


def weak_drafter(settings: Settings, tokens_a_pass: float, passes: float) -> str | None:
    """Returns advice where a drafter guesses nearly nothing, as one of another model does; else None."""
    if not settings.drafting.drafts or passes < _SEEN or tokens_a_pass >= _IDLE:
        return None
    return (
        f"its drafter guesses nearly nothing, {tokens_a_pass:.2f} tokens per pass: check that it was made for this "
        "model, or take a method without one, such as jacobi"
    )
