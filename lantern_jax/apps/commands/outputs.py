"""Where a call's files go: decided and checked before any work is done."""

import argparse
import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_new_file, check_new_folder, write_files

GRID = "grid.png"
# With pictures of 512 x 512 pixels this grid is 200 MB before it is compressed.
MOST_IN_GRID = 256


@dataclass(frozen=True)
class Outputs:
    """The files of a call.

    Attributes:
        pictures: one file per picture; empty when several go into one file as a grid.
        grid: the file of the grid; None when there is none.
        folder: the folder of all pictures, which may not exist yet; None when they are one named file.
        compare, accepted: files of the same pictures beside plain decoding's, and with what each round accepted
            drawn over them, or None.
        stats, race: files beside them, or None.
    """

    pictures: tuple[Path, ...]
    grid: Path | None
    folder: Path | None = None
    compare: Path | None = None
    accepted: Path | None = None
    stats: Path | None = None
    race: Path | None = None

    @classmethod
    def of_call(cls, arguments: argparse.Namespace, names: Sequence[str]) -> "Outputs":
        """Returns the files that ``lantern generate`` is to write.

        Args:
            names: the prompt of every picture.

        Raises:
            LanternError: as ``plan_pictures``; a file that cannot be written, or exists without ``--overwrite``;
                a comparison of too many pictures.
        """
        stats, race = (None if path is None else Path(path) for path in (arguments.stats, arguments.race))
        if race is not None:
            from lantern_jax.pictures.race import check_race

            check_race(race)
        out, sheets = arguments.out, {"compare": arguments.compare, "accepted": arguments.show_acceptance}

        def planned(out: str) -> Outputs:
            made = plan_pictures(out, names, arguments.first)
            main = made.files[0] if made.folder is None else made.folder / GRID
            beside = {name: main.with_name(f"{main.stem}-{name}.png") for name in sheets if sheets[name]}
            if beside and len(names) > MOST_IN_GRID:
                raise LanternError(f"--compare and --show-acceptance show {MOST_IN_GRID} pictures at most")
            return replace(made, **beside, stats=stats, race=race)

        if out is not None:
            made = planned(out)
        else:
            # No name was given, so none is refused: the next free one is taken.
            name = f"{_slug(names[0])}-{arguments.seed}"
            ending = ".png" if len(names) == 1 else "/"
            tries = (planned(f"{name}{f'-{n}' if n > 1 else ''}{ending}") for n in itertools.count(1))
            made = next(made for made in tries if arguments.overwrite or not made.is_there)
        made.check(arguments.overwrite)
        return made

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the pictures."""
        return self.pictures if self.grid is None else (*self.pictures, self.grid)

    @property
    def sheets(self) -> tuple[Path, ...]:
        """The files that show the pictures again."""
        return tuple(path for path in (self.compare, self.accepted) if path is not None)

    @property
    def is_there(self) -> bool:
        """Whether one of the pictures' names is taken already."""
        return any(os.path.lexists(path) for path in (self.folder or self.files[0], *self.sheets))

    @property
    def place(self) -> Path:
        """The folder or the one file that holds all pictures."""
        return self.files[0] if self.folder is None else self.folder

    @property
    def places(self) -> tuple[Path, ...]:
        """Every file that is written, with the folder in place of the files in it."""
        beside = (*self.sheets, *(path for path in (self.stats, self.race) if path is not None))
        return self.place, *(path for path in beside if path.parent != self.folder)

    def of(self, done: Iterable[int]) -> "Outputs":
        """Returns the files for when only some pictures are done: theirs, or the one grid of them."""
        if not self.pictures:
            return replace(self, stats=None, race=None)
        return Outputs(tuple(self.pictures[index] for index in done), None, self.folder)

    def beside(self) -> "Outputs":
        """Returns the same files under free names: NAME-2 for a folder or file that exists."""
        folder = None if self.folder is None else _free(self.folder)

        def moved(path: Path | None) -> Path | None:
            if path is None:
                return None
            return _free(path) if folder is None or path.parent != self.folder else folder / path.name

        others = (self.compare, self.accepted, self.stats, self.race)
        return Outputs(tuple(map(moved, self.pictures)), moved(self.grid), folder, *map(moved, others))

    def check(self, overwrite: bool) -> None:
        """Raises LanternError unless every file can be written: nothing there (or ``overwrite``), a writable folder."""
        others = tuple(path for path in (self.stats, self.race) if path is not None)
        new = self.folder is not None and not os.path.exists(self.folder)
        if new:
            check_new_folder(self.folder, overwrite)
        files = (*self.files, *self.sheets, *others)
        times = Counter(map(os.path.realpath, files))
        for path in files:
            if times[os.path.realpath(path)] > 1:
                raise LanternError(f"{path} is named for two outputs: give each a file of its own")
            check_new_file(path, overwrite, new and path.parent == self.folder)

    def write(self, contents: Mapping[Path, bytes], overwrite: bool) -> None:
        """Writes files, each whole, none before all can be; makes the folder.

        Raises:
            LanternError: without ``overwrite``, a file has appeared since ``check``.
            OSError: one line: a file cannot be written.
        """
        made = self.folder is not None and not self.folder.exists()
        if made:
            self.folder.mkdir(exist_ok=True)
        try:
            write_files(contents, overwrite=overwrite)
        except BaseException:
            if made:
                with contextlib.suppress(OSError):  # Another process may have files in it by now.
                    self.folder.rmdir()
            raise


def plan_pictures(out: str, names: Sequence[str], first: int = 0) -> Outputs:
    """Returns where pictures go: FILE.png holds one or a grid of several; DIR/ one file each, and a grid of a few.

    Args:
        out: as the caller gave it: ends in .png, or names a folder.
        names: the prompt of every picture; files in a folder are named after their number and prompt.
        first: number of the first picture.

    Raises:
        LanternError: an ending other than .png, or a grid of too many pictures.
    """
    path = Path(out)
    is_folder = out.endswith(("/", "\\")) or os.path.isdir(path) or not path.suffix
    if not is_folder and path.suffix.lower() != ".png":
        raise LanternError(f"--out {out} is neither a .png file nor a folder: end it in .png or in /")
    if not is_folder and len(names) > MOST_IN_GRID:
        raise LanternError(
            f"{len(names)} pictures are too many for one grid, which takes {MOST_IN_GRID}: name a folder, not {out}"
        )
    if not is_folder:
        return Outputs((path,), None) if len(names) == 1 else Outputs((), path)
    width = max(2, len(str(first + len(names) - 1)))
    files = tuple(path / f"{number:0{width}}-{_slug(name)}.png" for number, name in enumerate(names, first))
    return Outputs(files, path / GRID if 1 < len(names) <= MOST_IN_GRID else None, path)


def _free(path: Path) -> Path:
    """Returns the path, or if it exists the first free one of PATH-2, PATH-3 and so on."""
    others = (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if not os.path.lexists(one))


def _slug(text: str, limit: int = 40) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return "-".join(words)[:limit].strip("-") or "picture"
