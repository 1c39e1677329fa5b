"""Programs of earlier processes: found by what they are made of, and not used where anything is amiss."""

import os
from functools import partial

import flax.struct
import jax
import numpy as np
import pytest

from lantern_jax.decoding.rules.near import Near
from lantern_jax.devices import kept
from lantern_jax.devices.compilation import compile_ahead
from lantern_jax.devices.kept import keep_program, load_program, may_keep, place_of, remembered
from lantern_jax.engine import compiler
from lantern_jax.models.llamagen import LlamaGen
from lantern_jax.models.targets import transformer_target
from tests.tiny_checkpoint import TARGET, pipeline_on, tiny_pipeline


@flax.struct.dataclass
class OfAnother:
    """Like a rule of another package: what its methods do is not known here."""

    tau: float


DEVICE, THREE = jax.devices()[0], np.zeros(3, np.float32)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where programs are kept, as after ``keep_compiled_programs`` with an empty cache directory."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(kept, "user_cache_directory", lambda: tmp_path)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "lantern_jax" / "xla"))
    yield tmp_path / "lantern_jax" / "kept"
    jax.config.update("jax_compilation_cache_dir", before)


def test_programs_that_one_engine_compiled_are_loaded_by_another(folder, monkeypatch):
    call = {"prompts": "a lake", "method": "ar", "seed": 3}
    made = pipeline_on(1).generate(**call)
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr(compiler, "compile_ahead", None)
    found = pipeline_on(1).generate(**call)
    np.testing.assert_array_equal(found.tokens, made.tokens)
    np.testing.assert_array_equal(found.pictures, made.pictures)
    with pytest.raises(TypeError):
        pipeline_on(1).generate(**call, top_k=3)


def test_unusable_programs_are_not_loaded_and_old_ones_are_dropped(folder, monkeypatch):
    program, _ = compile_ahead(lambda x: x + 1, np.float32(1))
    place = place_of(1, device=DEVICE)
    assert may_keep(place)
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
    # A program that JAX does not serialize stays in JAX's own cache.
    keep_program(place, object())
    assert load_program(place, DEVICE) is None and not may_keep(place) and not may_keep(None)


def test_the_results_of_functions_are_remembered(folder):
    assert remembered(sorted, (2, 1)) == [1, 2]
    (file,) = folder.iterdir()
    kept._write(file, "as it was")
    assert remembered(sorted, (2, 1)) == "as it was"
    assert remembered(lambda words: words[0], ("own", 2)) == "own" and len(list(folder.iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has other ways")
def test_other_users_programs_are_not_read(folder, monkeypatch):
    program, _ = compile_ahead(lambda x: x + 1, np.float32(1))
    place = place_of(1)
    keep_program(place, program)
    folder.chmod(0o750)
    assert place_of(1) is None
    folder.chmod(0o700)
    assert place_of(1) == place and load_program(place, DEVICE) is not None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert place_of(1) is None and load_program(place, DEVICE) is None


def test_a_program_is_identified_by_everything_that_determines_it(folder, monkeypatch):
    def place(*parts, arguments=THREE):
        return place_of(*parts, arguments=arguments, device=DEVICE)

    # Every method's program has a name of its own, and keeps it when made anew.
    programs = {
        tiny_pipeline().job(tiny_pipeline().settings({"method": name})).program
        for name in ("ar", "led", "eagle")
    }
    assert len({place(program) for program in programs} - {None}) == len(programs) == 3
    first, second = (place(transformer_target(LlamaGen(TARGET), 32, 16)) for _ in range(2))
    assert first == second is not None
    # Objects that another process could not find, and other people's code, have none.
    for own in (lambda x: x, object(), place, partial(place, 1)):
        assert place(own) is None
    near, other = (
        jax.tree.structure(Near(tau=1.0, ratio=2.0)),
        jax.tree.structure(OfAnother(jax.numpy.float32(1))),
    )
    assert place(near) is not None and place(other) is None
    first = place(1)
    assert place(1) == first is not None
    arguments = THREE[:2], THREE.astype(int), (THREE,)
    others = [place(2), place_of(1, arguments=THREE, device=jax.devices()[1])]
    others += [place(1, arguments=other) for other in arguments]
    with jax.default_matmul_precision("float32"):
        others.append(place(1))
    monkeypatch.setenv("XLA_FLAGS", "--xla_other")
    others.append(place(1))
    monkeypatch.setattr(kept, "_source", lambda: "other")
    others.append(place(1))
    assert len({first, *others} - {None}) == 1 + len(others)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    assert place(1) is None, "another place was configured"
