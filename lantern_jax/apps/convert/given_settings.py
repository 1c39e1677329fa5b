"""Settings that come with published files: ``config.json`` beside them, and a file of those that shapes do not show."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lantern_jax.families.config_files import Dialect, normalize_settings
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import parse_json, read_json

# Emu3's config holds its vocabulary.
_MOST_BYTES = 32 * 10**6
CONFIG_PARTS = ("target", "drafter", "text_encoder")


def settings_for(
    dialect: Dialect,
    path: str | Path | None,
    given: Mapping[str, Any] | None,
    more: tuple[Mapping[str, Any], str] = ({}, ""),
) -> tuple[dict[str, Any], str]:
    """Joins settings; returns them, and where the grid is from.

    Args:
        path: tensors, whose ``config.json`` is in their folder or beside their file; None to look for none.
        given: settings that count more than that file's.
        more: settings that count less, and where the grid among them is from (``Published.more_settings``).
    """
    beside: dict[str, Any] = {}
    if path is not None:
        file = (Path(path) if Path(path).is_dir() else Path(path).parent) / "config.json"
        try:
            beside = normalize_settings(_read_json(file), dialect) if file.is_file() else {}
        except LanternError as error:
            raise LanternError(f"{file}: {error}") from None
    own = normalize_settings(given or {}, dialect)
    source = "from --config" if "grid" in own else "from config.json" if "grid" in beside else more[1]
    return {**more[0], **beside, **own}, source or "as published"


def read_settings(config: str | Path | None, alone: str) -> dict[str, Mapping[str, Any]]:
    """Reads {part: settings} from a config, a file or JSON; one without parts has those of the part ``alone``."""
    if config is None:
        return {}
    settings = parse_json(config, "--config") if str(config).startswith("{") else _read_json(Path(config))
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
