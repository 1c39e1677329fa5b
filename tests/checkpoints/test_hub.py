"""Fetching from the hub, against a server of this machine that answers as the hub does."""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from lantern_jax.checkpoints.hub import download

REPO = "someone/model"
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(100), "part/a.bin": b"abc"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """The calls that ``snapshot_download`` makes, of its older and newer versions."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if "gated/model" in path:
            return self.answer(403, headers={"X-Error-Code": "GatedRepo"})
        if "broken/model" in path:
            return self.answer(400)
        if REPO not in path:
            return self.answer(401, headers={"X-Error-Code": "RepoNotFound"})
        revision, _, file = path.partition("/resolve/" if "/resolve/" in path else "/model/")[2].partition(
            "/"
        )
        if path.startswith("/api/"):
            kind, revision = revision, file
        if revision not in ("main", COMMIT):
            return self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
        if path.startswith("/api/") and kind == "revision":
            siblings = [{"rfilename": name} for name in FILES]
            return self.answer_json({"id": REPO, "sha": COMMIT, "siblings": siblings, "tags": []})
        if path.startswith("/api/") and kind == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": etag(content)}
                for name, content in FILES.items()
            ]
            return self.answer_json(entries)
        if file not in FILES:
            return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{etag(FILES[file])}"', "X-Repo-Commit": COMMIT}
        return self.answer(200, FILES[file], headers)

    do_HEAD = do_GET

    def answer_json(self, content):
        self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def answer(self, status, content=b"", headers=()):
        self.send_response(status)
        for name, value in {**dict(headers), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        """Keeps quiet."""


def etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server that is the hub for this test, and a cache of its own; the list of what was asked of it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def refused(match, repo, **options):
    with pytest.raises(ValueError, match=match) as error:
        download(repo, **options)
    assert "\n" not in str(error.value) and repo in str(error.value)


def test_a_whole_repository_and_the_cache(hub):
    folder = download(REPO)
    read = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    assert read == FILES
    hub.asked.clear()
    assert download(REPO, revision=COMMIT) == folder
    assert not [request for request in hub.asked if request.startswith("GET") and "resolve" in request]


def test_patterns(hub):
    assert (download(REPO, ["part/*"]) / "part" / "a.bin").read_bytes() == b"abc"
    folder = download(REPO, ["*.safetensors", "config.json"])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "part"]
    refused("no file named .*.ckpt", REPO, patterns=["*.ckpt"], revision=COMMIT)


@pytest.mark.parametrize(
    ("repo", "options", "match"),
    [
        ("someone/else", {}, "is not on http.*log in"),
        ("gated/model", {}, "is gated: accept its terms"),
        (REPO, {"revision": "dev"}, "has no revision dev"),
        ("a/b/c", {}, "give OWNER/NAME"),
        ("broken/model", {}, "cannot be"),
    ],
)
def test_refusals(hub, repo, options, match):
    refused(match, repo, **options)


def test_without_a_connection(hub, monkeypatch):
    folder = download(REPO)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert download(REPO) == folder
    refused("is not in the cache and http://127.0.0.1:9 cannot be reached", "someone/other")


def test_huggingface_hub_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"needs huggingface_hub: pip install lantern-jax\[hub\]"):
        download(REPO)
