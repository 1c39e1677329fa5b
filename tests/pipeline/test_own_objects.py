"""Rules, draftings, couplings and trees given as objects: those of the page on them, and wrong ones."""

import contextlib
import gc
import io
import weakref
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lantern_jax
from lantern_jax.couplings import Rejection
from lantern_jax.engine import program_cache
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


def test_progress_and_settings_know_own_objects():
    seen, rule = [], page().Close(0.5)
    plan = tiny_pipeline().plan(**CALL, rule=rule, drafting=page().above)
    settings = plan.call.settings
    assert settings.rule is rule and settings.drafting.drafting is page().above and not settings.is_plain
    assert settings.to_json()["rule"] == "Close(distance=0.5)"
    plan.run(seen.append)
    assert seen[-1].tokens == seen[-1].total


@dataclass(frozen=True)
class OwnTree(lantern_jax.draftings.Guessing):
    drafter: str = "eagle"
    drafts: ClassVar[bool] = True

    def make(self, parts):
        return lantern_jax.draftings.eagle(parts.drafter, lantern_jax.DraftTree.from_paths(TREE))


def test_a_drafting_of_ones_own_is_made_for_the_checkpoint():
    """It is given the target and the checkpoint's drafter."""
    made = tiny_pipeline().generate(**CALL, drafting=OwnTree())
    drawn = tiny_pipeline().generate(**CALL, drafting="tree").round_of_token
    np.testing.assert_array_equal(made.round_of_token, drawn)


@dataclass(frozen=True)
class Shy(lantern_jax.couplings.Gumbel):
    """Accepts no guess."""

    def verify(self, draft, log_probs, draws, rule, codebook, max_count):
        return super().verify(draft, log_probs, draws, rule, codebook, 0 * max_count)


def test_a_users_own_coupling_may_derive_from_the_shared_noise():
    """One that derives from the shared noise works with what needs it: a window that repeats its noise."""
    free = tiny_pipeline().generate(**CALL)
    shy = tiny_pipeline().generate(**CALL, coupling=Shy(), drafting="jacobi:window=4")
    np.testing.assert_array_equal(shy.tokens, free.tokens)
    assert not any(shy.statistics.accepted[1:]) and any(free.statistics.accepted[1:])


def test_objects_that_do_not_fit_are_refused_before_anything_is_computed():
    @flax.struct.dataclass
    class Wrong(lantern_jax.rules.Rule):
        def accepts(self, p, token, wanted, depth, codebook):
            return token.no_such_name

    class Bare(lantern_jax.rules.Rule):
        pass

    close = page().Close
    for given, line in (
        ({"rule": close}, r"rule 'Close' is not valid: give an object of that class, Close\(...\)"),
        ({"rule": close("far")}, "rule Close.distance is str, no array"),
        ({"rule": Bare()}, "rule Bare is no pytree: put @flax.struct.dataclass above its class"),
        ({"rule": Wrong()}, "rule Wrong fails on what it was given .*no_such_name"),
        ({"rule": close(0.5), "coupling": "rejection"}, "rule Close has no accept test for this coupling: define"),
        ({"rule": close(0.5), "coupling": "block"}, "the block coupling has no relaxed test|the coupling block"),
        ({"coupling": lantern_jax.couplings.Gumbel}, "coupling 'Gumbel' is not valid: give an object of that class"),
        ({"drafting": "led", "coupling": Rejection()}, "led needs the coupling gumbel: .* with rejection"),
    ):  # fmt: skip
        with refused(line):
            tiny_pipeline().check("a lake", **given)


def test_a_rule_without_its_codebook_says_so():
    bare = altered_pipeline(codebook=None)
    with refused("rule Close fails on what it was given .*'NoneType' object has no attribute"):
        bare.check("a lake", rule=page().Close(0.5))

    @flax.struct.dataclass
    class Even(lantern_jax.rules.Rule):
        def accepts(self, p, token, wanted, depth, codebook):
            return token % 2 == wanted % 2

    made = bare.generate(**CALL, rule=Even())
    assert made.statistics.substituted > 0 == made.statistics.mean_distance


@pytest.mark.slow
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
