"""A local server that answers as the Hugging Face hub does."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

REPO = "someone/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers the calls that ``snapshot_download`` makes, of its older and newer versions."""

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
            siblings = [{"rfilename": name} for name in self.server.files]
            return self.answer_json({"id": REPO, "sha": COMMIT, "siblings": siblings, "tags": []})
        if path.startswith("/api/") and kind == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": etag(content)}
                for name, content in self.server.files.items()
            ]
            return self.answer_json(entries)
        if file not in self.server.files:
            return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{etag(self.server.files[file])}"', "X-Repo-Commit": COMMIT}
        return self.answer(200, self.server.files[file], headers)

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


def fetched(hub: ThreadingHTTPServer) -> set[str]:
    """Returns the names of the files whose contents were asked for since the last call."""
    contents = [request for request in hub.asked if request.startswith("GET") and "/resolve/" in request]
    hub.asked.clear()
    return {request.partition("/resolve/")[2].partition("/")[2] for request in contents}


def etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextlib.contextmanager
def local_hub(files: Mapping[str, bytes], cache: Path, monkeypatch) -> Iterator[ThreadingHTTPServer]:
    """Makes a server the hub, with ``files`` in ``REPO`` and ``cache`` as its cache; ``asked`` lists its requests.

    No user is logged in.
    """
    constants = pytest.importorskip("huggingface_hub.constants")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.asked = dict(files), []
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
