"""Where a command's files go: decided and checked before any work is done."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_new_file, check_new_folder, write_files

DEFAULT_OUT = "lantern.png"
GRID = "grid.png"
# One of 512 pixels a picture is then 200 MB before it is compressed.
MOST_IN_GRID = 256


@dataclass(frozen=True)
class PicturePlan:
    """The files of a call's pictures.

    Attributes:
        pictures: one file a picture; empty when several go into one file as a grid.
        grid: the file of the grid; None when there is none.
        folder: the folder of all, which may not exist yet; None when ``pictures`` or ``grid`` is one named file.
    """

    pictures: tuple[Path, ...]
    grid: Path | None
    folder: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the plan."""
        return self.pictures if self.grid is None else (*self.pictures, self.grid)

    @property
    def place(self) -> Path:
        """The folder or the one file that holds all."""
        return self.files[0] if self.folder is None else self.folder

    def of(self, done: Iterable[int]) -> "PicturePlan":
        """The files when only some of the pictures are there: theirs, or the one grid of what there is."""
        if not self.pictures:
            return self
        return replace(self, pictures=tuple(self.pictures[index] for index in done), grid=None)


def plan_pictures(out: str, names: Sequence[str], first: int = 0) -> PicturePlan:
    """FILE.png holds one picture or a grid of several; DIR/ holds a file for each, and their grid if not too many.

    Args:
        out: as given by the user: ends in .png, or names a folder.
        names: prompt of every picture; files in a folder are called after their number and prompt.
        first: number of the first.

    Raises:
        ValueError: another ending than .png, or a grid of too many pictures.
    """
    path = Path(out)
    is_folder = out.endswith(("/", "\\")) or path.is_dir() or not path.suffix
    if not is_folder and path.suffix.lower() != ".png":
        raise LanternError(f"--out {out} is neither a .png file nor a folder: end it in .png or in /")
    if not is_folder and len(names) > MOST_IN_GRID:
        raise LanternError(
            f"{len(names)} pictures are too many for one grid, which takes {MOST_IN_GRID}: name a folder, not {out}"
        )
    if not is_folder:
        return PicturePlan((path,), None) if len(names) == 1 else PicturePlan((), path)
    width = max(2, len(str(first + len(names) - 1)))
    files = tuple(path / f"{number:0{width}}-{_slug(name)}.png" for number, name in enumerate(names, first))
    return PicturePlan(files, path / GRID if 1 < len(names) <= MOST_IN_GRID else None, path)


def check_outputs(plan: PicturePlan, others: Iterable[Path], overwrite: bool) -> None:
    """Raises ValueError unless every file can be written: nothing there (or ``overwrite``), a writable folder."""
    others = tuple(others)
    if plan.folder is not None and not plan.folder.exists():
        check_new_folder(plan.folder, overwrite)
    files = (*plan.files, *others)
    times = Counter(map(os.path.realpath, files))
    for path in files:
        if times[os.path.realpath(path)] > 1:
            raise LanternError(f"{path} is named for two outputs: give each a file of its own")
        new_folder = path not in others and plan.folder is not None and not plan.folder.exists()
        check_new_file(path, overwrite, new_folder)


def write_outputs(plan: PicturePlan, contents: Mapping[Path, bytes]) -> None:
    """Writes the files of a plan and others with them, all or none; makes the plan's folder.

    Raises:
        OSError: one line: a file cannot be written; nothing is left behind.
    """
    made = plan.folder is not None and not plan.folder.exists()
    if made:
        plan.folder.mkdir()
    try:
        write_files(contents)
    except BaseException:
        if made:
            plan.folder.rmdir()
        raise


def _slug(text: str, limit: int = 40) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return "-".join(words)[:limit].strip("-") or "picture"
