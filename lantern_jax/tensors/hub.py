"""Files of the Hugging Face hub, or of the server that the environment variable ``HF_ENDPOINT`` names.

What is in the hub's cache (``HF_HOME``) is found without a connection.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from lantern_jax.io.errors import LanternError, MissingExtra, quoted


def list_files(repo: str, revision: str | None = None) -> list[str]:
    """The names of a repository's files; without a connection, of those in the cache.

    Args:
        repo: OWNER/NAME of a model.
        revision: branch, tag or commit; None is the main branch.

    Raises:
        ValueError, ImportError: as ``download``.
    """
    with _explained(repo, revision) as endpoint:
        from huggingface_hub import HfApi, errors, snapshot_download

        try:
            return sorted(HfApi(endpoint=endpoint).list_repo_files(repo, revision=revision))
        except (errors.HfHubHTTPError, errors.HFValidationError):
            raise
        # No answer: an error of the HTTP client, which differs from version to version.
        except Exception:
            # No pattern: newer versions refuse a folder that lacks files that are asked for.
            cached = snapshot_download(repo, revision=revision, allow_patterns=[], local_files_only=True)
            return _files(Path(cached))


def download(repo: str, patterns: Sequence[str] | None = None, revision: str | None = None) -> Path:
    """The local folder that holds a repository's files; those not yet in the cache are fetched.

    Args:
        repo: OWNER/NAME of a model.
        patterns: file names to fetch, with wildcards (``*.safetensors``); None fetches all.
        revision: branch, tag or commit; None is the main branch.

    Raises:
        ValueError: one line: there is no such repository, revision or file, it is gated, or the hub cannot be reached
            and the cache does not have it.
        ImportError: the package huggingface_hub is not installed.
    """
    patterns = None if patterns is None else list(patterns)
    with _explained(repo, revision) as endpoint:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import filter_repo_objects

        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, endpoint=endpoint))
    # The folder may hold more, fetched before.
    if not any(filter_repo_objects(_files(folder), allow_patterns=patterns)):
        wanted = "" if patterns is None else f" named {' or '.join(patterns)}"
        raise LanternError(f"{repo} has no file{wanted}: name another repository or revision")
    return folder


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def _explained(repo: str, revision: str | None) -> Iterator[str]:
    """The hub's address, for a block that asks the hub; its errors become one line each."""
    try:
        from huggingface_hub import errors
        from huggingface_hub.constants import ENDPOINT
    except ImportError as error:
        raise MissingExtra(f"fetching {repo} needs huggingface_hub: pip install lantern-jax[hub]") from error
    endpoint = os.environ.get("HF_ENDPOINT", ENDPOINT).rstrip("/")
    try:
        yield endpoint
    except errors.HFValidationError as error:
        raise LanternError(f"{quoted(repo)} is not the name of a repository: give OWNER/NAME") from error
    except errors.GatedRepoError as error:
        advice = f"accept its terms at {endpoint}/{repo} and log in with `hf auth login`"
        raise LanternError(f"{repo} is gated: {advice}") from error
    except errors.RepositoryNotFoundError as error:
        advice = "check the name, or log in with `hf auth login` if it is private"
        raise LanternError(f"{repo} is not on {endpoint}: {advice}") from error
    except errors.RevisionNotFoundError as error:
        raise LanternError(f"{repo} has no revision {revision}: name a branch, tag or commit") from error
    except errors.LocalEntryNotFoundError as error:
        advice = "connect, or give files that you have"
        raise LanternError(
            f"{repo} is not in the cache and {endpoint} cannot be reached: {advice}"
        ) from error
    # What else fails is an error of the HTTP client, which differs from version to version, or of the disk.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LanternError(
            f"{repo} cannot be fetched from {endpoint} ({lines[0][:160]}): try again"
        ) from error
