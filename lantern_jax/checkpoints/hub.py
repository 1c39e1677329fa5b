"""Fetching a folder that ``lantern convert`` wrote from the Hugging Face hub."""

import glob
from pathlib import Path

from lantern_jax.checkpoints.folder import Folder
from lantern_jax.families.registry import conversion_of
from lantern_jax.io.errors import LanternError
from lantern_jax.tensors.checksums import CONFIG
from lantern_jax.tensors.hub import download


def fetch(repo: str, revision: str | None = None) -> Path:
    """Returns the local folder of a checkpoint on the hub, fetching the files that its config lists.

    Raises:
        LanternError: as ``tensors.hub.download``, or the repository holds something other than a checkpoint. For known
            published weights, the error names the command that converts them and needs no connection.
    """
    command = conversion_of(repo)
    if command is not None:
        folder = command.rpartition(" ")[2]
        raise LanternError(
            f"{repo} holds published weights, which are converted first: `{command}` (docs/models), then give {folder}"
        )
    folder = download(repo, [CONFIG], revision)
    try:
        names = Folder.of(folder).names()
    except LanternError as error:
        raise LanternError(str(error).replace(str(folder), repo)) from error
    if not all((folder / name).exists() for name in names):
        # By commit, as the branch may have moved since. Names may contain characters that are special in patterns.
        download(repo, [glob.escape(name) for name in names], folder.name)
    return folder
