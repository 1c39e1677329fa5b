"""Files on the Hugging Face hub, or on the server that the environment variable ``HF_ENDPOINT`` names.

Files in the hub's cache (``HF_HOME``) are found without a connection.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lantern_jax.io.errors import LanternError, MissingExtra, quoted, short

# A text such as "owner/name@main".
REPOSITORY = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/\w[\w.-]{0,95})(@(?P<revision>[^@\s]+))?")


def download(repo: str, patterns: Sequence[str] | None = None, revision: str | None = None) -> Path:
    """Returns the local folder that holds a repository's files; those not yet in the cache are fetched.

    Args:
        repo: OWNER/NAME of a model.
        patterns: file names to fetch, with wildcards (``*.safetensors``); None fetches all.
        revision: branch, tag or commit; None is the main branch.

    Raises:
        LanternError: there is no such repository, revision or file, it is gated, or the hub cannot be reached and the
            cache does not have it; ``MissingExtra``: the package huggingface_hub is not installed.
    """
    patterns = None if patterns is None else list(patterns)
    with explained(repo, revision) as endpoint:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import filter_repo_objects

        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, endpoint=endpoint))
    # The folder may also hold files fetched earlier.
    if not any(filter_repo_objects(files_in(folder), allow_patterns=patterns)):
        wanted = "" if patterns is None else f" named {' or '.join(patterns)}"
        raise LanternError(f"{repo} has no file{wanted}: name another repository or revision")
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def no_name(repo: str) -> LanternError:
    return LanternError(f"{quoted(repo)} is not the name of a repository: give OWNER/NAME")


@contextlib.contextmanager
def explained(repo: str, revision: str | None, deed: str = "fetched from") -> Iterator[str]:
    """Yields the hub's address to a block that contacts the hub, and turns its errors into one line each."""
    try:
        from huggingface_hub import errors
        from huggingface_hub.constants import ENDPOINT
    except ImportError as error:
        raise MissingExtra(
            f"{repo} cannot be {deed} the hub: it needs huggingface_hub: pip install huggingface_hub"
        ) from error
    endpoint = os.environ.get("HF_ENDPOINT", ENDPOINT).rstrip("/")
    try:
        yield endpoint
    except errors.HFValidationError as error:
        raise no_name(repo) from error
    # Other errors come from the disk or from the HTTP client, whose errors differ from version to version.
    except Exception as error:
        reasons = {
            errors.GatedRepoError: f"is gated: accept its terms at {endpoint}/{repo} and log in with `hf auth login`",
            errors.RepositoryNotFoundError: f"is not on {endpoint}: check the name, or log in with `hf auth login` if "
            "it is private",
            errors.RevisionNotFoundError: f"has no revision {revision}: name a branch, tag or commit",
            errors.LocalEntryNotFoundError: f"is not in the cache and {endpoint} cannot be reached: connect, or give "
            "files that you have",
            Exception: f"cannot be {deed} {endpoint} ({short(error, 160)}): try again",
        }
        why = next(text for kind, text in reasons.items() if isinstance(error, kind))
        raise LanternError(f"{repo} {why}") from error
