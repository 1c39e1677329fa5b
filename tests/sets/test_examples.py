"""The cluster scripts: the shell and YAML can read them, and our parser can read the command in each."""

import math
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import types
from functools import partial
from pathlib import Path

import pytest

from lantern_jax.apps.commands.main import make_parser
from lantern_jax.apps.sets.cluster import assigned
from lantern_jax.apps.sets.reading import read_set
from lantern_jax.apps.sets.set_plan import Part
from lantern_jax.devices.partition import mesh_sizes
from tests.tiny_checkpoint import PROMPTS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number"

pytestmark = pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash")


def parsed(words: list[str]):
    """Parses a command's words with our parser."""
    assert words[:2] == ["lantern", "set"]
    return make_parser().parse_args(words[1:])


def directives(script: str) -> dict[str, str]:
    lines = re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", (EXAMPLES / script).read_text(), re.MULTILINE)
    return dict(lines)


@pytest.fixture
def run(tmp_path):
    """A function that runs a script with stubs for the programs in it; it returns what lantern was called with."""
    for name, body in {
        "lantern": 'echo "$JAX_COMPILATION_CACHE_DIR" > cache; printf "%s\\n" lantern "$@" > words',
        "srun": 'while [[ $1 == --* ]]; do shift; done; "$@"',
        "curl": f"[[ ${{!#}} == {METADATA} ]] && echo 2",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def call(script: str, **environment: str) -> list[str]:
        given = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", **environment}
        subprocess.run(["bash", str(EXAMPLES / script)], cwd=tmp_path, env=given, check=True)
        assert (tmp_path / "cache").read_text().strip() == environment.get("CACHE", str(tmp_path / "cache"))
        return (tmp_path / "words").read_text().splitlines()

    return call


@pytest.mark.parametrize("script", ["slurm_array.sh", "slurm_step.sh"])
def test_slurm(script, run):
    words = run(script, MODEL="/shared/a model", PROMPTS="p.txt", OUT="out", CACHE="/shared/cache")
    given = vars(parsed(words))
    assert [given[name] for name in ("worker", "model", "prompts")] == ["auto", "/shared/a model", "p.txt"]
    assert given["out"] == "out" and parsed(run(script)).out == "pictures"
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
    assert assigned(environment) == Part(count, count)


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
    assert assigned(environment | {"JOB_COMPLETION_INDEX": "0"}) == Part(1, count)
    assert pod["restartPolicy"] == "Never", "podFailurePolicy requires it"
    mounted, volumes = (
        {part["name"] for part in parts} for parts in (container["volumeMounts"], pod["volumes"])
    )
    assert mounted == volumes


class Ray(types.ModuleType):
    """Ray in this process: a task runs when it is waited for and fails the first time, or always if in ``broken``."""

    class RayError(Exception):
        pass

    def __init__(self, broken=()):
        super().__init__("ray")
        self.broken, self.exceptions, self.options, self.tries = broken, self, {}, []

    def init(self, address):
        self.address = address

    def remote(self, **options):
        self.options = options
        return lambda function: types.SimpleNamespace(remote=partial(partial, function))

    def wait(self, tasks):
        return tasks[-1:], tasks[:-1]

    def get(self, task):
        *_, worker = task.args
        for number in range(1 + self.options["max_retries"]):
            self.tries.append(worker.number)
            if number and worker.number not in self.broken:
                return task()
        raise self.RayError("its machine went away")


@pytest.fixture
def ray_set(monkeypatch, tmp_path, tiny_folder, tiny_loaded):
    """A function that runs the script with Ray in this process and the tiny checkpoint; it returns that Ray."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("\n".join(PROMPTS) + "\n")

    def call(*words: str, broken=()) -> Ray:
        ray = Ray(broken)
        monkeypatch.setitem(sys.modules, "ray", ray)
        named = ("--model", str(tiny_folder), "--prompts", "prompts.txt", "--out", "set")
        monkeypatch.setattr(sys, "argv", ["ray_set.py", *named, *words])
        runpy.run_path(str(EXAMPLES / "ray_set.py"), run_name="__main__")
        return ray

    return call


def test_ray_tasks_make_a_set(ray_set, capsys):
    """A part that fails every time leaves the others whole; the same command then makes the rest."""
    words = ("--parts", "3", "--shard-size", "2", "--gpus", "0.5", "--retries", "2", "--seed", "3")
    with pytest.raises(SystemExit, match=r"parts \[2\] failed, all others are written"):
        ray_set(*words, broken=(2,))
    assert "part 2 of 3 failed: its machine went away" in capsys.readouterr().out
    assert {path.stem for path in Path("set").glob("*.npz")} == {
        f"shard-0000{number}" for number in (0, 2, 3)
    }
    ray = ray_set(*words, "--address", "head:6379")
    assert f"{Path('set').absolute()} is complete: {len(PROMPTS)} pictures" in capsys.readouterr().out
    assert (ray.address, ray.options["num_gpus"], ray.options["max_calls"]) == ("head:6379", 0.5, 1)
    assert ray.options["retry_exceptions"] and sorted(ray.tries) == [1, 1, 2, 2, 3, 3]
    assert [picture.prompt for picture in read_set(Path("set"))] == list(PROMPTS)


def test_a_ray_cluster(monkeypatch):
    yaml = pytest.importorskip("yaml")
    text = (EXAMPLES / "ray_cluster.yaml").read_text()
    cluster = yaml.safe_load(text)
    assert cluster["head_node_type"] in cluster["available_node_types"]
    command = re.search(r"ray submit \S+ (examples/.*?)\n#\n", text.replace("\\\n#", ""), re.DOTALL)[1]
    script, *words = shlex.split(command)
    monkeypatch.setitem(sys.modules, "ray", Ray())
    monkeypatch.setattr(sys, "argv", [script, *words])
    given = runpy.run_path(str(ROOT / script))["parse"]()
    assert given.parts > cluster["max_workers"]
    assert cluster["available_node_types"]["gpu"]["resources"]["GPU"] >= given.gpus


def test_the_commands_of_the_page_can_be_parsed():
    """Each ``lantern set`` command that the page on scale gives in full."""
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^(?:srun )?(lantern set (?:(?!\.\.\.).)*)$", page, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        parsed(shlex.split(command, comments=True))
    for name in re.findall(r"\]\(\.\./examples/([^)]+)\)", page):
        assert (EXAMPLES / name).is_file()
    # The README mentions this one.
    scripts = {path.name for path in EXAMPLES.iterdir()} - {"minimal.py"}
    assert scripts <= set(re.findall(r"examples/([\w.]+)", page))
