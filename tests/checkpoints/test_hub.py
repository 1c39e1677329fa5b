"""Fetching from the hub, against a local server that answers as the hub does."""

import pytest

from lantern_jax.apps.convert.repository import list_files
from lantern_jax.tensors.hub import download
from tests.local_hub import COMMIT, REPO, fetched, local_hub
from tests.refused import refused

FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(100), "part/a.bin": b"abc"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with local_hub(FILES, tmp_path / "cache", monkeypatch) as server:
        yield server


def test_whole_repositories_patterns_and_the_cache(hub):
    assert list_files(REPO) == list_files(REPO, COMMIT) == sorted(FILES)
    assert not fetched(hub), "listing fetches nothing"
    assert (download(REPO, ["part/*"]) / "part" / "a.bin").read_bytes() == b"abc"
    assert fetched(hub) == {"part/a.bin"}
    folder = download(REPO)
    paths = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths} == FILES
    assert fetched(hub) == {"config.json", "model.safetensors"}
    assert download(REPO, revision=COMMIT) == download(REPO, ["*.safetensors", "config.json"]) == folder
    assert not fetched(hub)
    with refused(f"{REPO}.*no file named .*.ckpt"):
        download(REPO, patterns=["*.ckpt"], revision=COMMIT)


@pytest.mark.parametrize(("repo", "revision", "match"), [
    ("someone/else", None, "is not on http.*log in"),
    ("gated/model", None, "is gated: accept its terms"),
    (REPO, "dev", "has no revision dev"),
    ("a/b/c", None, "give OWNER/NAME"),
    ("broken/model", None, "cannot be"),
])  # fmt: skip
def test_refusals(hub, repo, revision, match):
    for ask in (download, list_files):
        with refused(f"{repo}.*{match}"):
            ask(repo, revision=revision)


def test_without_a_connection(hub, monkeypatch):
    folder = download(REPO, ["*.json"])
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # Between tries.
    assert download(REPO, ["*.json"]) == folder
    assert list_files(REPO) == ["config.json"]
    for ask in (download, list_files):
        with refused(r"someone/other.* is not in the cache and http://127\.0\.0\.1:9 cannot be reached"):
            ask("someone/other")
