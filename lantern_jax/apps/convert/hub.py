"""What is on the Hugging Face hub, and uploading a checkpoint to it, with a model card."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lantern_jax.checkpoints.checkpoint import PARTS, Checkpoint, describe
from lantern_jax.checkpoints.folder import Folder
from lantern_jax.families.registry import FAMILIES, family_name
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file
from lantern_jax.tensors.checksums import CONFIG
from lantern_jax.tensors.hub import REPOSITORY, explained, files_in, no_name

CARD = "README.md"


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


def push(checkpoint: Checkpoint, repo: str) -> None:
    """Writes a model card beside a checkpoint that was read from a folder, and uploads both.

    Raises:
        LanternError: they cannot be uploaded; the folder is kept.
    """
    directory = checkpoint.directory
    write_file(directory / CARD, model_card(checkpoint, repo))
    names = [CARD, CONFIG, *Folder.of(directory).names()]
    try:
        upload(directory, names, repo, f"{checkpoint.model}, converted by lantern_jax")
    except LanternError as error:
        raise LanternError(f"{error}; {directory} is written: `hf upload {repo} {directory}`") from error


def model_card(checkpoint: Checkpoint, repo: str) -> str:
    """Returns the README.md of a checkpoint's repository: what it is and how to load it; the licence is left open."""
    about, family = describe(checkpoint), family_name(checkpoint.target_config)
    classes = FAMILIES[family].classes(checkpoint.target_config)
    by_class = bool(classes) and checkpoint.vocabulary is None
    prompt = "0" if by_class else '"a lake at dawn"'
    parts = {part: about[part] for part in PARTS if part in about}
    parts |= {f"{kind} drafter": part for kind, part in about["drafters"].items()}
    rows = "\n".join(f"| {part} | {_count(made)} |" for part, made in parts.items())
    size = about["picture_size"]
    makes = f"pictures of {size} pixels" if size else "tokens, without a decoder to draw them"
    return f"""---
library_name: lantern_jax
pipeline_tag: {"unconditional-image-generation" if by_class else "text-to-image"}
tags:
- jax
- speculative-decoding
- autoregressive
- image-generation
- {family}
# The licence of the base model holds here too. Name it:
# license:
---

# {checkpoint.model} for lantern_jax

The weights of {checkpoint.model} (family {family}, {_count(about["target"])} parameters), converted for
`lantern_jax`, which decodes visual autoregressive models speculatively in JAX. It makes {makes} from
{"class numbers" if by_class else "text"}, {about["tokens"]} tokens each.

| part | parameters |
| --- | --- |
{rows}

```python
import lantern_jax

pipeline = lantern_jax.load("{repo}")
generation = pipeline.generate({prompt}, seed=0)
```

On the command line: `lantern generate {prompt} --model {repo}`.
"""


def _count(part: dict[str, Any]) -> str:
    count = part["parameters"]
    unit, name = next(
        pair for pair in ((10**9, "B"), (10**6, "M"), (10**3, "k"), (1, "")) if count >= pair[0]
    )
    return f"{count / unit:.3g}{name}"


def check_upload(repo: str) -> None:
    """Raises LanternError unless ``upload`` can begin: it needs a repository's name, the package and a token."""
    found = REPOSITORY.fullmatch(repo)
    if found is None or found["revision"]:
        raise no_name(repo)
    with explained(repo, None, "uploaded to"):
        from huggingface_hub import get_token
    if not get_token():
        raise LanternError(
            f"{repo} accepts files only from its owner: log in with `hf auth login` or set HF_TOKEN"
        )


def upload(folder: Path, names: Iterable[str], repo: str, message: str) -> None:
    """Creates a repository unless it exists, and uploads files of a folder to it in one commit.

    Raises:
        LanternError: one line: the files cannot be uploaded.
    """
    with explained(repo, None, "uploaded to") as endpoint:
        from huggingface_hub import CommitOperationAdd, HfApi

        api = HfApi(endpoint=endpoint)
        api.create_repo(repo, exist_ok=True)
        files = [CommitOperationAdd(name, folder / name) for name in names]
        api.create_commit(repo, files, commit_message=message)
