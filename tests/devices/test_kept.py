"""Programs of earlier processes: found by what they are made of, and not used where anything is amiss."""

import dataclasses
import os

import jax
import numpy as np
import pytest

from lantern_jax.devices import kept, platform
from lantern_jax.devices.compilation import compile_ahead
from lantern_jax.devices.kept import keep_program, load_program, place_of, read, write
from lantern_jax.engine import compiler
from lantern_jax.settings.recipe import Recipe
from tests.tiny_checkpoint import pipeline_on, tiny_pipeline

DEVICE = jax.devices()[0]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where programs are kept, as after ``keep_compiled_programs`` with an empty cache directory."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(kept, "user_cache_directory", lambda: tmp_path)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "lantern_jax" / "xla"))
    yield tmp_path / "lantern_jax" / "kept"
    jax.config.update("jax_compilation_cache_dir", before)


def test_programs_that_one_engine_compiled_are_loaded_by_another(folder, monkeypatch):
    """Whatever can be swept may have another value."""
    call = {"prompts": "a lake", "method": "ar", "seed": 3}
    made = pipeline_on(1).generate(**call)
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr(compiler, "compile_ahead", None)
    found = pipeline_on(1).generate(**call)
    np.testing.assert_array_equal(found.tokens, made.tokens)
    np.testing.assert_array_equal(found.pictures, made.pictures)
    pipeline_on(1).generate(**call, temperature=0.7, guidance=3.0)
    for options in ({"top_k": 3}, {"method": "jacobi"}, {"guidance": 1.0}, {"num": 2}):
        with pytest.raises(TypeError):
            pipeline_on(1).generate(**call | options)


def test_unusable_programs_are_not_loaded_and_old_ones_are_dropped(folder, monkeypatch):
    program, _ = compile_ahead(lambda x: x + 1, np.float32(1))
    place = place_of(1, device=DEVICE)
    assert load_program(place, DEVICE) is None and load_program(None, DEVICE) is None
    for damage in (
        lambda whole: whole[:-9],
        lambda whole: whole[:99] + b"xx" + whole[101:],
        lambda whole: b"x",
    ):
        keep_program(place, program)
        assert load_program(place, DEVICE)(np.float32(1)) == 2
        place.write_bytes(damage(place.read_bytes()))
        assert load_program(place, DEVICE) is None
    for age, name in enumerate("abc"):
        keep_program(folder / name, program)
        os.utime(folder / name, (age, age))
    load_program(folder / "a", DEVICE)
    monkeypatch.setattr(kept, "_MOST", 2.5 * (folder / "a").stat().st_size)
    keep_program(place, program)
    assert {file.name for file in folder.iterdir()} == {"a", place.name}, "the most recently used are kept"
    # A program that JAX does not serialise stays in JAX's own cache.
    keep_program(place, object())
    assert load_program(place, DEVICE) is None and read(place) is False
    write(None, 1)
    assert read(None) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has other ways")
def test_other_users_programs_are_not_read(folder, monkeypatch):
    write(place_of(1), "kept")
    folder.chmod(0o750)
    assert place_of(1) is None
    folder.chmod(0o700)
    assert read(place_of(1)) == "kept"
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert place_of(1) is None


def test_a_program_is_identified_by_everything_that_determines_it(folder, monkeypatch):
    first = place_of(1, device=DEVICE)
    assert place_of(1, device=DEVICE) == first is not None
    assert place_of(object()) is None, "another process could not find it"
    others = [place_of(2, device=DEVICE), place_of(1, device=jax.devices()[1]), place_of(1)]
    with jax.default_matmul_precision("float32"):
        others.append(place_of(1, device=DEVICE))
    monkeypatch.setenv("XLA_FLAGS", "--xla_other")
    others.append(place_of(1, device=DEVICE))
    monkeypatch.setattr(platform, "_source", lambda: "other")
    others.append(place_of(1, device=DEVICE))
    assert len({first, *others} - {None}) == 1 + len(others)
    monkeypatch.setattr(kept, "registered", lambda: True)
    assert place_of(1) is None, "the source of other packages is not described"
    monkeypatch.undo()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    assert place_of(1) is None, "another place was configured"


def test_jobs_have_names_by_all_that_they_are_made_from():
    """A changed job has none: the name is that of the program that it was made with."""
    recipe = tiny_pipeline().recipe
    methods = [
        "ar", "led", "led:nodes=9", "led:mixture=1/0/1/0/1/0/1/0", "lantern++", "lantern++:tree=chain", "zipar:ahead=2",
    ]  # fmt: skip
    jobs = [recipe.job(recipe.settings({"method": one})) for one in methods]
    half = Recipe(recipe.config, recipe.drafters, np.dtype("float16"), recipe.defaults, recipe.codebook)
    jobs.append(half.job(half.settings({"method": "ar"})))
    assert all(job.name for job in jobs) and len({job.name for job in jobs}) == len(jobs)
    for job, one in zip(jobs, methods, strict=False):
        assert recipe.job(recipe.settings({"method": one, "guidance": 5.0, "top_p": 0.5})).name == job.name
    for other_rule in ("lantern++:lam=3", "eagle"):  # An argument of the program, and in its key.
        assert recipe.job(recipe.settings({"method": other_rule})).name == jobs[4].name
    assert dataclasses.replace(jobs[0], guidance=3.0).name == jobs[0].name
    assert dataclasses.replace(jobs[0], program=jobs[0].program._replace(rows=None)).name == ""
    assert recipe.job(recipe.settings({"drafting": jobs[1].program.drafting})).name == "", "the caller's own"
