"""How equal strict and plain decoding are in bfloat16, on the demo or any checkpoint.

    python -m eval.bfloat16 [--model demo] [--pictures 16] [--trees naive_extend_57 ...] [--dtype bfloat16]

In float32 strict decoding repeats plain decoding. In bfloat16 a pass over many nodes rounds otherwise than a pass over
one, so the two part where the best scores nearly tie. Prints for every tree: how many pictures part, the share of
tokens that come before the first difference, and the largest gap there between the two tokens' perturbed
log-probabilities, as plain decoding scores them; beside it the bound 2 E / temperature, E the largest difference
between the logits of one pass over a whole stream and of passes of one token. Axes: B batch, T stream tokens, V codes.
"""

import argparse
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from rich.table import Table

import lantern_jax
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.protocols import Target
from lantern_jax.decoding.sampling import gumbel_noise
from lantern_jax.decoding.tree import named_tree
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.io.console import Console
from lantern_jax.io.errors import LanternError
from lantern_jax.models.drafter import eagle_drafter
from lantern_jax.pipeline.prompting import prompt_encoder

PROMPTS = (
    "snowy mountains at dusk by a calm lake",
    "a foggy forest at dawn",
    "green hills at noon",
    "dunes at dawn",
)


@partial(jax.jit, static_argnums=0)
def narrow_logits(
    target: Target, params, conditioning, guidance: Float[Array, " B"], tokens: Int[Array, "B T"]
) -> Float[Array, "B T V"]:
    """Scores ``tokens`` as plain decoding does, a pass a token; for targets without forced tokens."""
    cache, first, _ = target.prefill(params, conditioning, guidance, target.num_tokens + 1)

    def step(cache, token):
        root, itself = np.zeros(1, np.int32), np.ones((1, 1), bool)
        logits, _, block = target.score(params, cache, token[:, None], root, itself)
        path, count = jnp.zeros((len(token), 1), jnp.int32), jnp.ones(len(token), jnp.int32)
        return target.commit(cache, block, path, count), logits[:, 0]

    _, rest = lax.scan(step, cache, tokens.T[:-1])
    return jnp.concatenate([first[:, None], jnp.moveaxis(rest, 0, 1)], axis=1)


@partial(jax.jit, static_argnums=0)
def wide_logits(
    target: Target, params, conditioning, guidance: Float[Array, " B"], tokens: Int[Array, "B T"]
) -> Float[Array, "B T V"]:
    """Scores the same contexts in one pass."""
    cache, first, _ = target.prefill(params, conditioning, guidance, target.num_tokens + 1)
    length = target.num_tokens - 1
    causal = np.tril(np.ones((length, length), bool))
    logits, _, _ = target.score(params, cache, tokens[:, :-1], np.arange(length, dtype=np.int32), causal)
    return jnp.concatenate([first[:, None], logits], axis=1)


def first_differences(
    expected: Int[np.ndarray, "B T"], tokens: Int[np.ndarray, "B T"]
) -> Int[np.ndarray, " B"]:
    """Returns the place where two streams part, T where they do not."""
    different = np.asarray(expected) != np.asarray(tokens)
    return np.where(different.any(axis=1), different.argmax(axis=1), different.shape[1])


def gaps(
    expected: Int[np.ndarray, "B T"], tokens: Int[np.ndarray, "B T"], perturbed: Float[np.ndarray, "B T V"]
) -> list[float]:
    """Returns how much plain decoding prefers its own token to the other's at the first difference of each stream.

    Args:
        expected: plain decoding's stream.
        perturbed: its perturbed log-probabilities, up to a constant a position.

    Raises:
        LanternError: plain decoding's token is not the best of them, so they are not the ones it saw.
    """
    found = []
    for row, place in enumerate(first_differences(expected, tokens)):
        if place == tokens.shape[1]:
            continue
        scores, own = perturbed[row, place], expected[row, place]
        if np.argmax(scores) != own:
            raise LanternError(
                f"scores of row {row}, place {place} are not plain decoding's: score its own stream"
            )
        found.append(float(scores[own] - scores[tokens[row, place]]))
    return found


def measure(model: str, pictures: int, tree_names: list[str], dtype: str, temperature: float) -> list[dict]:
    """Returns a row for each tree."""
    pipeline = lantern_jax.load(model, dtype=dtype)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(pictures)]
    checkpoint, parameters = pipeline.checkpoint, pipeline.engine.parameters
    settings = pipeline.check(prompts)
    target = pipeline.family.target(checkpoint.target_config, pipeline.dtype)
    drafter = eagle_drafter(checkpoint.drafters["eagle"][0], pipeline.dtype)
    encoder = prompt_encoder(checkpoint)
    conditioning = encoder.encode(prompts, pipeline.dtype)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(np.arange(pictures))
    guidance = jnp.full(pictures, settings.guidance, jnp.float32)
    sampling = lantern_jax.SamplingParams.create(temperature)
    given = (target, parameters.target, conditioning)
    common = {"guidance": guidance, "sampling": sampling}

    expected = np.asarray(autoregressive_decode(*given, keys, **common).tokens)
    narrow = np.asarray(narrow_logits(*given, guidance, jnp.asarray(expected)))
    wide = np.asarray(wide_logits(*given, guidance, jnp.asarray(expected)))
    bound = 2 * float(np.abs(narrow - wide).max()) / temperature
    places = jnp.tile(jnp.arange(target.num_tokens, dtype=jnp.int32)[None], (pictures, 1))
    perturbed = narrow / temperature + np.asarray(gumbel_noise(keys, places, target.vocab_size))
    rows = []
    for name in tree_names:
        decoded = speculative_decode(
            *given,
            keys,
            drafting=eagle(drafter, name),
            drafting_params=pipeline.engine.drafter("eagle"),
            **common,
        )
        tokens = np.asarray(decoded.tokens)
        found = gaps(expected, tokens, perturbed)
        rows.append({
            "tree": name,
            "parted": len(found),
            "pictures": pictures,
            "share": float(first_differences(expected, tokens).mean()) / target.num_tokens,
            "equal": float((expected == tokens).mean()),
            "gap": max(found, default=0.0),
            "bound": bound,
            "compression": (target.num_tokens - 1) * pictures / int(decoded.rounds.sum()),
        })  # fmt: skip
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=arguments.model, default="demo", help="checkpoint directory")
    parser.add_argument("--pictures", type=arguments.whole(), default=16)
    parser.add_argument("--trees", nargs="+", default=["mc_sim_7b_63", "naive_extend_57"])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--temperature", type=arguments.number(above=True), default=1.0, help="> 0")
    options = parser.parse_args(argv)
    for name in options.trees:
        named_tree(name)
    keep_compiled_programs()
    rows = measure(options.model, options.pictures, options.trees, options.dtype, options.temperature)
    title = (
        f"{options.model}, {options.dtype}, temperature {options.temperature}, {jax.devices()[0].device_kind}"
    )
    table = Table(
        "tree", "pictures that part", "equal up to there", "equal in all", "largest gap", "bound", "tokens a pass",
        title=title,
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row["tree"], f"{row['parted']} of {row['pictures']}", f"{row['share']:.1%}", f"{row['equal']:.1%}",
            f"{row['gap']:.4f}", f"{row['bound']:.4f}", f"{row['compression']:.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    run_script(main)
