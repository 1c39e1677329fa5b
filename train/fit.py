"""Fit the weights of drafting on the shared noise: beta for trees ranked by gaps, and the mixture for echo and led.

    python -m train.fit --checkpoint DIR|demo --out DIR [--pictures=32] [--drafter=eagle] [--prompts=FILE]

Pictures that the drafter was not trained on are decoded strictly with a led window, and the window's last guesses are
logged at accepted places, whose context is the picture's own. For each agreement, the mixture (a, b) minimises the
cross-entropy of the target's distribution under log q' = a log q + b log p_old; beta makes the wanted token likeliest
under softmax(beta (log q' + g)). Both become defaults of the checkpoint OUT. Its metadata hold the tokens per pass of
each window that ``auto`` chooses from, under these defaults. A checkpoint whose default temperature is 0 has no noise
to fit on: its weights are those of temperature 1.

Axes: B batch, W places of the window, V codes, K values of beta, A and C values of a and b, I kinds of agreement.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.measuring.subject import Subject
from lantern_jax.apps.terminal import locks
from lantern_jax.checkpoints.checkpoint import TOKENS_PER_PASS, Checkpoint
from lantern_jax.checkpoints.store import check_new, load, model_directory, save
from lantern_jax.decoding import loop
from lantern_jax.decoding.acceptance import Strict
from lantern_jax.decoding.drafting.led import Guessed, LedWindow, led_window, window_noise
from lantern_jax.decoding.drafting.window import Window, window_draft
from lantern_jax.decoding.echo import COMPARED, LEAST, Echo
from lantern_jax.decoding.program import Inputs, Program
from lantern_jax.decoding.protocols import Drafting
from lantern_jax.decoding.sampling import sequence_keys
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.io.errors import LanternError
from lantern_jax.pipeline.inputs import prompt_encoder
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.auto import TOKENS
from lantern_jax.settings.recipe import Recipe
from lantern_jax.text.encoders import Conditioning
from train import script
from train.sources import random_labels, read_prompts

BETAS = np.geomspace(0.5, 8, 17).astype(np.float32)
SHARES = np.linspace(0, 1.2, 31).astype(np.float32)
# The window whose rounds are logged, and the kinds of agreement: none, position, and each token that is compared.
WINDOW, REFINE, KINDS = 16, 3, 2 + COMPARED
# Of the prompts and pictures: neither the seed of features (0) nor that of trees (1000).
SEED = 2000


@flax.struct.dataclass
class Logged:
    """The drafting's own state, the round's guesses, and sums over logged places.

    Attributes:
        inner: the state of the drafting that is logged.
        guessed, noise: the round's.
        likelihood: float32 [B, K], log-likelihood of the wanted tokens for every beta.
        entropy: float32 [B, I, A, C], cross-entropy of the target's distributions for every (a, b), by agreement.
        places: float32 [B, I], how many places there were.
    """

    inner: Any
    guessed: Guessed
    noise: Float[Array, "B W V"]
    likelihood: Float[Array, "B K"]
    entropy: Float[Array, "B I A C"]
    places: Float[Array, "B I"]


def logged(led: LedWindow) -> Drafting:
    """Makes a led chain's drafting that logs its rounds; beta is fitted with the chain's own mixture."""
    drafting = led_window(led.drafter, led.settings, led.refine, led.echo)
    width, vocab = led.settings.width, led.settings.vocab_size

    def init(params, prefix, slots, span):
        batch = prefix.tokens.shape[1]

        def zeros(*shape):
            return jnp.zeros((batch, *shape), jnp.float32)

        rows, agreement = zeros(width, vocab), jnp.zeros((batch, width), jnp.int32)
        return Logged(
            drafting.init(params, prefix, slots, span), Guessed(rows, rows, agreement, rows), rows,
            zeros(len(BETAS)), zeros(KINDS, len(SHARES), len(SHARES)), zeros(KINDS),
        )  # fmt: skip

    def propose(params, state, pending, draws, sampling):
        noise = window_noise(draws, led.settings)
        guessed, inner = led.guess(params, state.inner, pending, noise, sampling)
        draft = window_draft(led.settings, pending.tokens[:, -1:], guessed.mixed + noise)
        return draft, state.replace(inner=inner, guessed=guessed, noise=noise)

    def observe(params, state, outcome):
        # Place i comes after node i of the chain, and counts where that node was accepted.
        places = jnp.arange(width, dtype=jnp.int32)[None]
        reached = (places <= outcome.verdict.count[:, None]) & (outcome.count > 0)[:, None]
        log_q, old, agreement, mixed = state.guessed
        kinds = jax.nn.one_hot(agreement, KINDS, dtype=jnp.float32) * reached.astype(jnp.float32)[..., None]
        p = jnp.exp(outcome.log_probs[:, :width])

        def of_share(a):
            return lax.map(lambda b: cross_entropy(p, log_q, old, a, b), jnp.asarray(SHARES))

        entropy = lax.map(of_share, jnp.asarray(SHARES))
        scores, wanted = mixed + state.noise, outcome.verdict.wanted[:, :width]
        likely = lax.map(lambda beta: log_likelihood(scores, wanted, beta), jnp.asarray(BETAS))
        return state.replace(
            inner=drafting.observe(params, state.inner, outcome),
            likelihood=state.likelihood + jnp.einsum("bm,kbm->bk", reached.astype(jnp.float32), likely),
            entropy=state.entropy + jnp.einsum("bmt,acbm->btac", kinds, entropy),
            places=state.places + jnp.sum(kinds, axis=1),
        )

    return Drafting(init, propose, observe, width)


def cross_entropy(
    p: Float[Array, "*rows V"],
    log_q: Float[Array, "*rows V"],
    old: Float[Array, "*rows V"],
    a: Float[Array, ""],
    b: Float[Array, ""],
) -> Float[Array, "*rows"]:
    """Returns the cross-entropy of p under log q' as `echo.blended` makes it from one agreement's (a, b).

    A code that top-k or top-p removes from q is not in q' either, unless a is 0; it costs -`LEAST`, not infinity.
    """
    scores = jnp.where(a > 0, a * log_q, jnp.float32(0)) + b * jnp.maximum(old, LEAST)
    return -jnp.sum(p * jnp.maximum(jax.nn.log_softmax(scores, axis=-1), LEAST), axis=-1)


def log_likelihood(
    scores: Float[Array, "*rows V"], wanted: Int[Array, "*rows"], beta: Float[Array, ""]
) -> Float[Array, "*rows"]:
    """Returns the log-likelihood of the wanted codes under softmax(beta scores).

    It is 0 where the scores rule the wanted code out: no beta makes it a guess.
    """
    log_probs = jax.nn.log_softmax(beta * scores, axis=-1)
    found = jnp.take_along_axis(log_probs, wanted[..., None], axis=-1)[..., 0]
    return jnp.where(found == -jnp.inf, jnp.float32(0), found)


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fitted weights.

    Attributes:
        sharpness: beta.
        echo: the mixtures; agreements that never came up keep the library's.
        places: how many were logged for each agreement, "none" first.
    """

    sharpness: float
    echo: Echo
    places: tuple[int, ...]


