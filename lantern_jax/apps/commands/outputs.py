"""The files of ``lantern generate``: where they go, checked before any work is done, and what is in them."""

import argparse
import contextlib
import io
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lantern_jax.apps.terminal.terminal import say
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_new_file, check_new_folder, write_files

if TYPE_CHECKING:
    from lantern_jax.engine.generation import Generation
    from lantern_jax.pipeline.call import Call
    from lantern_jax.pipeline.plan import Plan

GRID, CODES = "grid.png", ".npz"
# Files that show the pictures again, and the argument that asks for each.
SHEETS = {"compare": "compare", "accepted": "show_acceptance"}
# With pictures of 512 x 512 pixels this grid is 200 MB before it is compressed.
MOST_IN_GRID = 256


@dataclass(frozen=True)
class Outputs:
    """The files of a call.

    Attributes:
        pictures: one file per picture; empty when several go into one file as a grid, or their codes do.
        more: other files by what they hold: the ``grid`` or the ``codes``; the same pictures beside plain decoding's
            (``compare``) and with what each round accepted (``accepted``); ``stats``; ``race``.
        folder: the folder of all pictures, which may not exist yet; None when they are one named file.
    """

    pictures: tuple[Path, ...]
    more: Mapping[str, Path]
    folder: Path | None = None

    @classmethod
    def of_call(cls, arguments: argparse.Namespace, names: Sequence[str]) -> "Outputs":
        """Returns the files that ``lantern generate`` is to write, given the prompt of every picture.

        Raises:
            LanternError: as ``plan_pictures``; a file that cannot be written, or exists without ``--overwrite``;
                a comparison of too many pictures.
        """
        given = {"stats": arguments.stats, "race": arguments.race}
        apart = {name: Path(path) for name, path in given.items() if path is not None}
        sheets = [name for name, asked in SHEETS.items() if getattr(arguments, asked)]
        if sheets and len(names) > MOST_IN_GRID:
            raise LanternError(f"--compare and --show-acceptance show {MOST_IN_GRID} pictures at most")

        def planned(out: str) -> Outputs:
            made = plan_pictures(out, names, arguments.first)
            main = made.place if made.folder is None else made.folder / GRID
            beside = {
                name: main.with_name(f"{main.stem}-{name}.png") for name in sheets if made.shows_pictures
            }
            return replace(made, more={**made.more, **beside, **apart})

        if arguments.out is not None:
            made = planned(arguments.out)
        else:
            # No name was given, so none is refused: the next free one is taken.
            ending = ".png" if len(names) == 1 else "/"
            tries = (planned(f"{name}{ending}") for name in _numbered(f"{_slug(names[0])}-{arguments.seed}"))
            made = next(made for made in tries if arguments.overwrite or not made.is_there)
        if not made.shows_pictures and (arguments.show_acceptance or arguments.race is not None):
            raise LanternError(
                f"--show-acceptance and --race show pictures, {arguments.out} holds codes alone"
            )
        made.check(arguments.overwrite)
        return made

    @property
    def is_there(self) -> bool:
        """Whether one of the pictures' names is taken already."""
        sheets = (path for name, path in self.more.items() if name in SHEETS)
        return any(os.path.lexists(path) for path in (self.place, *sheets))

    @property
    def place(self) -> Path:
        """The folder or the one file that holds all pictures."""
        return self.folder or self._files[0]

    @property
    def shows_pictures(self) -> bool:
        """Whether pictures are written, not their codes alone."""
        return "codes" not in self.more

    @property
    def places(self) -> tuple[Path, ...]:
        """Every file that is written, with the folder in place of the files in it."""
        places = (self.folder if path.parent == self.folder else path for path in self._files)
        return tuple(dict.fromkeys(places))

    @property
    def _files(self) -> tuple[Path, ...]:
        return *self.pictures, *self.more.values()

    def of(self, done: Iterable[int]) -> "Outputs":
        """Returns the files for when only some pictures are done: theirs, or the one grid of them."""
        if self.pictures:
            return Outputs(tuple(self.pictures[index] for index in done), {}, self.folder)
        drawn = (*SHEETS, "grid", "codes")
        return replace(self, more={name: path for name, path in self.more.items() if name in drawn})

    def beside(self) -> "Outputs":
        """Returns the same files in a new folder beside them."""
        names = map(self.place.with_name, _numbered(self.place.stem))
        folder = next(path for path in names if not os.path.lexists(path))
        more = {name: folder / path.name for name, path in self.more.items()}
        return Outputs(tuple(folder / path.name for path in self.pictures), more, folder)

    def check(self, overwrite: bool) -> None:
        """Raises LanternError unless every file can be written: nothing there (or ``overwrite``), a writable folder."""
        new = self.folder is not None and not os.path.exists(self.folder)
        if new:
            check_new_folder(self.folder, overwrite)
        times = Counter(map(os.path.realpath, self._files))
        for path in self._files:
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
    """Returns where pictures go: FILE.png holds one or a grid of several; DIR/ one file each, and a grid of a few;
    FILE.npz holds codes.

    Args:
        out: as the caller gave it: ends in .png or .npz, or names a folder.
        names: the prompt of every picture; files in a folder are named after their number and prompt.
        first: number of the first picture.

    Raises:
        LanternError: another ending, or a grid of too many pictures.
    """
    path, count = Path(out), len(names)
    if out.endswith(("/", "\\")) or os.path.isdir(path) or not path.suffix:
        width = max(2, len(str(first + count - 1)))
        files = tuple(
            path / f"{number:0{width}}-{_slug(name)}.png" for number, name in enumerate(names, first)
        )
        return Outputs(files, {"grid": path / GRID} if 1 < count <= MOST_IN_GRID else {}, path)
    if path.suffix == CODES:
        return Outputs((), {"codes": path})
    if path.suffix.lower() != ".png":
        raise LanternError(
            f"--out {out} is neither a .png file nor a folder: end it in .png, in / or in {CODES}"
        )
    if count > MOST_IN_GRID:
        raise LanternError(
            f"{count} pictures are too many for one grid, which takes {MOST_IN_GRID}: name a folder, not {out}"
        )
    return Outputs((path,), {}) if count == 1 else Outputs((), {"grid": path})


