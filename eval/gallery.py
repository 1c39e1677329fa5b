"""The pictures of the gallery and the tables that show them: every method, acceptance maps, races by passes.

    python -m eval.gallery [--docs docs]

Of the demo, in float32: one prompt and seed by each method as it is on the machine, and eight landscapes; nothing is
timed. Writes ``pictures/gallery/`` in the folder and, in its ``gallery.md``, each table below a comment with its name.
"""

import argparse
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

import lantern_jax
from eval.methods import PLAIN, is_strict
from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import Parser, run_script
from lantern_jax.apps.display.acceptance import columns_of, draw_acceptance, enlarge
from lantern_jax.apps.display.race import Race
from lantern_jax.decoding.methods import AUTO, METHODS
from lantern_jax.devices.compilation import keep_compiled_programs
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_text, write_files

PROMPT, SEED = "a town by the sea with a rainbow", 1
LANDSCAPES_SEED = 1
LANDSCAPES = (
    "a forest with a waterfall in autumn", "green hills in spring with a rainbow",
    "hills by a lake with balloons at dawn", "a town by a river in spring", "cliffs at dusk by the sea with boats",
    "mountains at noon by a lake in autumn", "mountains at night by a lake with an aurora",
    "a watercolour town by a lake",
)  # fmt: skip
# Passes after which the methods that paint the same picture are compared.
PASSES = 40
MAPS = ("led", "jacobi", "echo", "lantern++")
RACES = ("jacobi", "lantern++")
FOLDER = Path("pictures") / "gallery"
# Approximate pixels per side.
SIDE = 256
_UNKNOWN = 30
_LARGEST_PAGE = 2**20


class Cell(NamedTuple):
    """A picture in a table: its file's name and contents, its alternative text, and the lines below it."""

    file: str
    contents: bytes
    alt: str
    lines: Sequence[str]


class Run(NamedTuple):
    """A method's picture of the prompt, with plain decoding's beside it."""

    method: str
    settings: lantern_jax.Settings
    made: lantern_jax.Generation

    @property
    def same(self) -> bool:
        """Whether it promises plain decoding's tokens, and gives them."""
        return is_strict(self.settings) and np.array_equal(self.made.tokens, self.made.plain.tokens)

    @property
    def pace(self) -> str:
        return f"{self.made.statistics.step_compression:.2f} tokens per pass"

    def painted(self, passes: int) -> tuple[int, UInt8[np.ndarray, "H W 3"]]:
        """Returns how many tokens are known after some passes, and the picture that they paint."""
        picture, known = self.made.pictures[0], self.made.round_of_token[0] <= passes
        columns = columns_of(picture, known.size)
        cell = picture.shape[1] // columns
        shown = np.kron(known.reshape(-1, columns), np.ones((cell, cell))).astype(bool)
        return int(known.sum()), np.where(shown[..., None], picture, np.uint8(_UNKNOWN))

    def cell(self) -> Cell:
        """Returns its whole picture."""
        lines = [f"**`{self.method}`**", self.pace]
        if not self.settings.rule.is_strict:
            lines.append(f"{100 * self.made.statistics.substituted:.1f} % stand in")
        elif not is_strict(self.settings):
            lines.append("not lossless")
        return Cell(
            f"{self.method}.webp",
            _webp(self.made.pictures[0]),
            f"{PROMPT.capitalize()}, by {self.method}.",
            lines,
        )


def tables(runs: Mapping[str, Run]) -> dict[str, tuple[int, list[Cell]]]:
    """Returns the tables by name: the number of columns, and the cells."""
    same = [run for run in runs.values() if run.same]
    draws = [run for run in runs.values() if is_strict(run.settings) and not run.same]
    relaxed = [run for run in runs.values() if not is_strict(run.settings)]
    return {
        "same": (3, list(_same_picture(same))),
        "draws": (3, [run.cell() for run in draws]),
        "relaxed": (3, [run.cell() for run in relaxed]),
        "maps": (2, list(_maps([runs[name] for name in MAPS]))),
        "races": (1, [_race(runs[name]) for name in RACES]),
    }


