"""Our own rows of ``eval.peers``: the same sizes with random weights, and replayed accept lengths."""

from functools import partial
from typing import Any

from eval.peer_clones import Sample, Way
from lantern_jax.apps.measuring.accept_lengths import AcceptLengths
from lantern_jax.apps.measuring.measure import Member, decode_batch, members
from lantern_jax.apps.measuring.random_models import RandomModel, pixels_a_cell
from lantern_jax.apps.measuring.subject import Subject
from lantern_jax.apps.measuring.sweep import Configuration
from lantern_jax.drafters.registry import usual_drafters
from lantern_jax.engine.engine import Engine
from lantern_jax.families.llamagen.model import LlamaGenConfig
from lantern_jax.io.errors import LanternError

PLAIN, TREE, WINDOW = "ours", "ours-tree", "ours-jacobi"
REPLACED = "lantern_jax: random weights"
METHODS = {PLAIN: "ar", TREE: "gumbel:tree=mc_sim_7b_63", WINDOW: "jacobi:nodes=18"}


def random_subject(size: str, config: LlamaGenConfig, dtype: Any, prompts: int) -> Subject:
    """Returns a model with random weights and an EAGLE drafter."""
    model = RandomModel(f"llamagen-{size.lower()}", config, usual_drafters(config))
    engine = Engine(partial(model.read, dtype), read_drafter=partial(model.read_drafter, dtype))
    pixels = config.grid * pixels_a_cell(config)
    return Subject(f"random {model.name}", model.recipe(dtype), engine, model.conditioning(prompts), pixels)


def way(
    subject: Subject, name: str, batch: int, guidance: float, top_k: int, lengths: AcceptLengths | None
) -> Way:
    """Returns a row; LanternError for accept lengths that its tree or window is too shallow for."""
    asked = Configuration(METHODS[name], {"top_k": top_k}, batch, guidance)
    groups, reasons = members(subject, [asked], lengths)
    if reasons:
        raise LanternError(reasons[0])
    member = groups[0][-1]
    tree = member.settings.tree
    title = {
        PLAIN: "lantern_jax, plain decoding",
        TREE: f"lantern_jax, {METHODS[TREE]}, EAGLE drafter",
        WINDOW: f"lantern_jax, jacobi, window of {tree.num_nodes - 1}",
    }[name]
    return Way(name, title, partial(_decode, subject, member))


def _decode(subject: Subject, member: Member, repeat: int, rounds: int | None) -> Sample:
    made = decode_batch(subject, member, rounds, repeat)
    tokens = subject.tokens_after_first(made.decoded) / int(made.decoded.rounds.sum())
    return Sample(seconds=made.seconds, ms=1e3 * made.pass_seconds, tokens=tokens)