def best_mixture(entropy: Float[np.ndarray, "I A C"], places: Float[np.ndarray, " I"]) -> Echo:
    """Returns the (a, b) of least cross-entropy for every agreement that came up."""
    found = {}
    for row, field in enumerate(dataclasses.fields(Echo), 1):
        if places[row]:
            a, b = np.unravel_index(np.argmin(entropy[row]), entropy[row].shape)
            found[field.name] = (round(float(SHARES[a]), 2), round(float(SHARES[b]), 2))
    return Echo(**found)


def fit(pipeline: Pipeline, kind: str, conditioning: Conditioning, seed: int, batch: int = 8) -> Fit:
    """Decodes the same pictures twice, to fit the mixtures and then beta under them.

    Args:
        conditioning: leaves [n, ...], conditional rows, one picture each; n is rounded down to whole batches.
        seed: picture i is a function of the seed and i.

    Raises:
        LanternError: numbers that are not finite.
    """
    checkpoint = pipeline.checkpoint
    config, parameters = checkpoint.target_config, pipeline.engine.parameters
    settings = pipeline.settings({})
    if not settings.temperature:
        settings = pipeline.settings({"temperature": 1.0})
    count = len(jax.tree.leaves(conditioning)[0])
    batch = min(batch, count)
    target = pipeline.family.target(config, pipeline.dtype, getattr(checkpoint.drafters[kind][0], "taps", ()))
    drafter = DRAFTERS[kind].make(checkpoint.drafters[kind][0], pipeline.dtype)
    window = Window(config.num_codes, DraftTree.chain(min(WINDOW, config.num_tokens - 1)))

    def run(echo: Echo) -> list[np.ndarray]:
        program = Program(target, logged(LedWindow(drafter, window, REFINE, echo)))
        go = jax.jit(lambda inputs: loop.advance(program, inputs, loop.start(program, inputs)).drafting)
        states = []
        for first in range(0, count - batch + 1, batch):
            rows = jax.tree.map(lambda leaf, first=first: leaf[first : first + batch], conditioning)
            keys = sequence_keys(seed, first + np.arange(batch))
            states.append(
                go(
                    Inputs(
                        parameters.target, pipeline.engine.drafter(kind), rows, keys,
                        jnp.full(batch, settings.guidance, jnp.float32), jnp.ones(batch, bool),
                        settings.sampling(), Strict(), None,
                    )
                )
            )  # fmt: skip
        sums = [(state.likelihood, state.entropy, state.places) for state in states]
        found = [
            np.sum([np.asarray(part).sum(axis=0) for part in parts], axis=0)
            for parts in zip(*sums, strict=True)
        ]
        if not all(np.isfinite(part).all() for part in found):
            raise LanternError(
                f"the target's or the {kind} drafter's logits are not finite: train or convert it again"
            )
        return found

    _, entropy, places = run(Echo())
    echo = best_mixture(entropy, places)
    likelihood, _, _ = run(echo)
    return Fit(round(float(BETAS[np.argmax(likelihood)]), 2), echo, tuple(int(count) for count in places))


