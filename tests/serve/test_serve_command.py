"""``lantern serve``: what it refuses before anything is computed, and a whole run of it."""

import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import lantern_jax.devices.compilation
import lantern_jax.pipeline.pipeline
from lantern_jax.apps.commands.main import main
from lantern_jax.apps.serve.server import Server
from tests.command import assert_refused, must_not_run
from tests.quick_compilation import QUICK_COMPILATION
from tests.tiny_checkpoint import pipeline_on

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", must_not_run)
    monkeypatch.delenv("LANTERN_TOKEN", raising=False)


@pytest.mark.parametrize(("flags", "words"), [
    ("--port 70000", "--port 70000 is not valid"),
    *((f"--{name} 0", f"--{name} 0 is not valid") for name in ("batch", "queue", "connections", "programs")),
    ("--most -1", "--most -1 is not valid"), ("--seconds nan", "--seconds nan is not valid"),
    ("--allowed-origin example.org", "'example.org' is no origin"),
    ("--allowed-origin https://example.org/page", "give a scheme and a name"),
    ("--allowed-host 'pictures.example.org:8443'", "is no name of a server"),
    ("--mesh data=x", "mesh 'data=x' is not valid"), ("--token-file missing", "missing"),
    ("--token-file empty", "empty holds no token"), ("--host 'no such host'", "cannot bind to no such host"),
    ("--host ..", "cannot bind to ..:8000 (not a name)"), ("--hosts auto", "--hosts"), ("", "pip install starlette"),
])  # fmt: skip
def test_wrong_options_are_refused_before_anything_is_computed(flags, words, monkeypatch, capsys):
    Path("empty").write_text("\n")
    if not flags:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert words in assert_refused(["serve", *shlex.split(flags)], capsys)


def test_a_port_in_use_is_refused(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot bind to 127.0.0.1:{port}" in assert_refused(["serve", "--port", port], capsys)


@pytest.fixture
def loggers():
    names = {name: logging.getLogger(name) for name in ("lantern_jax", "uvicorn", "asyncio")}
    before = {name: (one.handlers, one.propagate, one.level) for name, one in names.items()}
    yield names
    for name, one in names.items():
        one.handlers, one.propagate, one.level = before[name]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_runs_a_server_until_an_interrupt(monkeypatch, capsys, loggers, host):
    served = []

    def run(self, sockets):
        served.append((self.config.app, sockets[0].getsockname()))
        logging.getLogger("lantern_jax.apps.serve").warning("one\nline")
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "run", run)
    monkeypatch.setattr(lantern_jax.devices.compilation, "keep_compiled_programs", lambda: None)
    monkeypatch.setattr(lantern_jax.pipeline.pipeline, "load", lambda *given, **named: pipeline_on(1))
    named = ["--served-model-name", "pictures"]
    # As people write them, but browsers do not.
    named += ["--allowed-origin", "https://Example.org:443", "--allowed-origin", "HTTP://example.org:8080"]
    named += ["--allowed-host", "Pictures.example.org", "--allowed-host", "[FE80::1]"]
    named += ["--host", host]
    assert main(["serve", "--model", "demo", "--port", "0", "--queue", "3", *named]) == 0
    ((app, (address, port)),) = served
    said = capsys.readouterr()
    assert address == host and f"serving pictures at http://{host}:{port}/, Ctrl-C ends it" in said.out
    assert r"warning: one\nline" in said.err and said.err.endswith("lantern: stopped\n")
    assert ("give --token-file" in said.err) == (host == "0.0.0.0")
    access = app.user_middleware[1].kwargs["access"]
    assert access.origins == {"https://example.org", "http://example.org:8080"}
    assert {"pictures.example.org", "fe80::1"} <= access.hosts
    limits = app.state.worker.limits
    assert (limits.queue, limits.pictures) == (3, 3)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_process_serves_until_it_is_interrupted(tmp_path, tiny_folder):
    (tmp_path / "token").write_text("secret\n")
    flags = f"--model {tiny_folder} --port 0 --batch 1 --token-file token".split()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(QUICK_COMPILATION),
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "lantern_jax", "serve", *flags],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            url = re.search(r"serving tiny at (http://127\.0\.0\.1:\d+)/", process.stdout.readline())[1]
            asked, path = {"prompt": "a lake", "seed": 1, "method": "ar"}, f"{url}/v1/images/generations"
            assert httpx.post(path, json=asked).status_code == 401
            answer = httpx.post(path, json=asked, headers={"Authorization": "Bearer secret"}, timeout=60)
            assert answer.status_code == 200 and answer.json()["data"][0]["lantern"]["rounds"] == 15
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0 and errors.endswith("lantern: stopped\n")
    assert re.findall(r"POST \S+ (\d+) in", errors) == ["401", "200"]
