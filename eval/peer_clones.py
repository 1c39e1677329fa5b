"""Clones of the official programs: where each is from, how its code is imported, and what is timed of it."""

import contextlib
import importlib
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from lantern_jax.families.llamagen.model import SIZES as PUBLISHED
from lantern_jax.families.llamagen.model import LlamaGenConfig, published_config
from lantern_jax.io.errors import LanternError, MissingExtra

# For checking that everything runs, not for measuring.
TINY = "tiny"
SIZES = (TINY, *PUBLISHED)
# Tokens of a picture, and those of a caption that are not padding: of 120, in the text-conditional model.
TOKENS, CAPTION = 256, 20
# LlamaGen's loop cannot end sooner. What is stopped early takes more tokens or rounds than that.
FEWEST = 2


@dataclass(frozen=True)
class Repository:
    """An official program.

    Attributes:
        name: its name.
        option: the option that takes a clone's folder.
        url: where it is cloned from.
        files: those that are imported.
    """

    name: str
    option: str
    url: str
    files: tuple[str, ...]


LLAMAGEN = Repository(
    "LlamaGen", "--llamagen", "https://github.com/FoundationVision/LlamaGen",
    ("autoregressive/models/gpt.py", "autoregressive/models/generate.py"),
)  # fmt: skip
LANTERN = Repository(
    "LANTERN", "--lantern", "https://github.com/jadohu/LANTERN",
    ("models/ea_model_llamagen.py", "models/kv_variants/modeling_llamagen_kv.py", "models/drafters/cnets_llamagen.py"),
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """What one batch took.

    Attributes:
        seconds: per picture.
        ms: per token or round of the whole batch.
        tokens: per round of each picture.
    """

    seconds: float
    ms: float
    tokens: float = 1.0


@dataclass(frozen=True)
class Way:
    """A row: a program and how it decodes.

    Attributes:
        name: as ``--only`` takes it.
        title: for people.
        decode: decodes a batch, by its number, stopping after some tokens or rounds, or never (None).
    """

    name: str
    title: str
    decode: Callable[[int, int | None], Sample]


class ForcedLuck:
    """Stands in for the module ``random``, by which the program accepts or refuses: a length is drawn for every round.

    That many candidates are accepted, each on a level of its own, and all others are refused.

    Args:
        chances: of 0, 1, 2, ... accepted tokens per round.
        seed: of the lengths.
    """

    def __init__(self, chances: Sequence[float], seed: int = 0):
        self._chances, self._random, self._left = chances, random.Random(seed), 0

    def begin(self) -> None:
        """Draws the length of the next round."""
        self._left = self._random.choices(range(len(self._chances)), self._chances)[0]

    def random(self) -> float:
        """Returns a number that accepts while the round's length is not reached, and then one that refuses."""
        self._left -= 1
        return 0.0 if self._left >= 0 else float("inf")


def config_of(size: str) -> LlamaGenConfig:
    """Returns the class-conditional model of a size."""
    if size != TINY:
        return published_config(size)
    return replace(published_config("B"), dim=64, num_layers=2, num_heads=2, vocab_size=512)


def check_clone(folder: Path, repository: Repository) -> None:
    """Raises LanternError for a folder that is no clone of a repository."""
    missing = [file for file in repository.files if not (folder / file).is_file()]
    if missing:
        raise LanternError(
            f"{folder} is not a clone of {repository.url} (it has no {missing[0]}): clone that, and give its folder"
        )


def commit_of(folder: Path) -> str:
    """Returns the commit that a clone is at, and whether files were changed since; "unknown" where Git cannot tell."""

    def git(*words: str) -> str:
        told = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
        return told.stdout.strip()

    try:
        changed = git("diff", "--name-only", "--diff-filter=M", "HEAD")
        return git("rev-parse", "--short=8", "HEAD") + (", with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def named_version(folder: Path, package: str) -> str | None:
    """Returns the version of a package that a clone's requirements name."""
    with contextlib.suppress(OSError):
        text = (folder / "requirements.txt").read_text("utf-8")
        found = re.search(rf"^{re.escape(package)}==(\S+)", text, re.MULTILINE)
        return found and found[1]
    return None


def imported(package: str) -> ModuleType:
    """Imports a package that only the official programs need; MissingExtra if it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingExtra(
            f"{package} is missing, which the official programs need: pip install {package}"
        ) from None


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Lets modules be imported from a clone, in which nothing is written."""
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder.resolve()))
    try:
        with quiet():
            yield
    finally:
        sys.path.remove(str(folder.resolve()))
        sys.dont_write_bytecode = writes


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Shows no warnings: the official code uses names that are deprecated by now, some of them for every token."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def extrapolated(few: tuple[float, float], some: tuple[float, float], total: float) -> float:
    """Returns the seconds of ``total`` tokens or rounds, by two measured (number, seconds): a prompt is paid once."""
    # On a busy machine the longer of two calls may take less.
    each = max(some[1] - few[1], 0.0) / (some[0] - few[0])
    return few[1] + each * (total - few[0])
