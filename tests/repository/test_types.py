"""What a type checker sees of the package: mypy finds a user's mistakes, and nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
from typing import assert_type

import lantern_jax

lantern = lantern_jax.load("demo")
assert_type(lantern, lantern_jax.Pipeline)
generation = lantern.generate("a lake", num=2, seed=7, method="lantern-g:lam=3")
assert_type(generation, lantern_jax.Generation)
assert_type(generation.statistics.speedup, float | None)
assert_type(generation.plain, lantern_jax.Generation | None)
for picture in lantern.iterate(["a lake"], seed=7):
    assert_type(picture.number, int)
assert_type(lantern_jax.METHODS["led"].help, str)
assert_type(lantern_jax.Method(lantern_jax.draftings.Led(nodes=9), rule="near:tau=1"), lantern_jax.Method)
assert_type(lantern_jax.DraftTree.chain(4).max_depth, int)
sampling = lantern_jax.SamplingParams.create(temperature=0.9)
assert_type(sampling.replace(top_p=sampling.top_p / 2), lantern_jax.SamplingParams)
assert_type(lantern_jax.rules.Near(tau=1.0), lantern_jax.rules.Near)
assert_type(lantern_jax.draftings.jacobi(1024, window=8), lantern_jax.Drafting)
"""

WRONG = """
import lantern_jax

lantern = lantern_jax.load("demo")
lantern.generate("a lake", lamda=3.0)
generation = lantern.generate("a lake", seed="seven")
print(generation.statistic)
"""

# Other packages are not read: with JAX and NumPy it takes three times as long, and finds the same.
SETTINGS = """
[mypy]
follow_imports = silent
[mypy-jax.*,jaxlib.*,flax.*,optax.*,orbax.*,numpy.*,ml_dtypes.*,PIL.*,einops.*,rich.*,filelock.*]
follow_imports = skip
[mypy-flax,flax.struct]
follow_imports = silent
"""


@pytest.mark.slow
def test_mypy_finds_a_users_mistakes_and_nothing_else(tmp_path):
    pytest.importorskip("mypy")
    files = {"right.py": RIGHT, "wrong.py": WRONG, "mypy.ini": SETTINGS}
    for name, content in files.items():
        (tmp_path / name).write_text(content.lstrip())
    words = ["--config-file", "mypy.ini", "--cache-dir", ROOT / ".pytest_cache" / "mypy", *list(files)[:2]]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", sys.executable, *words],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    found = re.findall(r"^(\w+\.py):(\d+): error: (.*?) +\[([a-z-]+)\]$", result.stdout, re.MULTILINE)
    told = ("4", '"lamda"', "call-arg"), ("5", '"int"', "arg-type"), ("6", '"statistic"', "attr-defined")
    assert len(found) == len(told), result.stdout + result.stderr
    for (name, line, message, code), (number, word, kind) in zip(found, told, strict=True):
        assert (name, line, code) == ("wrong.py", number, kind) and word in message
