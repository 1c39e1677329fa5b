"""Model configs refuse values that are not sizes."""

import dataclasses

import jax
import numpy as np
import pytest

from lantern_jax.drafters.parallel import KIND, ParallelConfig
from lantern_jax.drafters.sequence import DrafterConfig
from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.emu3.model import Emu3Config
from lantern_jax.families.janus.model import JanusConfig
from lantern_jax.families.liquid.model import LiquidConfig
from lantern_jax.families.llamagen.model import LlamaGenConfig
from lantern_jax.families.llamagen.weights import gpt_shapes
from lantern_jax.families.lumina2.model import Lumina2Config
from lantern_jax.families.token_weights import token_shapes
from lantern_jax.models.tokens import TokenModel
from lantern_jax.models.vq import VQConfig
from tests.refused import refused

CONFIGS = {
    "llamagen": LlamaGenConfig(16, 1, 2, num_labels=3), "drafter": DrafterConfig(16, 2, 32),
    "chameleon": ChameleonConfig(), "vq": VQConfig(), "janus": JanusConfig(), "emu3": Emu3Config(),
    "liquid": LiquidConfig(), "lumina2": Lumina2Config(),
}  # fmt: skip
WRONG = {
    int: [None, "two", -1, 1.5, True, [1], float("nan")],
    float: [None, "two", -1.0, 0, float("nan"), float("inf"), True, [1.0]], bool: [None, "true", 1, []],
    str: [None, 3, "unheard of"],
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_values_that_are_not_sizes_are_refused_by_name(name):
    config, tried = CONFIGS[name], 0
    for field in dataclasses.fields(config):
        optional = field.type in (int | None, tuple[int, ...] | None)
        kind = int if field.type == int | None else field.type
        for value in WRONG.get(kind, [None, "two", [], [-1], [1, "two"]]):
            if value is None and optional:
                continue
            with refused(field.name):
                dataclasses.replace(config, **{field.name: value})
            tried += 1
    assert tried > 20


def test_numpy_numbers_are_sizes_and_a_parallel_drafter_needs_no_markov_term():
    assert LlamaGenConfig(np.int64(16), 1, 2, num_labels=np.int32(3)).prefix_length == 1
    config = ParallelConfig(16, 2, 32, vocab_size=24, num_codes=24, markov_rank=0)
    assert "markov" not in KIND.shapes(config)["params"]
    with refused("markov_rank -1 is not valid"):
        dataclasses.replace(config, markov_rank=-1)


@pytest.mark.parametrize(("shapes", "model", "config"), [
    (gpt_shapes, (), CONFIGS["llamagen"]), (token_shapes, (TokenModel,), CONFIGS["chameleon"]),
])  # fmt: skip
def test_shapes_of_two_layers_are_those_of_all(shapes, model, config):
    config = dataclasses.replace(config, num_layers=4)
    of_two, of_all = shapes(*model, config), shapes.__wrapped__(*model, config)
    assert jax.tree.structure(of_two) == jax.tree.structure(of_all)
    assert [leaf.shape for leaf in jax.tree.leaves(of_two)] == [
        leaf.shape for leaf in jax.tree.leaves(of_all)
    ]
