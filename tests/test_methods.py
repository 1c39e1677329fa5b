"""Every preset by its name, from the prompt to the tokens, and its lowered program."""

import dataclasses
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding import loop
from lantern_jax.decoding.methods import METHODS
from lantern_jax.decoding.program import Inputs
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.recipe import Recipe
from tests.cases import exhaustive, slow
from tests.lowering import lower
from tests.tiny_checkpoint import CODES, TOKENS, drafters, tiny_checkpoint

PROMPTS = ["green hills at noon", "a foggy forest"]
# Fields for a picture of 4 x 4 codes: a window of five has a front of one, a tree for three heads is small,
# a chain short. Other trees are the checkpoint's.
GROWN = "nodes=7,depth=2,frontier=2,children=3"
FIELDS = {
    "led": "window=5", "echo": GROWN, "jacobi": "window=5", "lantern-g": "k=4", "eagle2": GROWN, "ddd": GROWN,
    "lantern": f"{GROWN},k=4", "lantern++": "k=4", "medusa": "tree=0.0.0+0.1+1", "vadusa": "tree=0.0.0+0.1+1",
    "cool": "tree=0.0,k=4", "block": "tree=0.0", "sjd": "window=5", "scd": "window=5", "gsd": "window=5",
    "pac": "window=5,branches=2,levels=1", "zipar": "ahead=2",
}  # fmt: skip
# A high temperature: the noise decides, and a drafter that knows nothing is often right.
TEMPERATURE = 4.0
EXACT = ("auto", "gumbel", "led", "echo", "jacobi", "ar")
LOSSY = ("near", "lantern-g", "lantern", "lantern++", "medusa", "vadusa", "cool", "gsd", "zipar")


@cache
def pipeline() -> Pipeline:
    """Returns a pipeline on one device: it compiles sooner, and devices change no tokens."""
    checkpoint = dataclasses.replace(tiny_checkpoint(), drafters=drafters())
    return Pipeline(checkpoint, devices=jax.local_devices()[:1])


def text_of(name: str, more: str = "") -> str:
    """Returns a method's text, with its fields and more of them."""
    given = ",".join(filter(None, (FIELDS.get(name), more)))
    return f"{name}:{given}" if given else name


@cache
def generated(name: str):
    return pipeline().generate(PROMPTS, num=2, seed=3, method=text_of(name), temperature=TEMPERATURE)


def but(rare: tuple[str, ...], skipped: tuple[str, ...] = (), long: tuple[str, ...] = ()) -> list:
    """Returns all methods but those ``skipped``, ``long`` ones for slow runs and ``rare`` ones for exhaustive runs.

    The pieces of rare ones are tested in other ones, or elsewhere.
    """
    assert {*rare, *skipped, *long} <= set(METHODS)
    marks = dict.fromkeys(long, slow) | dict.fromkeys(rare, exhaustive)
    return [marks.get(name, pytest.param)(name) for name in METHODS if name not in skipped]


# Rules of the shared noise are in decoding/test_rules_loop.py, "ddd" and the parallel drafter in test_laws.py there,
# "lantern-g" in test_engine.py, windows in settings/test_choice.py; programs of the others are lowered below.
RARE = ("eagle", "eagle2", "lantern++", "sjd", "scd", "lantern-g", "near", "vadusa", "ddd", "parallelspec",
        "cool", "gsd", "pac", "block", "led", "jacobi", "echo", "eagle3", "lantern")  # fmt: skip


@pytest.mark.parametrize("name", but(RARE))
def test_a_method_makes_pictures(name):
    made = generated(name)
    assert made.tokens.shape == (4, TOKENS) and made.pictures.shape[0] == 4
    assert made.tokens.min() >= 0 and made.tokens.max() < CODES
    if name == "ar":
        assert made.statistics.step_compression == 1
    else:
        assert made.statistics.step_compression > 1.01, "it saves no pass"
    if name in EXACT:
        np.testing.assert_array_equal(made.tokens, generated("ar").tokens)
    if name not in LOSSY:
        assert made.statistics.substituted == 0


# Relaxed, or the same program as another method there.
NOT_GREEDY = ("auto", "ar", *LOSSY, "gumbel", "eagle", "sjd", "ddd")


# Other couplings and draftings are greedy in decoding/test_equality.py.
@pytest.mark.parametrize(
    "name",
    but(("jacobi", "scd", "eagle3", "parallelspec", "block", "echo", "led", "pac"), NOT_GREEDY, ("eagle2",)),
)
def test_a_method_is_greedy_at_temperature_zero(name):
    """Strict ones give plain decoding's tokens there with every coupling."""
    made = pipeline().generate(PROMPTS[:1], seed=3, method=text_of(name), temperature=0.0)
    plain = pipeline().generate(PROMPTS[:1], seed=3, method="ar", temperature=0.0)
    np.testing.assert_array_equal(made.tokens, plain.tokens)


# What the method of a rare name adds to another one, fields and a rule: it tests its pieces without a program for them
# alone.
ADDED = {
    "led": ("", "near"), "echo": ("", "typical"), "lantern": ("threshold=0.05", None),
    "parallelspec": ("tree=0.0", "cool"), "block": ("drafter=eagle3", None),
}  # fmt: skip


def program_and_inputs(name: str):
    """Makes a method's program at tiny sizes and its inputs, three guided pictures."""
    checkpoint, made = tiny_checkpoint(), drafters()
    more, rule = ADDED.get(name, ("", None))
    settings = pipeline().check(PROMPTS, method=text_of(name, more), rule=rule, top_k=9, top_p=0.9)
    configs = {kind: config for kind, (config, _) in made.items()}
    job = Recipe(checkpoint.target_config, configs, np.dtype(np.float32)).job(settings)
    params = checkpoint.target_params
    drafting = None
    if job.drafter is not None:
        drafting = {"drafter": made[job.drafter][1], "head": params["params"]["head"]["kernel"]}
    batch = 3
    return job.program, Inputs(
        params, drafting, jnp.zeros((batch, checkpoint.target_config.label_slots), jnp.int32),
        jax.random.split(jax.random.key(0), batch), jnp.full(batch, 2.0), jnp.ones(batch, bool), job.sampling,
        job.rule, checkpoint.codebook,
    )  # fmt: skip


# The programs of others have all that is in these.
COVERED = ("ar", "jacobi", "lantern-g", "eagle2", "lantern++", "sjd", "scd", "near", "ddd", "eagle3", "medusa",
           "cool")  # fmt: skip
LONG = ("vadusa", "gsd", "zipar", "lantern", "parallelspec", "pac", "echo", "block")


@pytest.mark.parametrize("name", but(COVERED, ("auto", "gumbel", "eagle"), LONG))
def test_nothing_branches_on_data_or_sorts_the_vocabulary(name):
    """Lowered for a GPU there is no branch, no sort and no trip to the host, only the decoding loop."""
    program, inputs = program_and_inputs(name)
    hlo = lower(partial(loop.decode, program), inputs, platform="cuda").as_text(dialect="hlo")
    assert not re.search(r"= .*\b(conditional|sort|infeed|outfeed|send|recv)\(", hlo)
    assert "callback" not in hlo
    assert re.search(r"= .*\bwhile\(", hlo)
