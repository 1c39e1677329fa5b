"""Programs compiled for devices that are not here, by the devices' own compilers, within budgets.

Run with ``pytest -m ahead``. Each test starts a process of its own, compiled as users compile.
"""

import json
import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from lantern_jax.decoding.methods import AUTO, METHODS

ROOT = Path(__file__).resolve().parents[3]
MIB = 2**20
HAS_TPU = find_spec("libtpu") is not None
HAS_CUDA = any("cuda" in entry.name for entry in metadata.entry_points(group="jax_plugins"))
pytestmark = pytest.mark.ahead
for_tpu = pytest.mark.skipif(not HAS_TPU, reason="libtpu is not installed: the extra ahead")
for_gpu = pytest.mark.skipif(not HAS_CUDA, reason="JAX's CUDA plugin is not installed: jax[cuda13]")

# MiB of temporaries and million cycles per round on a v5e, as of 2026-11-26. The test has the budget
# of copies.
BUDGETS = {
    "chameleon-7b": {
        "ar": (30.7, 30.79),
        "jacobi:nodes=18": (76.6, 29.09),
        "jacobi:nodes=56": (162.2, 34.42),
        "gumbel:tree=mc_sim_7b_63": (132.5, 36.07),
        "led:nodes=56": (170.0, 44.95),
    },
}
EVERY = [name for name in METHODS if name != AUTO]
ROOM = 1.05
# Kernels per round of LlamaGen-XL on an H100, with Triton's and by XLA alone, as of 2026-11-26.
KERNELS = {"ar": (352, 492), "jacobi:nodes=18": (408, 657), "gumbel:tree=mc_sim_7b_63": (516, 779)}
WITHOUT_TRITON = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None
from eval.ahead.__main__ import main
main()
"""


def compiled(
    folder: Path, *arguments: str, script: str = "from eval.ahead.__main__ import main; main()"
) -> list[dict]:
    """Returns the rows of ``eval.ahead``."""
    file = folder / "rows.json"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")
    }
    command = [sys.executable, "-c", script, *arguments, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


@for_tpu
def test_every_method_compiles_for_the_demo(tmp_path):
    rows = compiled(tmp_path, "--for=v5e", "--programs=advance", "--methods", *EVERY)
    assert [row["method"] for row in rows] == EVERY
    assert not [(row["method"], row["error"]) for row in rows if row["error"]]
    assert all(row["cycles_per_round"] > 0 for row in rows)


@for_tpu
def test_programs_of_a_mesh_compile(tmp_path):
    mesh = ("--for=v5e:2x4", "--mesh=data=2,model=4", "--programs=start,advance,refill", "--batch=2")
    rows = compiled(tmp_path, *mesh, "--methods=jacobi:nodes=18")
    assert [row["program"] for row in rows] == ["start", "advance", "refill"]
    assert not [row["error"] for row in rows if row["error"]]
    assert rows[1]["collectives"]["all-reduce"]["count"] > 0


@for_tpu
@pytest.mark.parametrize("size", BUDGETS)
def test_rounds_stay_within_their_budgets(tmp_path, size):
    """Nothing of the size of a layer is copied at the beginning or end of a piece.

    What layouts by rule leave are old distributions and features of windows: under a thousandth of what a step reads.
    """
    given = ("--for=v5e", f"--size={size}", "--programs=advance", "--methods", *BUDGETS[size])
    rows = compiled(tmp_path, *given)
    for row in rows:
        temporaries, cycles = BUDGETS[size][row["method"]]
        assert row["error"] is None
        assert row["temporary_bytes"] <= ROOM * temporaries * MIB, row["method"]
        assert row["cycles_per_round"] <= ROOM * cycles * 1e6, row["method"]
        assert row["copied_bytes"] < 1e-3 * row["arguments_bytes"], row["method"]
    assert len(rows) == len(BUDGETS[size])


@for_gpu
@pytest.mark.parametrize("has_triton", [True, False])
def test_a_round_of_llamagen_xl_launches_no_more_kernels(tmp_path, has_triton):
    arguments = ("--for=h100", "--size=llamagen-xl", "--programs=advance", "--methods", *KERNELS)
    rows = compiled(tmp_path, *arguments, **({} if has_triton else {"script": WITHOUT_TRITON}))
    found = {row["method"]: row["kernels_per_round"] for row in rows}
    for method, (triton, alone) in KERNELS.items():
        assert 0 < found[method] <= (triton if has_triton else alone), method
    assert has_triton or found["ar"] > KERNELS["ar"][0], "Triton's kernels are in it"


@for_gpu
def test_a_gpus_programs_compile_with_every_tiling_tried(tmp_path):
    """Nothing is tried without a GPU, but the compiler refuses an option that it does not know."""
    arguments = ("--for=h100", "--size=llamagen-xl", "--programs=start,advance", "--search-tilings")
    rows = compiled(tmp_path, *arguments, "--methods", "ar", "jacobi")
    assert [row["error"] for row in rows] == [None] * 4


@for_gpu
def test_gpus_of_every_generation_compile(tmp_path):
    """A T4 has neither Triton nor products of bfloat16."""
    rows = compiled(tmp_path, "--for=h100,t4,a100,l4,h200,b200", "--methods=ar", "--programs=advance")
    assert not [(row["device"], row["error"]) for row in rows if row["error"]]
    parameters = {row["device"]: row["arguments_bytes"] for row in rows}
    assert parameters["t4"] > 1.9 * parameters["a100"], "float32 there"
