"""Tiny models that divide over eight devices, engines of them on any mesh, and what a compiled loop exchanges.

The drafter is good: it repeats the embedding of the last token, and the target is little more than that.
"""

import re
from functools import cache

import jax
import numpy as np

from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.decoding.protocols import GuidedTokens
from lantern_jax.devices.partition import place
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.programs import Parameters
from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.emu3_5.model import Emu35Config
from lantern_jax.families.glm_image.model import GlmImageConfig
from lantern_jax.families.llamagen.model import LlamaGenConfig
from lantern_jax.families.registry import family_of
from lantern_jax.families.x_omni.model import XOmniConfig
from lantern_jax.settings.recipe import Recipe
from tests.decoding.toy_models import drafter_config
from tests.tiny_checkpoint import random_leaves

DIM, HEADS, HIDDEN, CODES, LAYERS = 32, 8, 64, 256, 2
TREE = "0.0.0+0.1+1+2"
GUIDED = {
    "dim": DIM, "num_layers": LAYERS, "num_heads": 4, "hidden_dim": HIDDEN, "vocab_size": CODES + 24,
    "num_codes": CODES, "grid": 4, "kv_heads": 4,
}  # fmt: skip
TARGETS = {
    "llamagen": LlamaGenConfig(
        DIM, LAYERS, HEADS, vocab_size=CODES, grid=4, hidden_dim=HIDDEN, num_labels=8, qk_norm="rms"
    ),
    "anole": ChameleonConfig(DIM, LAYERS, HEADS, HIDDEN, vocab_size=CODES + 24, num_codes=CODES, grid=4),
    "lumina": ChameleonConfig(
        DIM, LAYERS, HEADS, HIDDEN, vocab_size=CODES + 24, num_codes=CODES, grid=4, layout="lumina"
    ),
    "glm_image": GlmImageConfig(**GUIDED, sections=(1, 1, 2)),
    "x_omni": XOmniConfig(
        **GUIDED | {"num_layers": 4}, picture_tokens=CODES + 2, front_layers=1, back_layers=1
    ),
    "emu3_5": Emu35Config(**GUIDED, head_width=12, row_end=6, image_end=5),
    # Neither heads, feed-forward columns nor codes divide over four or eight.
    "odd": LlamaGenConfig(36, LAYERS, 3, vocab_size=75, grid=4, hidden_dim=42, num_labels=8),
}


@cache
def drafter_configs(family: str) -> dict:
    """Returns a config of every kind of drafter."""
    target = TARGETS[family]
    shared = {"num_heads": target.num_heads, "hidden_dim": 2 * target.dim, "num_codes": target.num_codes}
    own = {"taps": (0, 1), "heads": 3, "masks": 2, "markov_rank": 4}
    return {kind: drafter_config(kind, **target.shared_with_drafter, **shared, **own) for kind in DRAFTERS}


@cache
def target_parameters(family: str):
    """Returns the target's parameters on the host."""
    params = random_leaves(family_of(TARGETS[family]).shapes(TARGETS[family]), 0, 0.1)
    width = TARGETS[family].dim
    head = params["params"]["head"]["kernel"]
    params["params"]["head"]["kernel"] = head * np.float32(20 / np.sqrt(width))
    tokens = params["params"]["tokens"]["embedding"]
    params["params"]["tokens"]["embedding"] = 10 * tokens
    return params


@cache
def drafter_parameters(family: str, kind: str):
    """Returns a drafter's parameters on the host."""
    params = random_leaves(DRAFTERS[kind].shapes(drafter_configs(family)[kind]), 1, 0.1)
    if kind == "eagle":
        inner, dim = params["params"], TARGETS[family].dim
        inner["tokens"]["embedding"] = target_parameters(family)["params"]["tokens"]["embedding"]
        inner["fc"] = {
            "kernel": np.eye(2 * dim, dim, dtype=np.float32),
            "bias": np.zeros(dim, np.float32),
        }
    return params


@cache
def codebook(codes: int) -> Codebook:
    """Returns a codebook whose neighbours are arbitrary codes."""
    numbers = np.random.default_rng(5)
    neighbours = np.argsort(numbers.random((codes, codes)), axis=1)[:, :12].astype(np.int32)
    return Codebook(neighbours, numbers.normal(size=(codes, 4)).astype(np.float32))


def engine(family: str, data: int, model: int) -> Engine:
    """Returns an engine that has nothing compiled."""

    def read(where):
        parts = {"target": target_parameters(family), "codebook": codebook(TARGETS[family].num_codes)}
        return Parameters(**place(parts, where))

    def read_drafter(name, parameters, where):
        drafter = place(drafter_parameters(family, name), where)
        return {"drafter": drafter, "head": parameters.target["params"]["head"]["kernel"]}

    devices = np.array(jax.devices()[: data * model]).reshape(data, model)
    return Engine(read, devices=devices, read_drafter=read_drafter)


def job(family: str, **options):
    """Returns how a batch is decoded with these options; guidance is 2."""
    config, drafters = TARGETS[family], drafter_configs(family)
    defaults, book = {"guidance": 2.0}, codebook(config.num_codes)
    recipe = Recipe(config, drafters, np.dtype("float32"), defaults, book)
    return recipe.job(recipe.settings(options, "cpu"))


def prompts(family: str, count: int):
    """Returns conditioning that differs by row, half of it padded where there is something to pad."""
    if hasattr(TARGETS[family], "num_labels"):
        return (np.arange(count, dtype=np.int32) % 7)[:, None]
    tokens = CODES + 2 + np.arange(5 * count, dtype=np.int32).reshape(count, 5) % 20
    mask = np.ones(tokens.shape, bool)
    mask[: count // 2, 0] = False
    return GuidedTokens(tokens, mask, np.full_like(tokens, CODES + 2), mask)


def started(family: str, data: int, model: int, count: int = 4, **options):
    """Returns (engine, a run that has only begun)."""
    made = engine(family, data, model)
    return made, made.start(job(family, **options), prompts(family, count), seed=3)


def decoded(family: str, data: int, model: int, count: int = 4, **options):
    """Returns what a mesh of that shape decodes."""
    made, run = started(family, data, model, count, **options)
    return made.finish(made.advance(run))


_COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast)(?:-start)?\("
)


def collectives(lines: list[str]) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    """Returns (operation, shapes of its results) for the collectives in lines of HLO."""
    found = filter(None, map(_COLLECTIVE.search, lines))
    return [(match[2], tuple(map(_sizes, re.findall(r"\w+\[([\d,]*)\]", match[1])))) for match in found]


def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(int(size) for size in shape.split(",") if size)
