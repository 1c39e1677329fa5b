"""``lantern convert --from-hub``, against a local server that answers as the hub does."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from lantern_jax.apps.commands.main import main
from lantern_jax.checkpoints.store import load
from tests.command import assert_refused, files
from tests.fixtures import published_layouts as layouts
from tests.local_hub import REPO, fetched, local_hub

pytest.importorskip("torch")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "repository"
    layouts.write_t5(folder, layouts.TINY_T5, shard_bytes=1 << 14)
    pickled = layouts.write_t5(folder.with_name("pickled"), layouts.TINY_T5, kind="bin")
    shutil.copy(pickled / "pytorch_model.bin", folder)
    layouts.write_t5_tokenizer(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text("{}")
    layouts.write_drafter(folder / "drafter", layouts.drafter_of(layouts.TINY_CAPTION))
    layouts.write_llamagen(folder / "gpts" / "small.pt", layouts.TINY_CAPTION)
    layouts.write_llamagen(folder / "gpts" / "other.pt", layouts.TINY_CLASS)
    (folder / "README.md").write_text("a model")
    return folder


@pytest.fixture
def hub(repository, tmp_path, monkeypatch):
    """The repository on a hub; the current folder has the file that the repository lacks."""
    paths = {name: repository / name for name in files(repository)}
    contents = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("sizes.json").write_text('{"num_heads": 2, "grid": 4}')
    with local_hub(contents, tmp_path / "cache", monkeypatch) as server:
        yield server


GPT = ["--gpt", "gpts/small.pt", "--config", "sizes.json"]


def test_only_what_is_needed_is_fetched(hub, repository, capsys):
    assert main(["convert", "llamagen", "--from-hub", REPO, *GPT, "--out", "bare"]) == 0
    assert fetched(hub) == {"gpts/small.pt"}
    drafter = ["--checkpoint", "bare", "--drafter", "drafter", "--out", "drafted"]
    assert main(["convert", "drafter", "--from-hub", REPO, *drafter]) == 0
    assert fetched(hub) == {"drafter/config.json", "drafter/pytorch_model.bin"}
    # The whole repository, but of its two formats only the one without pickles.
    t5 = ["--checkpoint", "drafted", "--t5-tokenizer", "tokenizer.json", "--out", "full"]
    assert main(["convert", "t5", "--from-hub", REPO, *t5]) == 0
    names = fetched(hub)
    shards = {path.name for path in repository.glob("*.safetensors")}
    assert len(shards) > 1
    assert names == shards | {
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }

    whole = ["--drafter", "drafter", "--t5", ".", "--t5-tokenizer", "tokenizer.json"]
    assert main(["convert", "llamagen", "--from-hub", REPO, *GPT, *whole, "--out", "at-once"]) == 0
    assert not fetched(hub)
    left, right = (load(folder, np.float32) for folder in ("full", "at-once"))
    for part in ("target", "text_encoder"):
        assert getattr(left, f"{part}_config") == getattr(right, f"{part}_config") is not None
    assert left.drafters["eagle"][0] == right.drafters["eagle"][0]


@pytest.mark.parametrize(("options", "message"), [
    (["llamagen", *GPT[2:], "--gpt", "gpts"], "gpts holds 2 tensor files (other.pt, small.pt): name one"),
    (["llamagen", *GPT[2:], "--gpt", "missing.pt"], "missing.pt: neither on this machine nor in someone/model"),
    (["llamagen", *GPT[:2], "--config", "missing.json"], "--config missing.json is not a file"),
    (["anole"], "--text-tokenizer is missing"),
    (["t5", "--checkpoint", "missing", "--t5-tokenizer", "tokenizer.json"], "--checkpoint missing is not"),
])  # fmt: skip
def test_wrong_options_are_refused_before_anything_is_fetched(options, message, hub, capsys):
    line = assert_refused(["convert", *options, "--from-hub", REPO, "--out", "new"], capsys)
    assert message in line
    assert not fetched(hub)


def test_a_folder_that_is_not_a_checkpoint_is_refused_before_anything_is_fetched(hub, capsys):
    Path("pictures").mkdir()
    options = ["--from-hub", REPO, *GPT, "--out", "pictures", "--overwrite"]
    assert "pictures exists and is not a checkpoint" in assert_refused(
        ["convert", "llamagen", *options], capsys
    )
    assert not fetched(hub)


def test_hub_options_that_fetch_nothing_are_refused(hub, repository, capsys):
    gpt = str(repository / "gpts" / "small.pt")
    options = ["--gpt", gpt, "--config", "sizes.json", "--from-hub", REPO, "--out", "new"]
    assert "leave it out" in assert_refused(["convert", "llamagen", *options], capsys)
    options = ["--gpt", gpt, "--revision", "main", "--out", "new"]
    assert "give --from-hub too" in assert_refused(["convert", "llamagen", *options], capsys)
    assert not hub.asked
