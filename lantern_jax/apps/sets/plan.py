"""The plan of a picture set, written before its first picture is made: every byte of the set follows from it.

    set.json           the plan
    shard-00000        pictures 0 to S - 1, each with its prompt and number in it: a folder, or a .tar
    shard-00000.npz    their numbers, tokens and rounds, and sums of their features

Picture j has prompt j // num and draws from fold_in(key(seed), j). Shard k holds the S pictures from number k S on, and
worker i of N makes the shards i - 1, i - 1 + N, ...: no file has two writers or depends on how many workers there are.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.decoding.fields import check_count, check_seed
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_writable, read_json, write_files

PLAN_FILE = "set.json"
# Bytes of a plan with a million prompts.
_LARGEST = 256 * 2**20
# Numbers are int32 in files; the names of all shards are listed; a shard's pictures are held in memory.
MOST_PICTURES, MOST_SHARDS, MOST_IN_SHARD = 2**31 - 1, 100_000, 1_000_000
FORMAT = "lantern_jax picture set 1"
PICTURE_FORMATS = ("png", "webp")


@dataclass(frozen=True)
class SetPlan:
    """What decides every byte of a set.

    Attributes:
        prompts: texts, as the model takes them.
        num: pictures per prompt.
        seed: of all pictures.
        model: the digest of the checkpoint (``checksums.checkpoint_digest``).
        dtype: of parameters and products.
        settings: as ``Settings.to_json`` gives them.
        format: of pictures, one of ``PICTURE_FORMATS``; both keep every pixel.
        tar: whether a shard's pictures are one file rather than files in a folder.
        shard_size: pictures per shard; the last one may have fewer.
        sums: the name of the ``FeatureReader`` whose moments are kept with each shard; None for none.
        negatives: one negative prompt for all prompts, or one for each; empty for none.
        size: of pictures, such as "832x624"; None for the model's own.

    Raises:
        LanternError: a field of the wrong type or out of its range.
    """

    prompts: tuple[str, ...]
    num: int
    seed: int
    model: str
    dtype: str
    settings: Mapping[str, Any]
    format: str
    shard_size: int
    sums: str | None
    negatives: tuple[str, ...] = ()
    tar: bool = False
    size: str | None = None

    def __post_init__(self):
        # A plan may have been read from a stranger's file.
        optional = [text for text in (self.sums, self.size) if text is not None]
        texts = [*self.prompts, *self.negatives, self.model, self.dtype, *optional]
        if not isinstance(self.prompts, tuple) or not all(isinstance(text, str) for text in texts):
            raise LanternError("prompts, model, dtype, sums or size are not texts")
        if not isinstance(self.settings, Mapping):
            raise LanternError("its settings are not an object")
        if self.format not in PICTURE_FORMATS:
            raise errors.unknown("format", self.format, PICTURE_FORMATS)
        check_negatives(self.negatives, len(self.prompts))
        if not isinstance(self.tar, bool):
            raise LanternError("its tar is neither true nor false")
        check_size(len(self.prompts), self.num, self.shard_size)
        check_seed(self.seed)

    @property
    def count(self) -> int:
        """The number of pictures."""
        return len(self.prompts) * self.num

    @property
    def shards(self) -> int:
        """The number of shards."""
        return -(-self.count // self.shard_size)

    def numbers(self, shard: int) -> Int[np.ndarray, " n"]:
        """Returns the numbers of a shard's pictures."""
        return np.arange(shard * self.shard_size, min((shard + 1) * self.shard_size, self.count))

    def prompt(self, number: int) -> str:
        """Returns the prompt of a picture."""
        return self.prompts[number // self.num]

    def missing(self, directory: Path, shards: Iterable[int] | None = None) -> list[int]:
        """Returns which of these shards, or of all, are not in a directory."""
        asked = range(self.shards) if shards is None else shards
        # Listing a folder once is quicker than looking twice for every shard, above all over a network.
        there = (
            {entry.name for entry in os.scandir(directory) if entry.is_file() or entry.is_dir()}
            if directory.is_dir()
            else set()
        )
        return [
            shard
            for shard in asked
            if not {path.name for path in shard_paths(directory, self, shard)} <= there
        ]

    def difference(self, other: "SetPlan") -> str | None:
        """Describes the first difference from another plan; None where they are the same."""
        ours, theirs = self._facts(), other._facts()
        for name in (*ours, *theirs):
            if ours.get(name) != theirs.get(name):
                given, wanted = (errors.short(json.dumps(facts.get(name)), 60) for facts in (ours, theirs))
                return f"{errors.short(name)} {given}, not {wanted}"
        return None

    def _facts(self) -> dict[str, Any]:
        """Returns each prompt, setting and other field by the name that errors give it."""
        facts = {name.replace("_", " "): value for name, value in dataclasses.asdict(self).items()}
        prompts = {f"prompt {number}": prompt for number, prompt in enumerate(facts.pop("prompts"), 1)}
        negatives = enumerate(facts.pop("negatives"), 1)
        prompts |= {f"negative prompt {number}": prompt for number, prompt in negatives}
        settings = facts.pop("settings")
        # The facts are repeated to win over settings of the same names, which a stranger's file may have.
        return prompts | facts | settings | facts


@dataclass(frozen=True)
class Worker:
    """Worker ``number`` of ``count``, counted from 1.

    Attributes:
        why: the reason that a process is this worker, in words; empty where it is plain.

    Raises:
        LanternError: a number outside 1 to ``count``.
    """

    number: int = 1
    count: int = 1
    why: str = dataclasses.field(default="", compare=False)

    def __post_init__(self):
        if not 1 <= self.number <= self.count:
            raise LanternError(
                f"worker {self} is not valid: give i/N with i from 1 to N, such as 1/4 to 4/4 on four machines"
            )

    @classmethod
    def parse(cls, text: str) -> "Worker":
        """Reads i/N."""
        parts = text.split("/")
        if len(parts) != 2 or not all(
            part.isdecimal() and part.isascii() and len(part) < 8 for part in parts
        ):
            raise errors.invalid("worker", text, "i/N, such as 1/4 for the first of four")
        return cls(*map(int, parts))

    def shards(self, plan: SetPlan) -> range:
        """Returns the shards that it makes."""
        return range(self.number - 1, plan.shards, self.count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def check_size(prompts: int, num: Any, shard_size: Any) -> None:
    """Raises LanternError unless a set may have ``num`` pictures of each prompt, in shards of that size."""
    if not prompts:
        raise LanternError("a set has no prompt: give at least one")
    count = check_count("num", num) * prompts
    held = min(check_count("shard size", shard_size), count)
    if count > MOST_PICTURES:
        raise LanternError(f"{count} pictures are more than a set holds, {MOST_PICTURES}: make several sets")
    if held > MOST_IN_SHARD or count > MOST_SHARDS * held:
        raise LanternError(
            f"shard size {shard_size} is not valid for {count} pictures: give {-(-count // MOST_SHARDS)} to "
            f"{MOST_IN_SHARD}"
        )


def check_negatives(negatives: Any, prompts: int) -> None:
    """Raises LanternError unless there are no negative prompts, one, or one for each prompt."""
    if not isinstance(negatives, tuple) or len(negatives) not in {0, 1, prompts}:
        raise LanternError(f"negative prompts are not one, or one for each of {prompts} prompts")


def negatives_of(plan: Any, prompts: slice) -> tuple[str, ...] | None:
    """Returns the negative prompts of some prompts of a plan or a request, as ``Pipeline.plan`` takes them."""
    return (plan.negatives if len(plan.negatives) < 2 else plan.negatives[prompts]) or None


def shard_paths(directory: Path, plan: SetPlan, shard: int) -> tuple[Path, Path]:
    """Returns a shard's file of arrays, and the file or folder of its pictures, in the order of writing."""
    suffixes = ".npz", ".tar" if plan.tar else ""
    return tuple(directory / f"shard-{shard:05d}{suffix}" for suffix in suffixes)


def is_set(directory: Path) -> bool:
    """Tells whether a directory holds a picture set, or the beginning of one."""
    return (Path(directory) / PLAN_FILE).is_file()


def read_plan(directory: Path) -> SetPlan:
    """Reads the plan of a set that was begun.

    Raises:
        LanternError: the directory holds none, or a damaged one.
    """
    if not is_set(directory):
        raise LanternError(f"{directory} is not a picture set: there is no {PLAN_FILE} in it")
    path = Path(directory) / PLAN_FILE
    names = {field.name for field in dataclasses.fields(SetPlan)}
    try:
        content = {"negatives": [], "size": None} | read_json(path, _LARGEST)
        if content.pop("written_by") != FORMAT or set(content) != names:
            raise LanternError("it has other entries")
        lists = {name: content[name] for name in ("prompts", "negatives")}
        if not all(isinstance(values, list) for values in lists.values()):
            raise LanternError("its prompts are not a list")
        return SetPlan(**content | {name: tuple(values) for name, values in lists.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = errors.short(str(error).removeprefix(f"{path} "), 300)
        raise LanternError(
            f"{path} is damaged or of another version ({why}): make the set anew elsewhere"
        ) from None


def check_plan(directory: Path, plan: SetPlan) -> None:
    """Raises LanternError unless the folder is missing or empty (leftovers aside), or holds this very set."""
    if is_set(directory):
        difference = read_plan(directory).difference(plan)
        if difference is not None:
            raise LanternError(
                f"{directory} holds another set ({difference}): name another folder, or give the same"
            )
    elif directory.exists() and not (directory.is_dir() and all(map(is_leftover, directory.iterdir()))):
        raise LanternError(f"{directory} exists and is not a picture set: name a new folder")
    check_writable(directory if directory.exists() else directory.absolute().parent)


def begin(directory: Path, plan: SetPlan) -> None:
    """Writes the plan of a set unless it is there; of several workers that begin together, one writes it.

    Raises:
        LanternError: as ``check_plan``.
    """
    check_plan(directory, plan)
    directory.mkdir(exist_ok=True)
    content = (
        json.dumps({"written_by": FORMAT} | dataclasses.asdict(plan), indent=1, ensure_ascii=False) + "\n"
    )
    with contextlib.suppress(LanternError):  # Another worker's is there.
        write_files({directory / PLAN_FILE: content}, overwrite=False, synced=True)
    check_plan(directory, plan)


def is_leftover(path: Path) -> bool:
    """Tells whether this is what a killed worker was writing or kept for the next one, or its lock."""
    return path.name.startswith(".") and path.suffix in (".part", ".old", ".lock", ".kept")
