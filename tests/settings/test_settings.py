"""Every knob is declared once, and what follows from the declaration agrees with it."""

import re
import typing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import lantern_jax
from lantern_jax import DraftTree, DynamicTree, Lantern, SamplingParams, Strict, named_tree, process_logits
from lantern_jax.apps.commands.main import main
from lantern_jax.decoding.drafting.redraws import REDRAWS
from lantern_jax.decoding.fields import check_count, check_numbers, check_seed
from lantern_jax.decoding.methods import methods
from lantern_jax.families.drafters import DRAFTERS as KINDS
from lantern_jax.pipeline.inputs import Call
from lantern_jax.settings.resolution import for_platform, resolve_settings
from lantern_jax.settings.settings import KNOBS, Knobs, Settings

DRAFTERS = tuple(KINDS)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def resolve(given=None, defaults=None, platform="cpu", drafters=DRAFTERS):
    return resolve_settings(given or {}, defaults or {}, platform=platform, vocab_size=32, drafters=drafters)


def test_type_checkers_see_every_knob_and_its_type():
    for name in ("plan", "generate_from", "check"):
        assert typing.get_type_hints(getattr(lantern_jax.Pipeline, name))["call"] == typing.Unpack[Call]
    assert typing.get_type_hints(lantern_jax.Pipeline.generate)["knobs"] == typing.Unpack[Knobs]
    assert typing.get_type_hints(Knobs).items() <= typing.get_type_hints(Call).items()
    ours, declared = typing.get_type_hints(Knobs), typing.get_type_hints(Settings)
    assert declared.pop("own")
    assert list(ours) == list(declared) == list(KNOBS)
    assert not Knobs.__required_keys__
    for name, kind in declared.items():
        assert ours[name] == (kind if kind is typing.Any else kind | None), name


def test_choices_are_what_decoding_knows():
    # The family decides which of the published residuals is meant.
    assert KNOBS["residual"].choices == ("exact", "published")
    assert KNOBS["redraw"].choices == tuple(REDRAWS)
    assert tuple(KNOBS["drafting"].choices) == (*KINDS, "led", "jacobi", "zipar")


def test_the_defaults_are_valid():
    settings = resolve()
    for name, knob in KNOBS.items():
        if name not in ("tree", "window", *methods()["led"].knobs, "method"):
            assert getattr(settings, name) == knob.default == getattr(Settings(), name)
        assert knob.help, name
    assert settings.tree == DraftTree.chain(7) and settings.drafting == "led"
    assert resolve({"method": "gumbel"}, platform="gpu").tree == named_tree("naive_extend_57")
    assert isinstance(settings.rule_value(), Strict)
    assert isinstance(resolve({"rule": "lantern"}).rule_value(), Lantern)
    assert resolve({"rule": "lantern++", "k": 3}).rule_value().k == 3
    assert float(resolve({"temperature": 0.5}).sampling().temperature) == 0.5


# A knob -> values that it takes, and values that it refuses.
VALUES = {
    "guidance": ([0, 1.0, np.float32(7)], [-0.1, np.nan, np.inf, "1", True]),
    "temperature": ([0, 2], [-1, np.nan, np.inf, "hot"]),
    "top_k": ([0, 1, 32, np.int64(3)], [-1, 1.5, 33, True, 2.0]), "top_p": ([0.001, 1], [0, 1.01, -1, np.nan]),
    "drafting": (["eagle", "medusa", "jacobi", "zipar"], ["oak", 3]),
    "tree": (["none", "chain", "dynamic", [[0]], DraftTree.chain(2)], ["oak", [[0], [0]], 7]),
    "nodes": ([1, 17, 32, 256], [0, 4097, 2.5]), "depth": ([1, 64], [0, 65]), "frontier": ([1, 256], [0, 257]),
    "children": ([1, 256], [0, 257]), "ranking": (["probability", "gap"], ["loose"]),
    "sharpness": ([0.1, 9], [0, np.inf]), "threshold": ([0, 0.5], [1, -0.1]), "echo": (["off", "on"], ["loud", True]),
    "mixture": (["0.8,0.25,0.3,0.8,0.2,0.9,0,1", [1, 0] * 4], ["1,2", [1] * 7, [1, 0, 1, 0, 1, 0, 1, -1], 3]),
    "window": ([1, 64], [0, 1.5]), "redraw": (["maximal", "shared"], ["loose"]),
    "initial": (["left", "above"], ["below"]), "branches": ([1, 4], [0, 65]), "levels": ([0, 3], [-1, 9]),
    "refine": ([0, 8], [-1, 65]), "ahead": ([1, 99], [0]), "guesses": ([0, 64], [-1, 65]),
    "rule": (["strict", "lantern"], ["loose", 3]),
    "k": ([0, 31], [-1, 32, 0.5]), "delta": ([0, 0.99], [1, -0.1, np.nan]), "lam": ([1, 100], [0.99, np.inf, np.nan]),
    "tau": ([0, 2.5], [-1, np.nan]), "ratio": ([1, 50], [0.5]), "omega": ([1, 2], [0.9]),
    "epsilon": ([0.01, 1], [0, 1.1]), "samples": ([1, 5], [0, 1.5]),
    "coupling": (["gumbel", "rejection", "block"], ["loose"]), "path": (["longest", "followed"], ["loose"]),
    "residual": (["exact", "published"], ["loose"]), "batch": ([1, np.int32(9)], [0, -2, 1.5, True]),
    "method": (["ar", "lantern-g"], ["loose", 3, ["ar"]]),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOBS)
