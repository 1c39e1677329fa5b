"""Options become settings: what is given comes first, then the checkpoint's defaults, then the library's."""

import re
import typing
from pathlib import Path

import numpy as np
import pytest

import lantern_jax
from lantern_jax import DraftTree, SamplingParams, named_tree, process_logits
from lantern_jax.apps.commands.main import main
from lantern_jax.decoding.drafting.eagle import Dynamic, Tree
from lantern_jax.decoding.drafting.jacobi import Jacobi
from lantern_jax.decoding.drafting.led import Led
from lantern_jax.decoding.fields import ByPlatform, allowed_in
from lantern_jax.decoding.methods import AUTO, METHODS, Method
from lantern_jax.decoding.rules.near import Near
from lantern_jax.drafters.registry import DRAFTERS as KINDS
from lantern_jax.pipeline.call import CallOptions
from lantern_jax.rules import Lantern, Strict
from lantern_jax.settings.settings import NUMBERS, OPTIONS, PARTS, Options, Settings, resolve_settings

DRAFTERS = tuple(KINDS)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def resolve(given=None, defaults=None, platform="cpu", drafters=DRAFTERS):
    return resolve_settings(given or {}, defaults or {}, platform=platform, vocab_size=32, drafters=drafters)


def test_type_checkers_see_every_option():
    for name in ("plan", "check"):
        hints = typing.get_type_hints(getattr(lantern_jax.Pipeline, name))
        assert hints["call"] == typing.Unpack[CallOptions]
    assert typing.get_type_hints(lantern_jax.Pipeline.generate)["options"] == typing.Unpack[Options]
    hints = typing.get_type_hints(Options)
    assert tuple(hints) == OPTIONS and not Options.__required_keys__
    assert hints.items() <= typing.get_type_hints(CallOptions).items()
    kinds = typing.get_type_hints(Settings)
    assert all(hints[name] == kinds[name] | None for name in NUMBERS)


def test_without_options_everything_has_a_value():
    settings = resolve()
    assert {name: getattr(settings, name) for name in NUMBERS} == {
        "guidance": 4.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "batch": 8
    }  # fmt: skip
    assert settings.tree == DraftTree.window(7) and isinstance(settings.rule, Strict)
    assert settings.keeps_tokens and not settings.is_plain
    assert float(resolve({"temperature": 0.5}).sampling().temperature) == 0.5
    assert resolve({"method": None, "rule": None, "top_k": None}) == settings
    assert settings.to_json() == {
        "drafting": "led:drafter=eagle,nodes=7,refine=1,mixture=" + str(settings.drafting.mixture),
        "rule": "strict", "coupling": "gumbel", "guidance": 4.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
        "min_p": 0.0,
    }  # fmt: skip


