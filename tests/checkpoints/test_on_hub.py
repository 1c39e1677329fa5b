"""Checkpoints on the hub, against a local server that answers as the hub does: loaded by name."""

from pathlib import Path

import numpy as np
import pytest

import lantern_jax
from lantern_jax.apps.commands.main import main, make_parser
from lantern_jax.checkpoints.store import load, model_directory, save, verify
from lantern_jax.io.errors import LanternError
from tests.command import assert_refused
from tests.local_hub import COMMIT, REPO, fetched, local_hub
from tests.refused import refused
from tests.tiny_checkpoint import tiny_checkpoint


@pytest.fixture
def hub(tiny_folder, tmp_path, monkeypatch):
    """A hub with a checkpoint among other files; the current folder is empty."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    contents = {path.name: path.read_bytes() for path in tiny_folder.iterdir()}
    contents |= {"huge.bin": bytes(9), "README.md": b"a card"}
    with local_hub(contents, tmp_path / "cache", monkeypatch) as server:
        yield server


def test_a_checkpoint_is_loaded_by_its_name(hub):
    pipeline = lantern_jax.load(REPO)
    assert fetched(hub) == {"config.json", "model.safetensors"}
    read = load(pipeline.checkpoint.directory, np.float32)
    np.testing.assert_array_equal(read.codebook.codes, tiny_checkpoint().codebook.codes)
    assert model_directory(f"{REPO}@main") == model_directory(f"{REPO}@{COMMIT}") == read.directory
    assert main(["info", REPO, "--verify"]) == 0
    assert not fetched(hub)


def test_a_local_folder_of_that_name_wins(hub):
    save(REPO, tiny_checkpoint())
    assert lantern_jax.load(REPO).checkpoint.directory == Path(REPO)
    # Paths are never looked for anywhere else.
    for path in (Path("some/one"), "./some/one", "some/one/more", "some", "/some/one"):
        assert model_directory(path) == Path(path)
    assert not hub.asked


@pytest.mark.parametrize(("config", "why"), [
    (b'{"model_type": "llama"}', f"{REPO}/config.json is not that of a lantern_jax checkpoint"),
    (b"[" * 99, "is damaged"),
    (None, r"has no file named config\.json"),
])  # fmt: skip
def test_names_without_a_checkpoint_are_refused_in_one_line(config, why, hub, capsys):
    line = assert_refused(["generate", "a lake", "--model", "someone/else"], capsys)
    assert "someone/else is not a directory here, and someone/else is not on http" in line
    hub.files |= {"config.json": config}
    if config is None:
        del hub.files["config.json"]
    with refused(why):
        lantern_jax.load(REPO)
    assert fetched(hub) <= {"config.json"}


COMMANDS = sorted(
    line
    for page in (Path(__file__).parents[2] / "docs" / "models").glob("*.md")
    for line in page.read_text("utf-8").splitlines()
    if line.startswith("lantern convert") and "--from-hub" in line and "--checkpoint" not in line
)


@pytest.mark.parametrize("command", [one for one in COMMANDS if "grid-24" not in one])
def test_loading_published_weights_names_the_command_that_converts_them(command, hub):
    """It is the command on the model's page; nothing is asked of the hub."""
    repository, folder = command.split("--from-hub ")[1].split()[0], command.split()[-1]
    for model in (repository, f"{repository.lower()}@main"):
        with pytest.raises(LanternError) as error:
            lantern_jax.load(model)
        assert f"`{command}` (docs/models), then give {folder}" in str(error.value)
    make_parser().parse_args(command.split()[1:])
    assert not hub.asked


def test_the_same_weights_in_other_repositories_are_recognised_too():
    for repository, word in (
        ("deepseek-ai/Janus-Pro-1B", "--out janus-1b"), ("GAIR/Anole-7b-v0.1", "leloy/Anole"),
        ("BAAI/Emu3-Gen", "Emu3-Gen-hf"), ("jadohu/LlamaGen-T2I", "peizesun"),
        ("Alpha-VLLM/Lumina-mGPT-2.0-Omni", "--from-hub Alpha-VLLM/Lumina-mGPT-2.0-Omni .* then give lumina2-omni"),
    ):  # fmt: skip
        with refused(word):
            lantern_jax.load(repository)


def test_bytes_other_than_those_uploaded_are_refused(hub):
    name = "model.safetensors"
    hub.files[name] = hub.files[name][:-1] + bytes([hub.files[name][-1] ^ 1])
    folder = lantern_jax.load(REPO).checkpoint.directory
    with pytest.raises(LanternError, match="another checksum"):
        verify(folder)
    hub.files[name] = bytes(9)
    (folder / name).unlink()
    with pytest.raises(LanternError, match=r"model.safetensors has 9 bytes, expected"):
        lantern_jax.load(REPO)
