"""The container: its files name what exists, and where docker runs it is built and answers."""

import json
import re
import shutil
import subprocess
import time
import tomllib

import httpx
import pytest

from lantern_jax.apps.commands.main import make_parser
from tests.repository.test_structure import ROOT

FILE = (ROOT / "Dockerfile").read_text("utf-8")


def words(instruction: str) -> list[str]:
    """Returns the words of the last instruction of that name, in its JSON form."""
    return json.loads(re.findall(rf"^{instruction} (\[.*\])$", FILE, re.MULTILINE)[-1])


def test_what_is_copied_and_installed_is_there():
    for line in re.findall(r"^COPY (?!--from)(.+)$", FILE, re.MULTILINE):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.findall(r'"\.\[([a-z,]+)\]"', FILE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    python = re.findall(r"^FROM python:(\d\.\d+)-slim", FILE, re.MULTILINE)
    assert len(python) == 2 and f"Programming Language :: Python :: {python[0]}" in project["classifiers"]


def test_its_command_is_one_of_ours():
    """And the services' file calls it so."""
    name, *given = [*words("ENTRYPOINT"), *words("CMD")]
    arguments = make_parser().parse_args(given)
    assert name == "lantern" and arguments.host == "0.0.0.0" and arguments.model == "demo"
    assert f"EXPOSE {arguments.port}" in FILE and f":{arguments.port}/health" in FILE
    # Neither root's rights nor any place but the cache are needed.
    assert FILE.index("USER lantern") < FILE.index("VOLUME /cache")
    service = pytest.importorskip("yaml").safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"][
        "lantern"
    ]
    make_parser().parse_args([*words("ENTRYPOINT")[1:], *service["command"]])
    assert service["ports"] == ["127.0.0.1:8000:8000"] and service["build"] == "."


def docker(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["docker", *words], cwd=ROOT, capture_output=True, text=True, timeout=1800)


@pytest.mark.slow
def test_it_is_built_and_draws():
    if shutil.which("docker") is None or docker("info").returncode:
        pytest.skip("no docker runs here")
    built = docker("build", "--quiet", "--tag", "lantern-test", ".")
    assert built.returncode == 0, built.stderr
    running = docker(
        "run", "--rm", "--detach", "--publish", "127.0.0.1:0:8000", "lantern-test"
    ).stdout.strip()
    try:
        url = f"http://{docker('port', running, '8000').stdout.split()[0]}"
        for _ in range(120):
            try:
                assert httpx.get(f"{url}/health").json()["status"] == "ok"
                break
            except httpx.TransportError:
                time.sleep(1)
        asked = {"prompt": "a lake", "seed": 7}
        assert httpx.post(f"{url}/v1/images/generations", json=asked, timeout=300).status_code == 200
    finally:
        docker("stop", running)
