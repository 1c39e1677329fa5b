"""Rules, draftings, couplings and trees given as objects: those of the page on them, and wrong ones."""

import contextlib
import gc
import io
import weakref
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lantern_jax
from lantern_jax.engine import program_cache
from lantern_jax.settings.settings import settings_json
from tests.refused import refused
from tests.repository.test_pages import ROOT, as_readers_do, blocks
from tests.tiny_checkpoint import TREE, altered_pipeline, pipeline_on, tiny_pipeline

# One picture, as on the page: its programs are compiled already.
CALL = {"prompts": "a foggy forest", "seed": 3}


@cache
def page() -> SimpleNamespace:
    """Returns what the page on own rules makes with the tiny model, and what it prints."""
    known = {"__name__": "own_rule"}
    examples = blocks((ROOT / "docs" / "own_rule.md").read_text("utf-8"))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(lantern_jax, "load", lambda *_: tiny_pipeline(), raising=False)
        as_readers_do(examples, "own_rule.md", known)
    return SimpleNamespace(**known, printed=printed.getvalue())


def test_the_page_does_what_it_says():
    known, text = page(), (ROOT / "docs" / "own_rule.md").read_text("utf-8")
    assert "100% the same tokens" in known.printed
    assert "stand in" in known.printed and known.close.statistics.speedup
    assert known.strict.statistics.same_tokens == 1
    assert known.alike.statistics.rounds < known.strict.statistics.rounds
    rule, drafting = (
        text.partition(f"{mark}\n")[2].partition("\n\n\n")[0] for mark in ("Rule):", "Drafting:")
    )
    assert rule.count("\n") <= 10 and drafting.count("\n") <= 20


def test_a_sweep_of_a_rule_compiles_nothing():
    pipeline, close = tiny_pipeline(), page().Close
    made = [pipeline.generate(**CALL, rule=close(distance)) for distance in (0.0, 0.9, jnp.float32(0.9))]
    count = len(pipeline.engine.programs)
    pipeline.generate(**CALL, rule=close(np.float32(0.3)))
    assert len(pipeline.engine.programs) == count
    np.testing.assert_array_equal(made[0].tokens, pipeline.generate(**CALL).tokens)
    np.testing.assert_array_equal(made[1].tokens, made[2].tokens)
    assert made[1].statistics.substituted > 0 == made[0].statistics.substituted
    assert 0 < made[1].statistics.mean_distance <= 0.9


def test_progress_and_settings_know_own_objects(capsys):
    seen, rule = [], page().Close(0.5)
    plan = tiny_pipeline().plan(**CALL, rule=rule, drafting=page().above, tau=2.0, window=3)
    assert (
        plan.settings.rule is rule and plan.settings.drafting is page().above and not plan.settings.is_plain
    )
    assert sorted(plan.notes) == [
        "tau has no effect with rule Close", "window has no effect with drafting Drafting",
    ]  # fmt: skip
    assert settings_json(plan.settings)["rule"] == "Close(distance=0.5)"
    plan.run(seen.append)
    assert seen[-1].tokens == seen[-1].total


def test_the_librarys_own_objects_equal_their_names():
    pipeline = tiny_pipeline()
    by_name = pipeline.generate(**CALL, rule="lantern++", k=8, lam=30.0, path="exact_first")
    count = len(pipeline.engine.programs)
    tree = lantern_jax.DraftTree.from_paths(TREE)
    given = {
        "rule": lantern_jax.LanternPlusPlus.create(k=8, lam=30.0),
        "coupling": lantern_jax.Gumbel("exact_first"),
    }
    made = pipeline.generate(**CALL, **given, tree=tree)
    np.testing.assert_array_equal(made.tokens, by_name.tokens)
    assert made.statistics.substituted > 0 and len(pipeline.engine.programs) == count
    plain = pipeline.generate(**CALL, drafting=page().above, tree="none")
    np.testing.assert_array_equal(plain.tokens, pipeline.generate(**CALL, method="ar").tokens)


