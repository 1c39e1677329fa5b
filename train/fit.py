"""Fit the weights of drafting on the shared noise: beta of trees ranked by gaps, and the mixture of echo.

    python -m train.fit --checkpoint DIR|demo --out DIR [--pictures=32] [--drafter=eagle] [--prompts=FILE]

Pictures are decoded strictly with a static tree, and rounds are logged at accepted nodes, whose context is the
picture's own. The mixture (a, b) of each kind of agreement gives the target's distribution its least cross-entropy
under log q' = a log q + b log p_old; beta makes the wanted token likeliest under softmax(beta (log q' + g)). Both
become defaults of the checkpoint OUT. Its metadata tell how many tokens per pass gives with each window that ``auto``
chooses from.

Axes: B batch, M nodes with children, V codes, K values of beta, A and C values of a and b.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lantern_jax.checkpoints.store import check_new, load, model_directory, save
from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import run_script
from lantern_jax.decoding import loop
from lantern_jax.decoding.acceptance import Strict
from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.echo import Echo, blended, recalled
from lantern_jax.decoding.program import Inputs, Program
from lantern_jax.decoding.protocols import Drafting
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree, named_tree
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.io import locks
from lantern_jax.io.errors import LanternError
from lantern_jax.measuring.subject import Subject
from lantern_jax.measuring.windows import window_acceptance
from lantern_jax.pipeline.inputs import prompt_encoder
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.auto import ACCEPTANCE
from lantern_jax.settings.settings import Settings
from lantern_jax.text.encoders import Conditioning
from train import script
from train.sources import random_labels, read_prompts

BETAS = np.geomspace(0.5, 8, 17).astype(np.float32)
SHARES = np.linspace(0, 1.2, 13).astype(np.float32)


@flax.struct.dataclass
class Logged:
    """The drafting's own state, the round's draws, and sums over logged nodes.

    Attributes:
        inner: of the drafting that is logged.
        log_q: float32 [B, M, V], of the round, echo left out.
        noise: float32 [B, L, V], of the round.
        likelihood: float32 [B, K], log-likelihood of the wanted tokens for every beta.
        entropy: float32 [B, 4, A, C], cross-entropy of the target's distributions for every (a, b), by agreement.
        nodes: float32 [B, 4], how many nodes there were.
    """

    inner: Any
    log_q: Float[Array, "B M V"]
    noise: Float[Array, "B L V"]
    likelihood: Float[Array, "B K"]
    entropy: Float[Array, "B 4 A C"]
    nodes: Float[Array, "B 4"]


def logged(drafting: Drafting, tree: DraftTree, vocab_size: int, echo: Echo) -> Drafting:
    """Wraps an ``eagle`` drafting with echo's memory but not its mixture, to log its rounds.

    Args:
        echo: the mixture with which beta is fitted.
    """
    inner_nodes = np.asarray(tree.internal, np.int32)

    def init(params, prefix, slots, span):
        batch = prefix.tokens.shape[1]

        def zeros(*shape):
            return jnp.zeros((batch, *shape), jnp.float32)

        return Logged(
            drafting.init(params, prefix, slots, span),
            zeros(len(inner_nodes), vocab_size),
            zeros(tree.max_depth + 1, vocab_size),
            zeros(len(BETAS)),
            zeros(4, len(SHARES), len(SHARES)),
            zeros(4),
        )

    def propose(params, state, pending, draws, sampling):
        draft, inner = drafting.propose(params, state.inner, pending, draws, sampling)
        return draft, state.replace(inner=inner, log_q=draft.log_q, noise=draws.noise)

    def observe(params, state, outcome):
        verdict = outcome.verdict
        reached = jnp.any(verdict.path[:, None, :] == inner_nodes[None, :, None], axis=-1)
        reached = (reached & (outcome.count > 0)[:, None]).astype(jnp.float32)
        tokens = outcome.draft.tokens[:, inner_nodes]
        parents = np.maximum(tree.parents[inner_nodes], 0)
        above = outcome.draft.tokens[:, parents]
        before = jnp.where(inner_nodes[None] == 0, state.inner.before[:, None], above)
        depth = tree.depth[inner_nodes]
        positions = state.inner.position[:, None] + depth[None]
        old, agreement = recalled(state.inner.memory, tokens, before, positions)
        p = jnp.exp(outcome.log_probs[:, inner_nodes])
        kinds = jax.nn.one_hot(agreement, 4, dtype=jnp.float32) * reached[..., None]
        entropy = jnp.stack(
            [jnp.stack([_cross_entropy(p, a * state.log_q + b * old) for b in SHARES], -1) for a in SHARES],
            -2,
        )
        scores = blended(echo, state.log_q, old, agreement) + state.noise[:, depth]
        wanted = verdict.wanted[:, inner_nodes, None]
        chosen = jnp.stack(
            [
                jnp.take_along_axis(jax.nn.log_softmax(beta * scores), wanted, axis=-1)[..., 0]
                for beta in BETAS
            ],
            -1,
        )
        return state.replace(
            inner=drafting.observe(params, state.inner, outcome),
            likelihood=state.likelihood + jnp.einsum("bm,bmk->bk", reached, chosen),
            entropy=state.entropy + jnp.einsum("bmt,bmac->btac", kinds, entropy),
            nodes=state.nodes + jnp.sum(kinds, axis=1),
        )

    return Drafting(init, propose, observe, tree.max_depth)


def _cross_entropy(p: Float[Array, "B M V"], scores: Float[Array, "B M V"]) -> Float[Array, "B M"]:
    return -jnp.sum(jnp.where(p > 0, p * jax.nn.log_softmax(scores, axis=-1), jnp.float32(0)), axis=-1)


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fitted weights.

    Attributes:
        sharpness: beta.
        echo: the mixtures; agreements that never came up have the library's.
        nodes: logged nodes by agreement, none first.
    """

    sharpness: float
    echo: Echo
    nodes: tuple[int, ...]