def test_values_are_checked(name):
    """Even where the knob does not matter to what else is chosen; NumPy's numbers become Python's."""
    good, bad = VALUES[name]
    for value in good:
        assert not any(isinstance(held, np.generic) for held in vars(resolve({name: value})).values())
    for value in bad:
        for given, defaults in (({name: value}, {}), ({}, {name: value})):
            if name == "k" and value == 32 and defaults:
                continue  # A default is cut to what the codebook has.
            with pytest.raises(ValueError) as error:
                resolve(given, defaults)
            assert "\n" not in str(error.value)
            assert re.search(rf"\b{name}\b", str(error.value))


@pytest.mark.parametrize("digits", [400, 5000])
def test_whole_numbers_of_any_length_are_compared(digits):
    """A float cannot hold the first, and Python refuses to write the second."""
    checks = [knob.check for knob in KNOBS.values() if knob.type in (int, float)]
    for check in (*checks, check_seed, partial(check_count, "num"), partial(check_numbers, 1, 1, 0)):
        for value in (10**digits, -(10**digits)):
            with pytest.raises(ValueError, match="is not valid: give") as error:
                check(value)
            assert len(str(error.value)) < 500


def test_the_least_temperature_keeps_logits_apart_and_finite():
    """Logits of ten thousand: a step between two of them is as large as the noise, no larger, and all are finite."""
    least = KNOBS["temperature"].low
    for temperature in (least / 2, 1e-38, float(np.finfo(np.float32).tiny)):
        for take in (SamplingParams.create, lambda value: resolve({"temperature": value})):
            with pytest.raises(ValueError, match=r"temperature .* is not valid: give 0 or .* >= 0.001"):
                take(temperature)
    logits = np.float32(1e4) - np.arange(3) * np.spacing(np.float32(1e4))
    log_probs = process_logits(logits.astype(np.float32), SamplingParams.create(least))
    assert np.isfinite(log_probs).all() and np.all(np.diff(log_probs) > -1.5)


def test_messages_say_what_to_give():
    for line, check in {
        "top_p 2 is not valid: give a number in (0, 1] (1 turns it off)": partial(resolve, {"top_p": 2}),
        "delta 1 is not valid: give a number in [0, 1)": partial(resolve, {"delta": 1}),
        "unknown path 'loose': choose one of longest, exact_first, followed": partial(
            resolve, {"path": "loose"}
        ),
        "'colour' is not a setting: choose from method, guidance": partial(resolve, {"colour": 1}),
        "'num_images' is not a setting: did you mean num? choose": partial(resolve, {"num_images": 1}),
        "checkpoint's default 'colour' is not a setting": partial(resolve, {}, {"colour": 1}),
        f"seed -1 is not valid: give a whole number from 0 to {2**32 - 1}": partial(check_seed, -1),
        "num True is not valid: give a whole number >= 1": partial(check_count, "num", True),
    }.items():
        with pytest.raises(ValueError, match=re.escape(line)):
            check()


@pytest.mark.parametrize("name", methods())
def test_methods_set_knobs_that_exist(name):
    method, settings = methods()[name], resolve({"method": name})
    assert method.help and set(method.knobs) <= set(KNOBS) - {"method"}
    for knob, value in method.knobs.items():
        if knob != "tree":
            assert getattr(settings, knob) == for_platform(value, "cpu")
    wanted = for_platform(method.knobs.get("tree"), "cpu")
    if wanted == "dynamic":
        sizes = (settings.nodes, settings.depth, settings.frontier, settings.children)
        assert settings.tree == DynamicTree(*sizes, settings.ranking, settings.sharpness, settings.threshold)
    elif settings.drafting in ("jacobi", "led", "zipar"):
        assert settings.tree.max_depth == (0 if settings.drafting == "zipar" else settings.window)
    elif wanted is not None:
        assert settings.tree == (DraftTree.empty() if wanted == "none" else named_tree(wanted))


def test_auto_is_what_suits_the_platform_and_the_checkpoint():
    for drafters, name in ((DRAFTERS, "led"), (("eagle",), "led"), ((), "jacobi")):
        for platform in ("cpu", "gpu", "tpu"):
            chosen = resolve({"method": "auto"}, platform=platform, drafters=drafters)
            assert chosen == resolve({}, platform=platform, drafters=drafters)
            assert (chosen.method, chosen.rule, chosen.coupling) == (name, "strict", "gumbel")
    assert resolve({}).tree.num_nodes < resolve({}, platform="gpu").tree.num_nodes
    # The checkpoint's own choice comes first.
    defaults = {"method": {"cpu": "near", "gpu": "gumbel"}, "tau": 2.0, "tree": "chain"}
    assert resolve({"method": "auto"}, defaults).rule == "near"
    assert resolve({}, defaults, platform="tpu").method == "gumbel"


