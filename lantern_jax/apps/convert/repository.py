"""A repository of published files on the Hugging Face hub."""

from pathlib import Path

from lantern_jax.tensors.hub import explained, files_in


def list_files(repo: str, revision: str | None = None) -> list[str]:
    """Returns the names of a repository's files; without a connection, of those in the cache.

    Args:
        repo: OWNER/NAME of a model.
        revision: branch, tag or commit; None is the main branch.

    Raises:
        LanternError: as ``tensors.hub.download``.
    """
    with explained(repo, revision) as endpoint:
        from huggingface_hub import HfApi, errors, snapshot_download

        try:
            return sorted(HfApi(endpoint=endpoint).list_repo_files(repo, revision=revision))
        except (errors.HfHubHTTPError, errors.HFValidationError):
            raise
        # No answer: the HTTP client's error, which differs from version to version.
        except Exception:
            # No pattern: newer versions refuse a folder that lacks requested files.
            cached = snapshot_download(repo, revision=revision, allow_patterns=[], local_files_only=True)
            return files_in(Path(cached))
