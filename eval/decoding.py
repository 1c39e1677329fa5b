"""What decoding costs beyond what it must, at LlamaGen-B size (111M, random weights, float32, guidance), batch 1.

    python -m eval.decoding [--out FILE.json]

    step   one step of plain decoding over the bare matrix products of a step (same shapes, attention at half
           length, one jit): what the loop costs beyond what no loop can avoid. Bound: 1.25.
    round  (round - target.score - drafter passes with head) / round with `naive_extend_57`, both jitted separately:
           the share of noise, probabilities, verification and commit. Bound: 0.15.

``lantern bench`` measures methods, trees and batch sizes; ``eval.side_by_side`` compares two checkouts. Compile time is
not counted. Everything that is compared is measured in the same run.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.table import Table

from eval.report import to_json
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.terminal.console import Console
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.program import Program
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree, named_tree
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.drafters.eagle import DrafterModel, eagle_drafter
from lantern_jax.drafters.sequence import DrafterConfig
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.programs import Parameters
from lantern_jax.families.llamagen.model import LlamaGen, llamagen_target, published_config
from lantern_jax.io.files import write_file

REPEATS = 3
ROUNDS = 48


def seconds(function: Callable, *arguments) -> float:
    """Times one call until its results are ready."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def medians(runs: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Returns the median of each run's seconds; runs take turns, after one each to warm up."""
    for run in runs.values():
        run()
    times = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            times[name].append(run())
    return {name: statistics.median(values) for name, values in times.items()}


def seconds_a_round(engine: Engine, job: Job, conditioning) -> float:
    """Times a picture's first rounds without prefill; all cost the same, since caches have a fixed size."""
    run = engine.start(job, conditioning)
    done = engine.advance(run, ROUNDS)
    return (done.timing.decoding - run.timing.decoding) / int(engine.finish(done).rounds[0])


def bare_products(config, steps: int):
    """Returns one jit of the matrix products of ``steps`` decoding steps, for two guidance rows, and its arguments."""
    shape = config.transformer
    dim, heads, width = config.dim, shape.num_heads, shape.head_dim
    half = config.num_tokens // 2

    def layer(x, weights, keys, values):
        queries = (x @ weights["qkv"].reshape(dim, -1))[:, :dim].reshape(2, heads, 1, width)
        scores = jnp.einsum("ghne,ghse->ghns", queries, keys)
        attended = jnp.einsum("ghns,ghse->ghne", scores, values).reshape(2, dim)
        hidden = attended @ weights["out"].reshape(dim, dim) @ weights["gate_up"].reshape(dim, -1)
        return hidden[:, : shape.hidden_dim] @ weights["down"]

    def run(x, params, keys, values):
        def step(_, x):
            for i in range(shape.num_layers):
                names = ("qkv", "out", "gate_up", "down")
                weights = {n: params["transformer"][f"layer_{i}"][n]["kernel"] for n in names}
                x = layer(x, weights, keys[i], values[i])
            logits = x @ params["head"]["kernel"]
            # Feeding the result back keeps the products in the loop; the scale keeps them finite.
            return logits[:, :dim] * jnp.float32(1e-3) + jnp.float32(1)

        return lax.fori_loop(0, steps, step, x)

    cache = jnp.ones((shape.num_layers, 2, heads, half, width))
    arguments = jnp.ones((2, dim)), cache * 1e-2, cache * 1e-2
    return jax.jit(run), arguments


def draft_passes(tree: DraftTree, drafter):
    """Returns a jit of a round's drafter passes, with head: absorb, then every level; nothing is sampled."""

    def run(params, state, features, tokens, count):
        state, logits = drafter.absorb(params, state, features, tokens, count)
        total, parents, used = jnp.sum(logits), jnp.zeros((1, 1), jnp.int32), 1
        for internal in tree.internal_levels[1:]:
            width = len(internal)
            level = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32)[None], (1, width))
            state, logits = drafter.expand(
                params, state, level, parents[:, jnp.arange(width) % parents.shape[1]]
            )
            parents, used = used + level, used + width
            total = total + jnp.sum(logits)
        return total, state

    return jax.jit(run)


