"""Fetching from the hub, against a server of this machine that answers as the hub does."""

import sys

import pytest

from lantern_jax.tensors.hub import download, list_files
from tests.local_hub import COMMIT, REPO, local_hub
from tests.refused import refused

FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(100), "part/a.bin": b"abc"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with local_hub(FILES, tmp_path / "cache", monkeypatch) as server:
        yield server


def fetched(hub) -> list[str]:
    return [request for request in hub.asked if request.startswith("GET") and "resolve" in request]


def test_a_whole_repository_and_the_cache(hub):
    assert list_files(REPO) == list_files(REPO, COMMIT) == sorted(FILES)
    assert not fetched(hub), "listing fetches nothing"
    folder = download(REPO)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths} == FILES
    hub.asked.clear()
    assert download(REPO, revision=COMMIT) == folder
    assert not fetched(hub)


def test_patterns(hub):
    assert (download(REPO, ["part/*"]) / "part" / "a.bin").read_bytes() == b"abc"
    folder = download(REPO, ["*.safetensors", "config.json"])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "part"]
    with refused(f"{REPO}.*no file named .*.ckpt"):
        download(REPO, patterns=["*.ckpt"], revision=COMMIT)


@pytest.mark.parametrize(
    ("repo", "revision", "match"),
    [
        ("someone/else", None, "is not on http.*log in"),
        ("gated/model", None, "is gated: accept its terms"),
        (REPO, "dev", "has no revision dev"),
        ("a/b/c", None, "give OWNER/NAME"),
        ("broken/model", None, "cannot be"),
    ],
)
def test_refusals(hub, repo, revision, match):
    for ask in (download, list_files):
        with refused(f"{repo}.*{match}"):
            ask(repo, revision=revision)


def test_without_a_connection(hub, monkeypatch):
    folder = download(REPO, ["*.json"])
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # Between one try and the next.
    assert download(REPO, ["*.json"]) == folder
    assert list_files(REPO) == ["config.json"]
    for ask in (download, list_files):
        with refused(r"someone/other.* is not in the cache and http://127\.0\.0\.1:9 cannot be reached"):
            ask("someone/other")


def test_huggingface_hub_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"needs huggingface_hub: pip install lantern-jax\[hub\]"):
        download(REPO)