def _numbered(name: str) -> Iterator[str]:
    """Yields NAME, NAME-2, NAME-3 and so on."""
    return itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))


def _slug(text: str, limit: int = 40) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return "-".join(words)[:limit].strip("-") or "picture"


def contents(outputs: Outputs, generation: "Generation", plan: "Plan") -> dict[Path, bytes]:
    """Returns the contents of a call's files.

    The grid of a complete call with several prompts has a row for each. The file of a single picture records its
    prompt, seed and settings. Comparisons show plain decoding's picture on the left.
    """
    from lantern_jax.apps.display.acceptance import draw_acceptance
    from lantern_jax.apps.display.race import Race
    from lantern_jax.pictures.images import encode_png, grid

    call = plan.call
    pictures = [] if generation.pictures is None else list(generation.pictures)
    columns = call.num if len(pictures) == call.count and 1 < call.num < len(pictures) else None

    def sheet(shown: list) -> bytes:
        return encode_png(shown[0] if len(shown) == 1 else grid(shown, columns))

    makers = {
        "grid": lambda: sheet(pictures),
        "codes": lambda: _codes(generation, plan),
        "compare": lambda: sheet([_pair(generation, number) for number in range(len(pictures))]),
        "accepted": lambda: sheet(draw_acceptance(generation)),
        "stats": lambda: (json.dumps(generation.statistics.to_json(), indent=1) + "\n").encode(),
        "race": lambda: Race(generation).encode(outputs.more["race"].suffix),
    }
    # An interrupted call has nothing to be compared with.
    lacking = {"compare"} if generation.plain is None else ()
    files = dict(zip(outputs.pictures, map(encode_png, pictures, _origins(generation, call)), strict=False))
    return files | {path: makers[name]() for name, path in outputs.more.items() if name not in lacking}


def _origins(generation: "Generation", call: "Call") -> Iterator[dict[str, str]]:
    """Yields the texts of each picture's file."""
    from lantern_jax.apps.display.picture_files import origin_text

    numbers, settings = map(int, generation.numbers), generation.settings
    for prompt, number, tokens in zip(generation.prompts, numbers, generation.tokens, strict=True):
        negative = call.negatives[(number - call.first) // call.num] if call.negatives else None
        more = {"keep_rows": call.keep_rows, "negative_prompt": negative}
        yield origin_text(prompt, call.seed, number, settings, tokens, **more)


def _codes(generation: "Generation", plan: "Plan") -> bytes:
    """Returns a .npz of codes [n, T], and of what other software takes of them, a row for each picture."""
    prompts, file = np.array(generation.prompts), io.BytesIO()
    made = {"tokens": generation.tokens, "prompts": prompts, "numbers": generation.numbers}
    np.savez(file, **made, **plan.product(generation.tokens))
    return file.getvalue()


def write(outputs: Outputs, plan: "Plan", generation: "Generation", overwrite: bool) -> Outputs:
    """Writes a call's files; returns where they are.

    Files that another process has made under these names meanwhile stay, and the results go into a new folder.
    """
    try:
        outputs.write(contents(outputs, generation, plan), overwrite)
    except LanternError:
        outputs = outputs.beside()
        say(f"lantern: a file of such a name was made meanwhile: writing {outputs.folder}", error=True)
        outputs.write(contents(outputs, generation, plan), overwrite)
    return outputs


def _pair(generation: "Generation", number: int):
    from lantern_jax.pictures.images import side_by_side

    runs = {"plain": generation.plain, "speculative": generation}
    captions = list(runs)
    if len(generation.pictures) == 1:
        captions = [f"{name} {run.statistics.seconds:.2f} s" for name, run in runs.items()]
    return side_by_side([run.pictures[number] for run in runs.values()], captions)