# A number -> values that it takes, and values that it refuses.
VALUES = {
    "guidance": ([0, 1.0, np.float32(7)], [-0.1, np.nan, np.inf, "1", True]),
    "temperature": ([0, 2], [-1, np.nan, np.inf, "hot"]),
    "top_k": ([0, 1, 32, np.int64(3)], [-1, 1.5, 33, True, 2.0]),
    "top_p": ([0.001, 1], [0, 1.01, -1, np.nan]),
    "min_p": ([0, 0.03, 1], [1.01, -0.1, np.nan]),
    "batch": ([1, np.int32(9)], [0, -2, 1.5, True]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_checked(name):
    """Given ones and defaults alike; NumPy's become Python's."""
    good, bad = VALUES[name]
    for value in good:
        assert not isinstance(getattr(resolve({name: value}), name), np.generic)
    for value in bad:
        for given, defaults in (({name: value}, {}), ({}, {name: value})):
            with pytest.raises(ValueError, match=rf"\b{name}\b") as error:
                resolve(given, defaults)
            assert "\n" not in str(error.value)


def test_the_least_temperature_keeps_logits_apart_and_finite():
    """Logits of ten thousand: a step between two of them is as large as the noise, no larger, and all are finite."""
    least = NUMBERS["temperature"].metadata["allowed"].low
    for temperature in (least / 2, 1e-38, float(np.finfo(np.float32).tiny)):
        for take in (SamplingParams.create, lambda value: resolve({"temperature": value})):
            with pytest.raises(ValueError, match=r"temperature .* is not valid: give 0 or .* >= 0.001"):
                take(temperature)
    logits = np.float32(1e4) - np.arange(3) * np.spacing(np.float32(1e4))
    log_probs = process_logits(logits.astype(np.float32), SamplingParams.create(least))
    assert np.isfinite(log_probs).all() and np.all(np.diff(log_probs) > -1.5)


@pytest.mark.parametrize(("line", "given", "defaults"), [
    ("top_p 2 is not valid: give a number in (0, 1] (1 turns it off)", {"top_p": 2}, {}),
    ("top_k 33 is more than the 32 codes: give at most 32", {"top_k": 33}, {}),
    ("'colour' is not an option: choose from method, drafting", {"colour": 1}, {}),
    ("'num_images' is not an option: did you mean num? choose", {"num_images": 1}, {}),
    ("'tau' is not an option: it is a field of methods, write method near:tau=...", {"tau": 1}, {}),
    ("the checkpoint's default 'colour' is not an option", {}, {"colour": 1}),
    ("unknown method 'loose'", {"method": "loose"}, {}), ("unknown method 'loose'", {}, {"method": "loose"}),
    ("unknown rule 'loose'", {"rule": "loose"}, {}), ("unknown drafting 3", {"drafting": 3}, {}),
    ("unknown tree 'oak'", {"method": "gumbel"}, {"tree": "oak"}),
])  # fmt: skip
def test_messages_say_what_to_give(line, given, defaults):
    with pytest.raises(ValueError, match=re.escape(line)):
        resolve(given, defaults)


@pytest.mark.parametrize("name", [name for name in METHODS if name != AUTO])
def test_methods_settle_on_every_platform(name):
    for platform in ("cpu", "gpu", "tpu"):
        method = resolve({"method": name}, platform=platform).method
        assert METHODS[name].help and str(Method(**method.texts)) == str(method)
        for part in PARTS:
            for field in allowed_in(type(getattr(method, part))):
                assert not isinstance(getattr(getattr(method, part), field), ByPlatform)


def test_auto_is_what_suits_the_platform_and_the_checkpoint():
    for drafters, kind in ((DRAFTERS, Led), (("eagle",), Led), ((), Jacobi)):
        for platform in ("cpu", "gpu", "tpu"):
            chosen = resolve({"method": "auto"}, platform=platform, drafters=drafters)
            assert chosen == resolve({}, platform=platform, drafters=drafters)
            assert isinstance(chosen.drafting, kind) and chosen.keeps_tokens
    assert resolve({}).tree.num_nodes < resolve({}, platform="gpu").tree.num_nodes
    # The checkpoint's own choice comes first.
    defaults = {"method": {"cpu": "near:tau=2", "gpu": "jacobi"}, "tree": "chain"}
    assert resolve({"method": "auto"}, defaults).rule == Near(tau=2.0)
    assert isinstance(resolve({}, defaults, platform="tpu").drafting, Jacobi)


def test_a_drafting_or_a_coupling_replaces_that_of_the_tree_method():
    for coupling in ("rejection", lantern_jax.couplings.Rejection()):
        settings = resolve({"coupling": coupling}, {"method": "led"})
        assert settings.tree == named_tree("chain") and settings.method.texts["coupling"] == "rejection"
    assert resolve({"drafting": "tree:drafter=medusa"}, {"method": "led"}).drafting.drafter == "medusa"
    assert isinstance(resolve({"rule": "near"}, {"method": "jacobi"}).drafting, Jacobi)
    assert resolve({"drafting": Dynamic(nodes=9)}).tree.nodes == 9


def test_the_order_of_given_method_checkpoint_and_default():
    defaults = {"method": "lantern-g:k=5", "tree": [[0]], "guidance": 2.0}
    assert str(resolve({}, defaults).rule) == "LanternPlusPlus(k=5, lam=2.0)"
    settings = resolve({"method": "lantern++:k=3"}, defaults)
    assert (settings.rule.k, settings.guidance) == (3, 2.0)
    assert settings.tree == DraftTree.chain(1), "the checkpoint's tree stays"
    assert resolve({"method": "gumbel:tree=0+1"}, defaults).tree.num_nodes == 3
    assert (
        resolve({"method": "ar"}, defaults).is_plain
        and resolve({"method": "ar"}, defaults).tree.num_nodes == 1
    )
    assert isinstance(resolve({"rule": "lantern:delta=0.1"}, defaults).rule, Lantern)
    assert resolve({"method": Method(Tree(tree="chain"), Near(2.0))}, defaults).rule.tau == 2
    assert resolve({"method": "echo"}, {"sharpness": 3.0}).tree.sharpness == 3
    assert resolve({"guidance": None}, defaults).guidance == 2


def test_the_page_has_the_tables(capsys):
    assert main(["methods", "--markdown"]) == 0
    # After a change put `lantern methods --markdown` into docs/settings.md.
    assert PAGE.read_text(encoding="utf-8").endswith(capsys.readouterr().out)