def _same_picture(runs: Sequence[Run]) -> Iterator[Cell]:
    """Yields the picture that several methods paint, and what each has painted after some passes."""
    whole = runs[0].made.tokens.size
    painted = [(run, *run.painted(PASSES)) for run in runs]
    for run, known, picture in sorted(painted, key=lambda one: one[1]):
        alt = f"The first {known} of {whole} tokens of the picture, by {run.method}; the rest is dark."
        lines = [f"**`{run.method}`**", run.pace, f"{known} of {whole} tokens"]
        yield Cell(f"{run.method}.webp", _webp(picture), alt, lines)
    yield _picture(runs[0], [f"of all {len(runs)}", f"{whole} tokens"])


def _picture(run: Run, lines: Sequence[str]) -> Cell:
    """Returns the whole picture of one of the methods that paint the same."""
    alt = f"{PROMPT.capitalize()}: the whole picture."
    return Cell("picture.webp", _webp(run.made.pictures[0]), alt, ["**The picture**", *lines])


def _maps(runs: Sequence[Run]) -> Iterator[Cell]:
    """Yields acceptance maps, each after its picture; the picture that several methods paint comes only once."""
    same = [run.method for run in runs if run.same]
    for run in runs:
        if not run.same:
            yield run.cell()
        elif run.method == same[0]:
            yield _picture(run, [f"of {', '.join(f'`{name}`' for name in same)}"])
        (accepted,), rounds = draw_acceptance(run.made), run.made.statistics.rounds
        alt = f"The picture of {run.method} in grey, tinted by how many guesses each of its {rounds} passes accepted."
        lines = [f"**`{run.method}`**", f"{rounds} passes, {run.pace}"]
        yield Cell(f"{run.method}-accepted.webp", _webp(accepted), alt, lines)


def _race(run: Run) -> Cell:
    rounds = run.made.statistics.rounds
    alt = f"Two halves paint from the top, plain decoding a token per pass, {run.method} in {rounds} passes."
    return Cell(
        f"{run.method}-race.webp",
        Race(run.made, passes=True).encode(".webp"),
        alt,
        [f"**`{run.method}`**, {run.pace}"],
    )


def _webp(picture: UInt8[np.ndarray, "H W 3"]) -> bytes:
    """Encodes a picture, enlarged if it is small."""
    buffer = io.BytesIO()
    large = enlarge(picture, max(1, round(SIDE / picture.shape[1])))
    Image.fromarray(large).save(buffer, "WEBP", quality=88, method=6)
    return buffer.getvalue()


def markdown(columns: int, cells: Sequence[Cell]) -> str:
    """Returns a table of pictures, with their lines below them."""
    texts = [
        f"![{cell.alt}]({(FOLDER / cell.file).as_posix()})<br>{'<br>'.join(cell.lines)}" for cell in cells
    ]
    rows = [texts[at : at + columns] for at in range(0, len(texts), columns)]
    lines = [[""] * columns, ["---"] * columns, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filled(page: str, name: str, table: str) -> str:
    """Returns a page with a table in its place; raises LanternError if the page has none for it."""
    place = re.compile(rf"(?<=<!-- {name} -->\n)(\|.*\n)*")
    if not place.search(page):
        raise LanternError(f"gallery.md has no place for a table: give it a line <!-- {name} -->")
    return place.sub(lambda _: f"{table}\n", page)


def main(argv: Sequence[str] | None = None) -> None:
    """Makes the pictures, and writes them and the tables."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--docs", type=arguments.folder, default=Path("docs"), help="folder of the page (default docs)"
    )
    docs = parser.parse_args(argv).docs
    page = read_text(docs / "gallery.md", _LARGEST_PAGE)
    keep_compiled_programs()
    pipeline = lantern_jax.load("demo", "float32", tuned="off")
    landscapes = pipeline.generate(LANDSCAPES, seed=LANDSCAPES_SEED, method=PLAIN).pictures
    files = {"landscapes.webp": _webp(lantern_jax.grid(list(landscapes), 4))}
    runs = {}
    for name in METHODS:
        if name != AUTO:
            made = pipeline.generate(PROMPT, seed=SEED, method=name, compare=True)
            runs[name] = Run(name, pipeline.check(PROMPT, method=name), made)
            print(f"{name}: {made!r}", flush=True)
    for name, (columns, cells) in tables(runs).items():
        page = filled(page, name, markdown(columns, cells))
        files |= {cell.file: cell.contents for cell in cells}
    folder = docs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_files({folder / name: contents for name, contents in files.items()} | {docs / "gallery.md": page})


if __name__ == "__main__":
    run_script(main)
