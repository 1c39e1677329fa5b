"""A checkpoint's folder, opened: what its ``config.json`` says, and the files that it lists.

The config lists the files by their names in the checkpoint: "files" holds the size and the SHA-256 of each. Sizes are
checked whenever a checkpoint is opened, contents only by ``store.verify``.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.tensors.checksums import CONFIG, MOST_BYTES, file_checksum
from lantern_jax.tensors.safetensors_files import INDEX_SUFFIX, open_safetensors, open_sharded
from lantern_jax.tensors.stored_tensor import StoredTensor

FORMAT = "lantern_jax checkpoint"
FILES, SHARED = "files", "shared"
VERSION = 4
# Names that a checkpoint may list: none leads out of its folder.
_NAME = re.compile(
    r"(model|text_encoder)(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?|text/[^/\\\0]{1,255}"
)


def is_ours(directory: Path) -> bool:
    """Tells whether a folder holds a checkpoint of this library, of any version; others' models have a config too."""
    try:
        config = read_json(directory / CONFIG, MOST_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def described(path: Path) -> dict[str, Any]:
    """Returns what a config says about a file."""
    return {"bytes": path.stat().st_size, "sha256": file_checksum(path)}


@dataclass(frozen=True)
class Folder:
    """The folder of a checkpoint.

    Attributes:
        path: its path.
        config: the content of its config, of this format and version.
    """

    path: Path
    config: Mapping[str, Any]

    @classmethod
    def of(cls, directory: str | Path) -> "Folder":
        """Opens a folder and reads its config; the other files need not be there yet.

        Raises:
            LanternError: not a folder, not a checkpoint, one of another version, or one with a damaged config.
        """
        path = Path(directory)
        if not path.is_dir():
            raise LanternError(f"{path} is not a directory: give one that `lantern convert` wrote")
        if not (path / CONFIG).is_file():
            raise LanternError(f"{path} is not a checkpoint, it has no {CONFIG}: see `lantern convert`")
        try:
            config = read_json(path / CONFIG, MOST_BYTES)
        except ValueError as error:
            raise errors.damaged(path / CONFIG, str(error).removeprefix(f"{path / CONFIG} ")) from error
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise LanternError(
                f"{path / CONFIG} is not that of a lantern_jax checkpoint: see `lantern convert`"
            )
        if config.get("version") != VERSION:
            raise LanternError(
                f"{path / CONFIG} has format version {errors.printable(config.get('version'), 40)}, expected "
                f"{VERSION}: convert it again"
            )
        files = config.get(FILES)
        if not isinstance(files, Mapping) or not files or not all(map(_NAME.fullmatch, files)):
            raise errors.damaged(path / CONFIG, f'its "{FILES}" are not those of a checkpoint')
        return cls(path, config)

    def names(self, start: str = "") -> list[str]:
        """Returns the names of the files that begin with ``start``."""
        return [name for name in self.config[FILES] if name.startswith(start)]

    def damaged(self, why: str = "", name: str = CONFIG) -> LanternError:
        """Returns the error for a file (or, if ``name`` is "", the folder) that is not what a checkpoint holds."""
        return errors.damaged(self.path / name, why)

    @contextlib.contextmanager
    def fitting(self, part: str) -> Iterator[None]:
        """Names the part in errors of a block that reads what the config says about it."""
        try:
            yield
        # The file may hold a value of any type where a config needs a number.
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            why = errors.printable(f"{part}: {error}", 1000)
            raise LanternError(f"{self.path / CONFIG}: {why}; convert the checkpoint again") from error

    def verify(self) -> int:
        """Returns how many bytes the files have; raises LanternError unless all are as they were written."""
        self._check_sizes()
        for name, wanted in self.config[FILES].items():
            if file_checksum(self.path / name) != wanted["sha256"]:
                raise self.damaged("it is not as it was written: another checksum", name)
        return sum(wanted["bytes"] for wanted in self.config[FILES].values())

    def arrays(self, stem: str) -> dict[str, StoredTensor]:
        """Opens the files whose names begin with ``stem``, if any, as {name: array, not yet read}.

        Raises:
            LanternError: any file of the checkpoint is missing or has the wrong size, or those of the stem are damaged
                or do not belong together.
        """
        self._check_sizes()
        names = self.names(stem)
        if not names:
            return {}
        index = [name for name in names if name.endswith(INDEX_SUFFIX)]
        tensors = open_sharded(self.path / index[0]) if index else open_safetensors(self.path / names[0])
        return tensors | self._shared(tensors)

    def _shared(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Returns the arrays that are stored under the name of another, by their own names."""
        shared = self.config.get(SHARED, {})
        with self.fitting(SHARED):
            # If the other is absent, the array is found missing under its own name.
            return {name: tensors[other] for name, other in shared.items() if other in tensors}

    def _check_sizes(self) -> None:
        wrong = []
        with self.fitting(FILES):
            sizes = {name: wanted["bytes"] for name, wanted in self.config[FILES].items()}
        for name, size in sizes.items():
            path = self.path / name
            # ``Path.is_file`` raises for a name that is too long.
            if not os.path.isfile(path):
                wrong.append(f"{name} is missing")
            elif path.stat().st_size != size:
                wrong.append(f"{name} has {path.stat().st_size} bytes, expected {errors.short(repr(size))}")
        if wrong:
            raise self.damaged("; ".join(wrong), "")
