"""Every knob is declared once, and what follows from the declaration agrees with it."""

import inspect
import typing
from pathlib import Path

import numpy as np
import pytest

import lantern_jax
from lantern_jax.commands.main import main
from lantern_jax.decoding.acceptance import Lantern, Strict
from lantern_jax.decoding.couplings import COUPLINGS
from lantern_jax.decoding.gumbel import PATHS
from lantern_jax.decoding.methods import methods
from lantern_jax.decoding.rejection import RESIDUALS
from lantern_jax.decoding.rules.names import RULE_NAMES
from lantern_jax.decoding.tree import DraftTree, named_tree
from lantern_jax.settings import KNOBS, Knobs, Settings, check_count, check_seed, resolve_settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"


def resolve(given=None, defaults=None, platform="cpu", has_drafter=True):
    return resolve_settings(
        given or {}, defaults or {}, platform=platform, vocab_size=32, has_drafter=has_drafter
    )


def visible_arguments(function) -> set[str]:
    """The names of the keyword arguments that a type checker lets a caller give."""
    names = set()
    hints = typing.get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.add(name)
        elif typing.get_origin(hints[name]) is typing.Unpack:
            (record,) = typing.get_args(hints[name])
            names |= set(typing.get_type_hints(record))
    return names


@pytest.mark.parametrize("name", ["generate", "generate_from", "check"])
def test_type_checkers_see_every_knob(name):
    visible = visible_arguments(getattr(lantern_jax.Pipeline, name))
    assert set(KNOBS) <= visible, f"{name} takes them as Unpack[Knobs]"
    assert "seed" in visible and "colour" not in visible


def test_keyword_arguments_have_the_knobs_types():
    ours, declared = typing.get_type_hints(Knobs), typing.get_type_hints(Settings)
    assert list(ours) == list(declared) == list(KNOBS)
    assert not Knobs.__required_keys__
    for name, kind in declared.items():
        assert ours[name] == (kind if kind is typing.Any else kind | None), name


def test_choices_are_what_decoding_knows():
    # Which of the published residuals is the family's matter.
    residuals = tuple(name for name in RESIDUALS if not name.startswith("published_"))
    known = {"rule": RULE_NAMES, "coupling": tuple(COUPLINGS), "path": PATHS, "residual": residuals}
    known["method"] = tuple(methods())
    assert {name: knob.choices for name, knob in KNOBS.items() if knob.choices} == known


def test_the_defaults_are_valid():
    settings = resolve()
    for name, knob in KNOBS.items():
        if name != "tree":
            assert getattr(settings, name) == knob.default == getattr(Settings(), name)
        assert knob.help, name
    assert settings.tree == named_tree("chain")
    assert resolve(platform="gpu").tree == named_tree("naive_extend_57")
    assert isinstance(settings.rule_value(), Strict)
    assert isinstance(resolve({"rule": "lantern"}).rule_value(), Lantern)
    assert resolve({"rule": "lantern++", "k": 3}).rule_value().k == 3
    assert float(resolve({"temperature": 0.5}).sampling().temperature) == 0.5


# A knob -> values that are its own, and values that are not.
VALUES = {
    "guidance": ([0, 1.0, np.float32(7)], [-0.1, np.nan, np.inf, "1", True]),
    "temperature": ([0, 2], [-1, np.nan, np.inf, "hot"]),
    "top_k": ([0, 1, 32, np.int64(3)], [-1, 1.5, 33, True, 2.0]),
    "top_p": ([0.001, 1], [0, 1.01, -1, np.nan]),
    "tree": (["none", "chain", [[0]], DraftTree.chain(2)], ["oak", [[0], [0]], 7]),
    "rule": (["strict", "lantern"], ["loose", 3]),
    "k": ([0, 31], [-1, 32, 0.5]),
    "delta": ([0, 0.99], [1, -0.1, np.nan]),
    "lam": ([1, 100], [0.99, np.inf, np.nan]),
    "coupling": (["gumbel", "rejection"], ["loose"]),
    "path": (["longest", "exact_first"], ["loose"]),
    "residual": (["exact", "published"], ["loose"]),
    "batch": ([1, np.int32(9)], [0, -2, 1.5, True]),
    "method": (["ar", "lantern-g"], ["loose", 3, ["ar"]]),
}


@pytest.mark.parametrize("name", KNOBS)
def test_values_are_checked(name):
    """Whether or not the knob matters to what else is chosen."""
    good, bad = VALUES[name]
    for value in good:
        resolve({name: value})
    for value in bad:
        for given, defaults in (({name: value}, {}), ({}, {name: value})):
            if name == "k" and value == 32 and defaults:
                continue  # A default is cut to what the codebook has.
            with pytest.raises(ValueError) as error:
                resolve(given, defaults)
            assert "\n" not in str(error.value)
            assert name in str(error.value) or "tree" in str(error.value)


def test_messages_say_what_to_give():
    for given, line in {
        ("top_p", 2): "top_p 2 is not valid: give a number in (0, 1] (1 turns it off)",
        ("delta", 1): "delta 1 is not valid: give a number in [0, 1)",
        ("guidance", -1): "guidance -1 is not valid: give a finite number >= 0 (1 turns it off)",
        ("batch", 0): "batch 0 is not valid: give a whole number >= 1",
        ("rule", "loose"): "unknown rule 'loose': choose one of strict, lantern, lantern++",
    }.items():
        with pytest.raises(ValueError) as error:
            resolve(dict([given]))
        assert str(error.value) == line
    with pytest.raises(ValueError, match="'colour' is not a setting: choose from method, guidance"):
        resolve({"colour": 1})
    with pytest.raises(ValueError, match="checkpoint's default 'colour' is not a setting"):
        resolve({}, {"colour": 1})
    with pytest.raises(ValueError, match=f"seed -1 is not valid: give a whole number from 0 to {2**32 - 1}"):
        check_seed(-1)
    with pytest.raises(ValueError, match="num True is not valid: give a whole number >= 1"):
        check_count("num", True)


def test_methods_fix_knobs_that_there_are():
    for name, method in methods().items():
        assert method.help and set(method.knobs) <= set(KNOBS) - {"method"}, name
        settings = resolve({"method": name})
        for knob, value in method.knobs.items():
            assert getattr(settings, knob) == (DraftTree.empty() if value == "none" else value)


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
    assert resolve({}, has_drafter=False).tree == DraftTree.empty()
    assert resolve({"method": "ar"}, has_drafter=False).tree == DraftTree.empty()
    with pytest.raises(ValueError, match="method eagle drafts, and this checkpoint has no drafter"):
        resolve({"method": "eagle"}, has_drafter=False)


def test_the_page_has_the_tables(capsys):
    assert main(["methods", "--markdown"]) == 0
    tables = capsys.readouterr().out
    assert PAGE.read_text(encoding="utf-8").endswith(tables), (
        "put `lantern methods --markdown` into docs/settings.md"
    )
    for knob in KNOBS.values():
        assert f"| `{knob.name}` |" in tables
