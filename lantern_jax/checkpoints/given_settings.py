"""Settings that come with published files: ``config.json`` beside them, and a file of those that shapes do not show."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.tensors.layer_names import normalize_settings

# Emu3's config holds its vocabulary.
_MOST_BYTES = 32 * 10**6
CONFIG_PARTS = ("target", "drafter", "text_encoder")


def settings_beside(
    path: str | Path, settings: Mapping[str, Any] | None, kind: type | None = None
) -> dict[str, Any]:
    """Completes settings with those of the ``config.json`` in the tensors' folder or beside their file.

    Args:
        kind: the config class whose fields are taken from that file; None takes all its entries.
    """
    path = Path(path)
    beside = path / "config.json" if path.is_dir() else path.with_name("config.json")
    found = _read_json(beside) if beside.is_file() else {}
    return (normalize_settings(found, kind) if kind and found else found) | dict(settings or {})


def read_settings(config: str | Path | None, alone: str) -> dict[str, Mapping[str, Any]]:
    """Reads {part: settings} from a config file; one without parts holds the settings of the part ``alone``."""
    if config is None:
        return {}
    settings = _read_json(Path(config))
    if not set(settings) & set(CONFIG_PARTS):
        return {alone: settings}
    unknown = sorted(set(settings) - set(CONFIG_PARTS))
    if unknown:
        raise LanternError(
            f"{config} holds unknown parts {', '.join(unknown)}: give {' and '.join(CONFIG_PARTS)}"
        )
    for part, given in settings.items():
        if not isinstance(given, Mapping):
            raise LanternError(f"{config}: {part} is {errors.quoted(given)}: give an object of settings")
    return settings


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise LanternError(f"{path} is not a file: give a JSON file")
    content = read_json(path, _MOST_BYTES)
    if not isinstance(content, dict):
        raise LanternError(f'{path} holds no JSON object: give one, such as {{"num_heads": 20}}')
    return content