def models():
    """Returns configuration, target, drafter and the parameters of both."""
    config = published_config("B")
    drafter_config = DrafterConfig(
        config.dim, config.num_heads, config.transformer.hidden_dim, prefix_length=1
    )
    labels, tokens = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, config.num_tokens), jnp.int32)
    params = jax.jit(LlamaGen(config).init)(jax.random.key(0), labels, tokens)
    example = jnp.zeros((1, 1, 1, config.dim)), jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros((1, 1, 1, 32, 2))
    drafter_params = jax.jit(DrafterModel(drafter_config).init)(
        jax.random.key(1), *example, jnp.ones((1, 1, 1, 1), bool)
    )
    drafting_params = {"drafter": drafter_params, "head": params["params"]["head"]["kernel"]}
    return config, llamagen_target(config), eagle_drafter(drafter_config), params, drafting_params


def measure() -> dict[str, float]:
    """Returns the milliseconds and the two ratios."""
    config, target, drafter, params, drafting_params = models()
    tree, guidance = named_tree("naive_extend_57"), 4.0
    span, expanded = tree.max_depth + 1, sum(len(level) for level in tree.internal_levels[1:])
    engine = Engine(lambda where: Parameters(params, {"eagle": drafting_params}))
    sampling, labels = SamplingParams.create(top_k=2000), np.zeros((1, 1), np.int32)
    jobs = {
        "plain": Job(Program(target), guidance, sampling),
        "round": Job(Program(target, eagle(drafter, tree)), guidance, sampling, drafter="eagle"),
    }

    cache, _, prefix = jax.jit(target.prefill, static_argnums=3)(
        params, labels, jnp.full(1, guidance), config.num_tokens + span
    )
    cache = cache.replace(length=jnp.full(1, config.num_tokens // 2, jnp.int32))
    score = jax.jit(target.score)
    block = jnp.zeros((1, tree.num_nodes), jnp.int32)
    state = drafter.init(drafting_params, prefix, config.num_tokens + span, span, expanded)
    state = state.replace(cache=state.cache.replace(length=cache.length))
    features, count = jnp.zeros((2, 1, span, config.dim)), jnp.full(1, 4, jnp.int32)
    passes = draft_passes(tree, drafter)
    steps = 32
    products, (x, *caches) = bare_products(config, steps)

    times = medians(
        {
            **{name: lambda job=job: seconds_a_round(engine, job, labels) for name, job in jobs.items()},
            "products": lambda: seconds(products, x, params["params"], *caches) / steps,
            "score": lambda: seconds(score, params, cache, block, tree.depth, tree.ancestors),
            "draft": lambda: seconds(passes, drafting_params, state, features, block[:, :span], count),
        }
    )
    overhead = times["round"] - times["score"] - times["draft"]
    return {
        "plain_step_ms": 1e3 * times["plain"],
        "bare_products_ms": 1e3 * times["products"],
        "step_over_products": times["plain"] / times["products"],
        "round_ms": 1e3 * times["round"],
        "score_ms": 1e3 * times["score"],
        "drafter_passes_ms": 1e3 * times["draft"],
        "round_overhead": overhead / times["round"],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=arguments.new_file, help="write all numbers as JSON")
    options = parser.parse_args(argv)
    keep_compiled_programs()
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, {jax.devices()[0].device_kind}"
    numbers = measure()
    table = Table(f"{machine}, jax {jax.__version__}", "", "bound", title="LlamaGen-B, batch 1")
    table.add_row("plain step / bare matrix products", f"{numbers['step_over_products']:.3f}", "1.25")
    table.add_row("round beyond score and drafter passes", f"{numbers['round_overhead']:.3f}", "0.15")
    for name in ("plain_step_ms", "bare_products_ms", "round_ms", "score_ms", "drafter_passes_ms"):
        table.add_row(name.replace("_ms", ", ms").replace("_", " "), f"{numbers[name]:.1f}", "")
    Console().print(table)
    if options.out:
        write_file(options.out, to_json({"machine": machine, "core": numbers}))


if __name__ == "__main__":
    run_script(main)