def test_naming_a_tree_or_a_coupling_gives_a_tree():
    for given, defaults in (({"tree": "mc_sim_7b_63"}, {}), ({}, {"tree": "mc_sim_7b_63"})):
        assert resolve(given, defaults).drafting == "eagle"
        assert resolve(given, defaults).tree == named_tree("mc_sim_7b_63")
    assert resolve({"coupling": "rejection"}, {"method": "led"}).tree == named_tree("chain")
    assert resolve({"drafting": "medusa"}, {"method": "led"}).drafting == "medusa"
    assert resolve({"tree": "none"}, {"method": "led"}).is_plain
    assert resolve({"method": "led"}, {"tree": "chain"}).drafting == "led"


def test_knobs_that_do_not_fit_each_other_are_refused():
    for given, line in (
        ({"method": "zipar", "tree": "chain"}, "drafting zipar takes no tree"),
        ({"method": "jacobi", "tree": "dynamic"}, "drafting jacobi has no dynamic tree"),
        ({"method": "jacobi", "tree": DynamicTree(9, 4)}, "drafting jacobi has no dynamic tree"),
        ({"method": "led", "tree": [[0], [1], [1, 0]]}, "drafting led needs a tree whose path of"),
        ({"method": "jacobi", "tree": [[1]]}, "drafting jacobi needs a tree whose path of"),
        ({"tree": "dynamic", "coupling": "rejection"}, "ranking gap needs the coupling gumbel"),
        ({"coupling": "block", "tree": "mc_sim_7b_63"}, "the coupling block needs a chain"),
        ({"coupling": "block", "rule": "lantern"}, "the coupling block has no relaxed rule"),
        ({"method": "scd", "coupling": "block"}, "block reads the guesses that redraw maximal keeps"),
        ({"drafting": "jacobi", "coupling": "block", "redraw": "shared"}, "give redraw independent"),
        ({"coupling": "rejection", "rule": "near"}, "rule near needs the coupling gumbel"),
        ({"tree": "dynamic", "nodes": 999}, "nodes 999 of a dynamic tree is too many"),
    ):
        with pytest.raises(ValueError, match=line):
            resolve(given)
    assert resolve({"drafting": "jacobi", "coupling": "block"}).redraw == "independent"
    assert resolve({"method": "sjd", "coupling": "block"}).redraw == "independent"
    assert resolve({"coupling": "block"}).redraw == "independent" and resolve().redraw == "maximal"
    assert resolve({"method": "zipar", "tree": "none"}).is_plain
    assert not resolve({"method": "zipar"}).is_plain
    assert resolve({"method": "jacobi", "tree": []}).is_plain


def test_the_order_of_given_method_checkpoint_and_default():
    defaults = {"rule": "lantern", "coupling": "gumbel", "tree": [[0]], "guidance": 2.0, "k": 5}
    assert resolve({}, defaults).rule == "lantern"
    settings = resolve({"method": "lantern++"}, defaults)
    assert (settings.rule, settings.coupling) == ("lantern++", "rejection")
    assert (settings.guidance, settings.k, settings.lam) == (2.0, 5, KNOBS["lam"].default)
    assert settings.tree == DraftTree.chain(1), "the checkpoint's tree stays"
    assert resolve({"method": "lantern++", "coupling": "gumbel"}, defaults).coupling == "gumbel"
    assert resolve({"method": "ar"}, defaults).tree == DraftTree.empty()
    assert resolve({"method": "ar", "tree": [[0], [1]]}, defaults).tree.num_nodes == 3
    assert resolve({}, defaults | {"method": "eagle"}).coupling == "rejection"
    assert resolve({"method": "gumbel"}, defaults | {"method": "eagle"}).coupling == "gumbel"


def test_a_method_that_drafts_needs_a_drafter():
    assert resolve({}, drafters=()).drafting == "jacobi"
    assert resolve({"method": "ar"}, drafters=()).tree == DraftTree.empty()
    for given, drafters, line in (
        ({"method": "eagle"}, (), "method eagle drafts with eagle, and this checkpoint has no drafter"),
        ({"method": "medusa"}, ("eagle",), "method medusa drafts with medusa, and its drafters are: eagle"),
        ({"tree": "chain"}, (), "eagle is wanted, and this checkpoint has no drafter"),
    ):
        with pytest.raises(ValueError, match=line):
            resolve(given, drafters=drafters)
    assert resolve({"method": "jacobi"}, drafters=()).tree.max_depth


def test_the_page_has_the_tables(capsys):
    assert main(["methods", "--markdown"]) == 0
    tables = capsys.readouterr().out
    # After a change put `lantern methods --markdown` into docs/settings.md.
    assert PAGE.read_text(encoding="utf-8").endswith(tables)
    assert all(f"| `{knob.name}` |" in tables for knob in KNOBS.values())