def best_mixture(entropy: Float[np.ndarray, "4 A C"], nodes: Float[np.ndarray, " 4"]) -> Echo:
    """Returns the (a, b) of least cross-entropy for every agreement that was met."""
    found = {}
    for row, name in enumerate(("position", "token", "parent"), 1):
        if nodes[row]:
            a, b = np.unravel_index(np.argmin(entropy[row]), entropy[row].shape)
            found[name] = (round(float(SHARES[a]), 2), round(float(SHARES[b]), 2))
    return Echo(**found)


def fit(pipeline: Pipeline, kind: str, conditioning: Conditioning, seed: int = 0, batch: int = 8) -> Fit:
    """Decodes the same pictures twice, for the mixtures and for beta under them.

    Args:
        conditioning: leaves [n, ...], conditional rows: a picture of each; n is rounded down to whole batches.
    """
    checkpoint, tree = pipeline.checkpoint, named_tree("mc_sim_7b_63")
    config, parameters = checkpoint.target_config, pipeline.engine.parameters
    guidance = checkpoint.defaults.get("guidance", Settings().guidance)
    count = len(jax.tree.leaves(conditioning)[0])
    batch = min(batch, count)
    target = pipeline.family.target(config, pipeline.dtype, getattr(checkpoint.drafters[kind][0], "taps", ()))
    drafting = eagle(
        DRAFTERS[kind].make(checkpoint.drafters[kind][0], pipeline.dtype), tree, Echo(*[(1.0, 0.0)] * 3)
    )

    def run(echo: Echo) -> Logged:
        program = Program(target, logged(drafting, tree, config.num_codes, echo))
        go = jax.jit(lambda inputs: loop.advance(program, inputs, loop.start(program, inputs)).drafting)
        states = []
        for first in range(0, count - batch + 1, batch):
            rows = jax.tree.map(lambda leaf, first=first: leaf[first : first + batch], conditioning)
            keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(first + np.arange(batch))
            states.append(
                go(
                    Inputs(
                        parameters.target, pipeline.engine.drafter(kind), rows, keys,
                        jnp.full(batch, guidance, jnp.float32), jnp.ones(batch, bool),
                        SamplingParams.create(), Strict(), None,
                    )
                )
            )  # fmt: skip
        sums = [(state.likelihood, state.entropy, state.nodes) for state in states]
        return [
            np.sum([np.asarray(part).sum(axis=0) for part in parts], axis=0)
            for parts in zip(*sums, strict=True)
        ]

    _, entropy, nodes = run(Echo())
    echo = best_mixture(entropy, nodes)
    likelihood, _, _ = run(echo)
    return Fit(round(float(BETAS[np.argmax(likelihood)]), 2), echo, tuple(int(count) for count in nodes))


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    script.add_checkpoint(parser)
    add("--out", required=True, metavar="DIR", help="directory of the checkpoint with what was found")
    add("--drafter", choices=tuple(DRAFTERS), default="eagle", help="kind of drafter (default: eagle)")
    wanted = "text file of prompts, one a line (default: the demo's random landscapes)"
    add("--prompts", type=arguments.file, help=wanted)
    add("--pictures", type=arguments.whole(), default=32, help="how many are decoded (default: 32)")
    options = parser.parse_args(argv)
    check_new(options.out, overwrite=False)
    prompts = () if options.prompts is None else read_prompts(options.prompts)
    pipeline = Pipeline(load(model_directory(options.checkpoint), None), np.float32)
    if options.drafter not in pipeline.checkpoint.drafters:
        raise LanternError(f"{options.checkpoint} has no drafter {options.drafter!r}: give another --drafter")
    encoder = prompt_encoder(pipeline.checkpoint)
    if options.prompts is None:
        conditioning = encoder.from_arrays(random_labels(np.random.default_rng(0), options.pictures))
    else:
        prompts = [prompts[i % len(prompts)] for i in range(options.pictures)]
        conditioning = encoder.encode(prompts, pipeline.dtype)
    with locks.sole(options.out):
        found = fit(pipeline, options.drafter, conditioning)
        mixture = (*found.echo.position, *found.echo.token, *found.echo.parent)
        print(f"sharpness {found.sharpness}, mixture {mixture}, nodes by agreement {found.nodes}")
        checkpoint = pipeline.checkpoint
        defaults = checkpoint.defaults | {"sharpness": found.sharpness, "mixture": list(mixture)}
        pixels = checkpoint.target_config.grid
        subject = Subject(checkpoint.model, pipeline.recipe, pipeline.engine, conditioning, pixels)
        metadata = checkpoint.metadata | {ACCEPTANCE: window_acceptance(subject, options.pictures)}
        save(options.out, dataclasses.replace(checkpoint, defaults=defaults, metadata=metadata))


if __name__ == "__main__":
    run_script(main)
