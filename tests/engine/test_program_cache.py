"""Compiled programs: each is made once, whichever threads ask, and the most recently used are kept."""

import gc
import threading
import weakref

import jax.numpy as jnp
import numpy as np

from lantern_jax import TokenConditioning
from lantern_jax.decoding.completion import Completion
from lantern_jax.engine import compiler
from lantern_jax.engine.program_cache import MOST_OWN, ProgramCache, ProgramKey, shape_of
from lantern_jax.families.llamagen.model import CaptionConditioning
from tests.serve.running import in_threads
from tests.tiny_checkpoint import pipeline_on


def made(name: str):
    return lambda: (name, 1.0)


def held(cache: ProgramCache) -> str:
    return "".join(cache)


def test_the_most_recently_used_are_kept():
    cache = ProgramCache(most=2)
    for name in "abac":
        assert cache.obtain(name, made(name))[0] == name
    assert held(cache) == "ac" and cache.dropped == 1 and "b" not in cache
    assert cache.obtain("a", made("other")) == ("a", 0.0)
    assert cache.get("c") == "c" and cache.get("b") is None
    cache.obtain("d", made("d"))
    assert held(cache) == "cd"


def test_programs_of_a_callers_own_objects_drive_out_no_others():
    cache = ProgramCache(most=2)
    for name in "ab":
        cache.obtain(name, made(name))
    for size in range(MOST_OWN + 3):
        cache.obtain(ProgramKey("advance", size, 1, own=True), made("own"))
    cache.obtain("c", made("c"))
    assert "a" not in cache and "b" in cache and "c" in cache
    assert len(cache) == MOST_OWN + 2 and cache.dropped == 4


def test_conditioning_of_another_dtype_or_structure_needs_another_program():
    mask, features, ids = np.ones((2, 3), bool), np.ones((2, 3, 4), np.float32), np.ones((2, 3), np.int32)
    others = [
        CaptionConditioning(features, mask),
        CaptionConditioning(features.astype(jnp.bfloat16), mask),
        TokenConditioning(ids, mask),
        Completion(ids, ids),
        (ids, ids),
    ]
    assert len({shape_of(one, 1) for one in others}) == len(others)
    # Devices hold int64 as int32, and one sequence has the same shape as two.
    assert shape_of(ids, 1) == shape_of(ids[:1].astype(np.int64), 1)


def test_programs_obtained_while_staying_are_not_dropped():
    cache = ProgramCache(most=1)
    with cache.staying():
        cache.obtain("a", made("a"))
        cache.obtain("b", made("b"))
        in_threads([lambda: cache.obtain("x", made("x"))])
    for name in "cde":
        cache.obtain(name, made(name))
    assert held(cache) == "abe"


def test_a_program_is_made_once_and_again_after_a_failure():
    cache, making, wait = ProgramCache(), [], threading.Barrier(4)

    def make():
        making.append(1)
        if len(making) == 1:
            raise RuntimeError("no memory")
        return "program", 1.0

    def ask():
        wait.wait(10)
        try:
            return cache.obtain("a", make)
        except RuntimeError:
            return None

    results = in_threads([ask] * 4)
    assert len(making) == 2 and sorted(map(str, results)) == ["('program', 0.0)"] * 2 + [
        "('program', 1.0)",
        "None",
    ]
    assert not cache._making


def test_threads_share_an_engines_programs_and_parameters(monkeypatch):
    """Two calls of the same kind at the same time: every program is compiled once, parameters are read once."""
    pipeline, compiled, read = pipeline_on(1), [], []
    plain, reader, both = compiler.compile_ahead, pipeline.engine.placement.read, threading.Barrier(2)

    def compile_ahead(function, *arguments, **options):
        compiled.append(function.func.__name__)
        return plain(function, *arguments, **options)

    def read_once(where):
        read.append(where)
        return reader(where)

    def call():
        both.wait(10)
        return pipeline.generate("a lake", method="ar", seed=3).tokens

    monkeypatch.setattr(compiler, "compile_ahead", compile_ahead)
    monkeypatch.setattr(pipeline.engine.placement, "read", read_once)
    first, second = in_threads([call, call])
    assert sorted(compiled) == ["advance", "draw", "start"] and len(read) == 1
    np.testing.assert_array_equal(first, second)


def test_a_run_continues_after_its_program_was_dropped():
    """A program dropped in the middle of a run is compiled again, and nothing is left of the others."""
    # Keeps the collector from looking through what other tests left.
    gc.freeze()
    pipeline = pipeline_on(1)
    engine, job = pipeline.engine, pipeline.job(pipeline.check("a lake", method="ar"))

    def begun():
        return engine.advance(engine.start(job, pipeline.encode("a lake").arrays["labels"], seed=5), 3)

    expected, run, programs = engine.finish(engine.advance(begun())).tokens, begun(), engine.programs
    held = [weakref.ref(programs.get(key)) for key in programs]
    programs.most = 1
    engine.draw(expected)
    assert len(programs) == 1 and programs.dropped == len(held) == 2
    made = engine.finish(engine.advance(run)).tokens
    assert len(programs) == 1 and programs.dropped == 3
    np.testing.assert_array_equal(made, expected)
    gc.collect()
    gc.unfreeze()
    assert not any(one() for one in held)
