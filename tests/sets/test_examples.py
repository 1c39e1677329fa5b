"""The cluster scripts: the shell and YAML can read them, and our parser the command in each."""

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lantern_jax.commands.main import make_parser
from lantern_jax.devices.mesh import mesh_sizes
from lantern_jax.sets.cluster import assigned
from lantern_jax.sets.plan import Worker
from lantern_jax.sets.ray_workers import Share

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.sh"))
METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number"

pytestmark = pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash")


def parsed(words: list[str]):
    """What our parser makes of a command's words."""
    assert words[:2] == ["lantern", "set"]
    return make_parser().parse_args(words[1:])


def directives(script: str) -> dict[str, str]:
    lines = re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", (EXAMPLES / script).read_text(), re.MULTILINE)
    return dict(lines)


@pytest.fixture
def run(tmp_path):
    """A function that runs a script with stubs of the programs in it; what lantern was called with."""
    for name, body in {
        "lantern": 'echo "$JAX_COMPILATION_CACHE_DIR" > cache; printf "%s\\n" lantern "$@" > words',
        "srun": 'while [[ $1 == --* ]]; do shift; done; "$@"',
        "curl": f"[[ ${{!#}} == {METADATA} ]] && echo 2",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def call(script: str, **environment: str) -> list[str]:
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            ["bash", str(EXAMPLES / script)], cwd=tmp_path, env={"PATH": path, **environment}, check=True
        )
        assert (tmp_path / "cache").read_text().strip() == environment.get("CACHE", str(tmp_path / "cache"))
        return (tmp_path / "words").read_text().splitlines()

    return call


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_shell_reads_them(script):
    assert subprocess.run(["bash", "-n", str(EXAMPLES / script)], capture_output=True).stderr == b""


@pytest.mark.parametrize("script", ["slurm_array.sh", "slurm_step.sh"])
def test_slurm(script, run):
    arguments = parsed(
        run(script, MODEL="/shared/a model", PROMPTS="p.txt", OUT="out", CACHE="/shared/cache")
    )
    assert (arguments.worker, arguments.model, arguments.prompts, arguments.out) == (
        "auto", "/shared/a model", "p.txt", "out"
    )  # fmt: skip
    assert parsed(run(script)).out == "pictures"
    asked = directives(script)
    if script == "slurm_array.sh":
        first, last = map(int, asked["array"].split("-"))
        count = last - first + 1
        environment = {"ID": last, "MIN": first, "MAX": last, "COUNT": count, "STEP": 1}
        environment = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in environment.items()}
        environment |= {"SLURM_PROCID": "0", "SLURM_NTASKS": asked["ntasks"]}
    else:
        count = int(asked["ntasks"])
        environment = {"SLURM_PROCID": str(count - 1), "SLURM_NTASKS": str(count), "SLURM_STEP_ID": "0"}
    assert assigned(environment).worker == Worker(count, count)


def test_one_model_over_a_slurm_job(run):
    arguments = parsed(run("slurm_hosts.sh", MODEL="/shared/a model", CACHE="/shared/cache"))
    assert (arguments.hosts, arguments.model, arguments.worker) == ("auto", "/shared/a model", None)
    asked = directives("slurm_hosts.sh")
    tasks = int(asked["nodes"]) * int(asked["ntasks-per-node"]) * int(asked["gpus-per-task"])
    assert math.prod(mesh_sizes(arguments.mesh).values()) == tasks


def test_tpu_hosts(run):
    assert parsed(run("tpu_vm_set.sh", HOSTS="4")).worker == "3/4"
    assert parsed(run("tpu_vm_set.sh", HOSTS="4", HOST="0")).worker == "1/4"
    with pytest.raises(subprocess.CalledProcessError):
        run("tpu_vm_set.sh")


def test_an_indexed_job():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((EXAMPLES / "gke_indexed_job.yaml").read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["completionMode"]) == ("batch/v1", "Job", "Indexed")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert parsed(container["command"] + container["args"]).worker == "auto"
    assert all(isinstance(word, str) for word in container["command"] + container["args"])
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    count = job["spec"]["completions"]
    assert assigned(environment | {"JOB_COMPLETION_INDEX": "0"}).worker == Worker(1, count)
    assert pod["restartPolicy"] == "Never", "podFailurePolicy asks for it"
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


def test_a_ray_cluster():
    yaml = pytest.importorskip("yaml")
    text = (EXAMPLES / "ray_cluster.yaml").read_text()
    cluster = yaml.safe_load(text)
    assert cluster["head_node_type"] in cluster["available_node_types"]
    command = re.search(r'"(lantern set.*?)"', text.replace("\\\n#", ""), re.DOTALL)[1]
    arguments = parsed(shlex.split(command))
    assert arguments.ray_workers == cluster["max_workers"]
    share = Share.parse(arguments.ray_resources)
    assert cluster["available_node_types"]["gpu"]["resources"][share.kind] >= share.amount


def test_commands_of_the_page_parse():
    """Each ``lantern set`` of the page on scale that is given in full."""
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^(?:srun )?(lantern set (?:(?!\.\.\.).)*)$", page, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        parsed(shlex.split(command, comments=True))
    for name in re.findall(r"\]\(\.\./examples/([^)]+)\)", page):
        assert (EXAMPLES / name).is_file()
    # The README speaks of what is Python.
    scripts = {path.name for path in EXAMPLES.iterdir() if path.suffix != ".py"}
    assert scripts <= set(re.findall(r"examples/([\w.]+)", page))