def fitted(checkpoint: Checkpoint, kind: str, pictures: int, prompts: Sequence[str] = ()) -> Checkpoint:
    """Returns a checkpoint with what the fit found in its defaults and metadata, and prints the fit.

    Args:
        kind: of the drafter, the first of `DRAFTERS` that the checkpoint has: the one that leads windows.
        pictures: how many are decoded, of `prompts` in turn; without prompts, of random landscapes.
        prompts: those that the drafter was not trained on.

    Raises:
        LanternError: the checkpoint has no such drafter, or another one leads; numbers are not finite; or no prompts
            are given and the checkpoint knows no landscapes.
    """
    if kind not in checkpoint.drafters:
        raise LanternError(f"the checkpoint has no drafter {kind!r}: give another --drafter")
    leading = next(name for name in DRAFTERS if name in checkpoint.drafters)
    if kind != leading:
        raise LanternError(
            f"drafter {kind!r} leads no windows of a checkpoint that has {leading!r}: give --drafter {leading}, or a "
            "checkpoint without it"
        )
    pipeline = Pipeline(checkpoint, np.float32)
    if prompts:
        some = [prompts[i % len(prompts)] for i in range(pictures)]
        conditioning = prompt_encoder(checkpoint).encode(some, pipeline.dtype)
    else:
        conditioning = random_labels(checkpoint.vocabulary, np.random.default_rng(SEED), pictures)
    found = fit(pipeline, kind, conditioning, SEED)
    print(
        f"sharpness {found.sharpness}, mixture {found.echo}, places by agreement {found.places}", flush=True
    )
    weights = {"sharpness": found.sharpness, "mixture": str(found.echo)}
    made = dataclasses.replace(checkpoint, defaults=checkpoint.defaults | weights)
    recipe, grid = Recipe.of(made, pipeline.dtype), made.target_config.grid
    subject = Subject(made.model, recipe, pipeline.engine, conditioning, grid, SEED)
    tokens = {TOKENS_PER_PASS: tokens_of_guesses(subject, pictures)}
    return dataclasses.replace(made, metadata=made.metadata | tokens)


def tokens_of_guesses(subject: Subject, pictures: int, batch: int = 8) -> dict[str, float]:
    """Decodes ``pictures`` pictures with all guesses that this model has; returns tokens per pass by their text."""
    found = {}
    for method in TOKENS:
        if subject.recipe.drafters or not method.startswith("led"):
            job = subject.job(subject.settings({"method": method, "batch": batch}))
            rounds = subject.decode(job, 0, pictures, min(batch, pictures)).rounds
            found[method] = round((len(subject.free) - 1) / float(rounds.mean()), 3)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    script.add_checkpoint(parser)
    add("--out", required=True, metavar="DIR", help="directory of the checkpoint with what was found")
    add("--drafter", choices=tuple(DRAFTERS), default="eagle", help="kind of drafter (default: eagle)")
    wanted = "text file of prompts not trained on, one per line (default: the demo's random landscapes)"
    add("--prompts", type=arguments.file, help=wanted)
    add("--pictures", type=arguments.whole(), default=32, help="how many are decoded (default: 32)")
    options = parser.parse_args(argv)
    check_new(options.out, overwrite=False)
    prompts = () if options.prompts is None else read_prompts(options.prompts)
    checkpoint = load(model_directory(options.checkpoint), None)
    with locks.sole(options.out):
        save(options.out, fitted(checkpoint, options.drafter, options.pictures, prompts))


if __name__ == "__main__":
    run_script(main)