def test_a_drafting_kind_is_made_for_the_checkpoint():
    """It is given the settings, the target and the checkpoint's drafter."""
    kind = lantern_jax.DraftingKind(
        lambda settings, target, grid, drafter: lantern_jax.eagle(drafter, settings.tree), drafter="eagle"
    )
    made = tiny_pipeline().generate(**CALL, drafting=kind)
    np.testing.assert_array_equal(made.round_of_token, tiny_pipeline().generate(**CALL).round_of_token)


@dataclass(frozen=True)
class Shy(lantern_jax.Gumbel):
    """Accepts no guess."""

    def verify(self, draft, log_probs, draws, rule, codebook, max_count):
        return super().verify(draft, log_probs, draws, rule, codebook, 0 * max_count)


def test_a_users_own_coupling_may_derive_from_the_shared_noise():
    """One that derives from the shared noise works with what needs it: a window that repeats its noise."""
    free = tiny_pipeline().generate(**CALL)
    shy = tiny_pipeline().generate(**CALL, coupling=Shy(), drafting="jacobi", window=4)
    np.testing.assert_array_equal(shy.tokens, free.tokens)
    assert not any(shy.statistics.accepted[1:]) and any(free.statistics.accepted[1:])


def test_objects_that_do_not_fit_are_refused_before_anything_is_computed():
    @flax.struct.dataclass
    class Wrong(lantern_jax.Rule):
        def accepts(self, p, token, wanted, depth, codebook):
            return token.no_such_name

    class Bare(lantern_jax.Rule):
        pass

    @flax.struct.dataclass
    class Unhashable(lantern_jax.Gumbel):
        __hash__ = None

    close, above = page().Close, page().above
    for given, line in (
        ({"rule": close}, r"unknown rule <class 'own_rule.Close'>"),
        ({"rule": close("far")}, "rule Close.distance is str, no array"),
        ({"rule": Bare()}, "rule Bare is no pytree: put @flax.struct.dataclass above its class"),
        ({"rule": Wrong()}, "rule Wrong fails on what it was given .*no_such_name"),
        ({"rule": close(0.5), "coupling": "rejection"}, "rule Close has no accept test for this coupling: define"),
        ({"rule": close(0.5), "coupling": "block"}, "the block coupling has no relaxed test|the coupling block"),
        ({"drafting": above, "tree": "chain"}, "drafting Drafting takes no tree: leave tree out"),
        ({"coupling": lantern_jax.Gumbel}, "unknown coupling <class"),
        ({"coupling": Unhashable()}, "coupling Unhashable has no hash, .*frozen dataclass"),
        ({"drafting": "led", "coupling": lantern_jax.Rejection()}, "led needs the coupling gumbel: .* with Rejection"),
        ({"drafting": lantern_jax.DraftingKind(print, (lantern_jax.Knob("x", int, 1, ""),))}, "register_drafting"),
    ):  # fmt: skip
        with refused(line):
            tiny_pipeline().check("a lake", **given)


def test_a_rule_without_its_codebook_says_so():
    bare = altered_pipeline(codebook=None)
    with refused("rule Close needs a codebook, it seems, and this checkpoint has none: convert it"):
        bare.check("a lake", rule=page().Close(0.5))

    @flax.struct.dataclass
    class Even(lantern_jax.Rule):
        def accepts(self, p, token, wanted, depth, codebook):
            return token % 2 == wanted % 2

    made = bare.generate(**CALL, rule=Even())
    assert made.statistics.substituted > 0 == made.statistics.mean_distance


def test_many_objects_neither_fill_memory_nor_drive_out_others(monkeypatch):
    """Each drafting is a new one, with a program of its own."""
    # Keeps the collector from looking through what other tests left.
    gc.freeze()
    monkeypatch.setattr(program_cache, "MOST_OWN", 2)
    pipeline, make = pipeline_on(1), page().row_above.__wrapped__
    pipeline.generate("a lake", method="ar", batch=1)
    named, held = set(pipeline.engine.programs), []
    for _ in range(2):
        drafting = make(4, 1)
        held.append(weakref.ref(drafting.propose))
        pipeline.generate("a lake", drafting=drafting, batch=1)
    keys = set(pipeline.engine.programs)
    assert named <= keys and len(keys - named) == 2
    del drafting, keys
    gc.collect()
    gc.unfreeze()
    jax.block_until_ready(jnp.zeros(1))
    assert held[1]() is not None and held[0]() is None
