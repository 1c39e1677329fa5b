"""A whole checkpoint of tiny, random models for the landscape prompts: 16 tokens from 32 codes, 16 pixels square."""

import dataclasses
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.drafters.eagle import DrafterModel
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.drafters.sequence import DrafterConfig, sequence_rotary
from lantern_jax.families.llamagen.model import LlamaGen, LlamaGenConfig
from lantern_jax.models.vq import VQConfig, VQModel
from lantern_jax.pipeline.pipeline import Pipeline
from tests.decoding.toy_models import drafter_config

CODES, GRID, SIDE, NEIGHBOURS = 32, 4, 16, 12
TOKENS = GRID * GRID
TREE = [[0], [1], [0, 0]]
PROMPTS = (
    "a lake",
    "a foggy forest",
    "snowy mountains at dusk",
    "hills",
    "the sea at night",
    "a river",
    "fog",
)

TARGET = LlamaGenConfig(
    dim=16,
    num_layers=1,
    num_heads=2,
    vocab_size=CODES,
    grid=GRID,
    hidden_dim=32,
    num_labels=LANDSCAPES.num_labels,
    label_slots=LANDSCAPES.num_attributes,
    null_labels=tuple(LANDSCAPES.null_labels().tolist()),
    qk_norm="rms",
    rotate_prefix=True,
)
DRAFTER = DrafterConfig(
    dim=16, num_heads=2, hidden_dim=32, vocab_size=CODES, grid=GRID, prefix_length=TARGET.prefix_length
)
VQ = VQConfig(
    ch=4,
    ch_mult=(1,),
    z_channels=4,
    codebook_size=CODES,
    codebook_dim=4,
    encoder_blocks=1,
    decoder_blocks=1,
    groups=2,
    level_attention=False,
    mid_attention=False,
    patch=4,
)


def random_parameters(model, seed: int, scale: float, *inputs):
    """Returns normal parameters in the shapes that ``model.init`` would give, norms at 1; made without compiling."""
    return random_leaves(jax.eval_shape(model.init, jax.random.key(0), *inputs), seed, scale)


def random_leaves(shapes, seed: int, scale: float):
    """Returns normal arrays of these shapes, vectors at 1."""
    generator = np.random.default_rng(seed)

    def draw(leaf):
        if leaf.ndim < 2:
            return np.ones(leaf.shape, np.float32)
        return generator.normal(0, scale, leaf.shape).astype(np.float32)

    return jax.tree.map(draw, shapes)


def target_parameters():
    labels = jnp.zeros((1, TARGET.label_slots), jnp.int32)
    return random_parameters(LlamaGen(TARGET), 0, 0.5, labels, jnp.zeros((1, TOKENS), jnp.int32))


def drafter_parameters():
    features, tokens = jnp.zeros((1, 1, 2, DRAFTER.dim)), jnp.zeros((1, 1, 2), jnp.int32)
    rotary = sequence_rotary(DRAFTER, jnp.ones((1, 1, 2), bool))
    mask = jnp.ones((1, 1, 2, 2), bool)
    return random_parameters(DrafterModel(DRAFTER), 1, 0.5, features, tokens, rotary, mask)


@cache
def drafters() -> dict:
    """Returns (config, random parameters) of every kind of drafter."""
    settings = {**dataclasses.asdict(DRAFTER), "num_codes": CODES, "taps": (0,), "heads": 3, "shared_head": True,
                "masks": 2, "markov_rank": 4}  # fmt: skip
    made = {"eagle": (DRAFTER, drafter_parameters())}
    for seed, kind in enumerate(("eagle3", "medusa", "parallel"), 3):
        config = drafter_config(kind, **settings)
        made[kind] = (config, random_leaves(DRAFTERS[kind].shapes(config), seed, 0.5))
    return made


def vq_parameters():
    return random_parameters(VQModel(VQ), 2, 0.3, jnp.zeros((1, SIDE, SIDE, 3)))


def nearest(codes, k: int) -> np.ndarray:
    """Returns the nearest codes, int32 [V, k], by brute force."""
    distance = ((codes[:, None] - codes[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k].astype(np.int32)


@cache
def tiny_checkpoint() -> Checkpoint:
    vq = vq_parameters()
    codes = vq["params"]["codebook"]
    codes = codes / np.linalg.norm(codes, axis=-1, keepdims=True)
    return Checkpoint(
        model="tiny",
        target_config=TARGET,
        target_params=target_parameters(),
        drafters={"eagle": (DRAFTER, drafter_parameters())},
        tokenizer_config=VQ,
        tokenizer_params=vq,
        codebook=Codebook(neighbours=nearest(codes, NEIGHBOURS), codes=codes),
        vocabulary=LANDSCAPES,
        defaults={"guidance": 2.0, "tree": {"cpu": TREE, "gpu": "naive_extend_57"}},
    )


@cache
def tiny_pipeline() -> Pipeline:
    """Returns the pipeline of all tests, which share its programs; on one device, for which they compile sooner."""
    return pipeline_on(1)


@cache
def strict_pipeline() -> Pipeline:
    """Returns a pipeline that refuses words which the checkpoint does not know."""
    return sharing_programs(Pipeline)(tiny_checkpoint(), devices=jax.devices()[:1], strict_words=True)


def pipeline_on(devices: int) -> Pipeline:
    """Returns a new pipeline on a number of devices, with nothing compiled."""
    return Pipeline(tiny_checkpoint(), devices=jax.devices()[:devices])


def sharing_programs(load: Callable[..., Pipeline]) -> Callable[..., Pipeline]:
    """Returns ``load`` for tiny checkpoints, whose pipelines share what others of this process compiled."""

    def loaded(*arguments, **options) -> Pipeline:
        pipeline = load(*arguments, **options)
        pipeline.engine.programs = tiny_pipeline().engine.programs
        return pipeline

    return loaded


def altered_pipeline(**parts) -> Pipeline:
    """Returns a pipeline with other parts of the checkpoint; programs are ``tiny_pipeline``'s, whose models it has."""
    checkpoint = dataclasses.replace(tiny_checkpoint(), **parts)
    return sharing_programs(Pipeline)(checkpoint, devices=jax.devices()[:1])
