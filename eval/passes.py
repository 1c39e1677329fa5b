"""How few passes strict decoding takes with a given number of nodes, and whether its tokens are plain decoding's.

    python -m eval.passes [--model demo] [--pictures 64] [--seed 555] [--prompts 2] [--methods A B ...]

Prompts are drawn with the seed ``--prompts``: neither they nor ``--seed`` are those that weights were fitted on (0).
A row has the nodes of a round's draft, the drafter's passes per round, tokens per pass of the target with the
standard error over pictures, and the tokens that are not plain decoding's. Where a picture departs from plain decoding
in float32, the two tokens' scores log p + g are shown, which are then as good as equal. Speed is measured elsewhere
(``lantern bench``).

Axes: n pictures, T tokens.
"""

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.measuring.subject import sample_prompts
from lantern_jax.apps.measuring.sweep import check_methods
from lantern_jax.apps.terminal.console import Console, table
from lantern_jax.decoding.sampling import gumbel_noise, sequence_keys
from lantern_jax.engine.generation import Generation
from lantern_jax.pipeline.pipeline import Pipeline, load

METHODS = (
    "led:nodes=5,refine=1", "led:nodes=9,refine=2", "led:nodes=16,refine=3", "led:nodes=25,refine=3",
    "led:nodes=56,refine=3", "jacobi:nodes=5", "jacobi:nodes=16", "jacobi:nodes=25", "jacobi:nodes=56", "echo:nodes=25",
)  # fmt: skip
TITLES = ("method", "nodes", "drafter passes", "tokens per pass", "other tokens than plain's")


def tokens_per_pass(made: Generation) -> tuple[float, float]:
    """Returns tokens per pass after the first token of each picture, and the standard error over pictures."""
    rounds = made.round_of_token.max(axis=1)
    each = (made.tokens.shape[1] - 1) / rounds
    return made.statistics.step_compression, float(each.std(ddof=1) / len(each) ** 0.5)


def partings(made: Generation, plain: Generation, seed: int, codes: int) -> Iterator[str]:
    """Yields where pictures depart from plain decoding, and the two tokens' scores there."""
    for row in np.flatnonzero((made.tokens != plain.tokens).any(axis=1)):
        place = int(np.argmax(made.tokens[row] != plain.tokens[row]))
        keys = sequence_keys(seed, made.numbers[row : row + 1])
        noise = np.asarray(gumbel_noise(keys, np.array([[place]], np.int32), codes))[0, 0]
        ours, theirs = (
            float(one.log_probs[row, place]) + float(noise[one.tokens[row, place]]) for one in (made, plain)
        )
        yield f"picture {row} from token {place} on, where log p + g are {ours:.6f} and {theirs:.6f}"


def rows(
    pipeline: Pipeline, methods: Sequence[str], prompts: Sequence[str | int], seed: int, batch: int
) -> Iterator[tuple[str, ...]]:
    """Yields a row for each method."""
    codes = pipeline.checkpoint.target_config.num_codes
    plain = pipeline.generate(prompts, method="ar", seed=seed, batch=batch, log_probs=True)
    for name in methods:
        made = pipeline.generate(prompts, method=name, seed=seed, batch=batch, log_probs=True)
        drafting = pipeline.settings({"method": name}).drafting
        mean, error = tokens_per_pass(made)
        parting = "; ".join(partings(made, plain, seed, codes)) or "none"
        yield (
            name, str(drafting.tree.num_nodes - 1), str(drafting.passes), f"{mean:.2f} ± {error:.2f}", parting,
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=arguments.model, default="demo", help="checkpoint directory (default: demo)")
    add(
        "--methods",
        nargs="+",
        default=METHODS,
        help="methods of the shared noise (default: led, jacobi and echo by nodes)",
    )
    add("--pictures", type=arguments.whole(2), default=64, help="how many, at least 2 (default: 64)")
    add("--batch", type=arguments.whole(), default=16, help="pictures decoded together (default: 16)")
    add("--seed", type=arguments.whole(0), default=555, help="of the pictures (default: 555)")
    add("--prompts", type=arguments.whole(0), default=2, help="seed that prompts are drawn by (default: 2)")
    options = parser.parse_args(argv)
    methods = check_methods(options.methods)
    pipeline = load(options.model, "float32", tuned="off")
    prompts = sample_prompts(pipeline.checkpoint, options.pictures, options.prompts)
    Console().print(table(TITLES, rows(pipeline, methods, prompts, options.seed, options.batch)))


if __name__ == "__main__":
    run_script(main)
