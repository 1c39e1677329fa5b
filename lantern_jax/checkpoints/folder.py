"""A checkpoint's folder, opened: what its ``config.json`` says, and the files that it lists.

The config lists the files by their names in the checkpoint: "files" holds their sizes, "checksums" eight hexadecimal
digits for each (``tensors.checksums``). They show that files are as they were written, not who wrote them.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from lantern_jax.checkpoints.checkpoint import PARTS
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.tensors import checksums
from lantern_jax.tensors.checksums import CONFIG, FILES, SUMS
from lantern_jax.tensors.safetensors_files import INDEX_SUFFIX, open_safetensors, open_sharded
from lantern_jax.tensors.stored_tensor import StoredTensor

FORMAT = "lantern_jax checkpoint"
SHARED = "shared"
VERSION = 3
_ENTRIES = {
    "format", "version", "model", "family", *PARTS, "drafters", "codebook", "vocabulary", "defaults", "metadata",
    FILES, SUMS, SHARED,
}  # fmt: skip
# Names that a checkpoint may list: none leads out of its folder.
_NAME = re.compile(
    r"(model|text_encoder)(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?|text/[^/\\\0]{1,255}"
)


def is_ours(directory: Path) -> bool:
    """Tells whether a folder holds a checkpoint of this library, of any version; others' models have a config too."""
    try:
        config = read_json(directory / CONFIG, checksums.MOST_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


@dataclass(frozen=True)
class Folder:
    """The folder of a checkpoint.

    Attributes:
        path: its path.
        config: the content of its config, checked: its entries are of the right kinds and as they were written.
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
            config = read_json(path / CONFIG, checksums.MOST_BYTES)
        except ValueError as error:
            raise errors.damaged(path / CONFIG, str(error).removeprefix(f"{path / CONFIG} ")) from error
        folder = cls(path, config)
        folder._check_format()
        folder._check_entries()
        return folder

    @property
    def sums(self) -> Mapping[str, str]:
        """The checksum of every file, by its name."""
        return self.config[SUMS]

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

    def check(self, names: Iterable[str], again: bool = False) -> None:
        """Raises LanternError unless files are as they were written.

        Args:
            again: also those that this process has verified, otherwise skipped while size and time are unchanged.
        """
        for name in names:
            checksums.check_file(self.path / name, self.sums[name], again)

    def arrays(self, stem: str) -> dict[str, StoredTensor]:
        """Opens the files whose names begin with ``stem``, if any, as {name: array, not yet read}.

        Raises:
            LanternError: any file of the checkpoint is missing or has the wrong size, or those of the stem are damaged,
                do not belong together, or are laid out differently from this library's.
        """
        self._check_sizes()
        names = self.names(stem)
        if not names:
            return {}
        name = min(names, key=lambda name: (not name.endswith(INDEX_SUFFIX), name))
        self.check([name] if name.endswith(INDEX_SUFFIX) else [])
        tensors = (open_sharded if name.endswith(INDEX_SUFFIX) else open_safetensors)(self.path / name)
        used = {tensor.place[0].name for tensor in tensors.values()}
        if {*used, name} != set(names):
            raise self.damaged(f"{CONFIG} lists {errors.listed(sorted(names))}, and others are used", "")
        for name, tensor in tensors.items():
            whole = tensor.place[1] % tensor.dtype.itemsize == 0
            if not whole or not jnp.issubdtype(tensor.dtype, jnp.number):
                why = f"{errors.short(name)} is laid out otherwise than those of this library"
                raise self.damaged(why, tensor.place[0].name)
        return tensors | self._shared(tensors)

    def _shared(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Returns the arrays that are stored under the name of another, by their own names."""
        shared = self.config.get(SHARED, {})
        # If the other is absent, the array is found missing under its own name.
        return {name: tensors[other] for name, other in shared.items() if other in tensors}

    def _check_format(self) -> None:
        config, path = self.config, self.path / CONFIG
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise LanternError(f"{path} is not that of a lantern_jax checkpoint: see `lantern convert`")
        if config.get("version") != VERSION:
            raise LanternError(
                f"{path} has format version {errors.printable(config.get('version'), 40)}, expected {VERSION}: "
                "convert it again"
            )
        # A flipped bit in its name would hide an entry.
        unknown = sorted(set(config) - _ENTRIES)
        if unknown:
            raise self.damaged(f"it has unknown entries: {', '.join(unknown)}")

    def _check_entries(self) -> None:
        """Checks the config's lists and the kinds of its entries."""
        files, sums = self.config.get(FILES), self.config.get(SUMS)
        if not isinstance(files, Mapping) or not files or not all(map(_NAME.fullmatch, files)):
            raise self.damaged(f'its "{FILES}" are not those of a checkpoint')
        texts = isinstance(sums, Mapping) and all(isinstance(value, str) for value in sums.values())
        if not texts or set(sums) != set(files):
            raise self.damaged(f'its "{SUMS}" are not those of the files it lists')
        for name in ("defaults", "metadata"):
            if not isinstance(self.config.get(name, {}), dict):
                raise self.damaged(f"its {name} are not an object")
        if not isinstance(self.config.get("model"), str) or not self.config.get("target"):
            raise self.damaged("it names no model and target")
        if not isinstance(self.config.get("drafters"), dict):
            raise self.damaged("its drafters are not an object")
        shared = self.config.get(SHARED, {})
        if not isinstance(shared, dict) or not all(isinstance(name, str) for name in shared.values()):
            raise self.damaged(f'its "{SHARED}" are not names of arrays')

    def _check_sizes(self) -> None:
        wrong = []
        for name, size in self.config[FILES].items():
            path = self.path / name
            # ``Path.is_file`` raises for a name that is too long.
            if not os.path.isfile(path):
                wrong.append(f"{name} is missing")
            elif path.stat().st_size != size:
                wrong.append(f"{name} has {path.stat().st_size} bytes, expected {errors.short(repr(size))}")
        if wrong:
            raise self.damaged("; ".join(wrong), "")
