"""The plan of a picture set, written before its first picture is made: every byte of the set follows from it.

    set.json           the plan
    shard-00000/       pictures 0 to S - 1, each with its prompt and number in it
    shard-00000.npz    their numbers, tokens and rounds

Picture j has prompt j // num and draws from fold_in(key(seed), j). Shard k holds the S pictures from number k S on, and
part i of N holds the shards i - 1, i - 1 + N, ...: no file has two writers or depends on how many workers there are.
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
FORMAT = "lantern_jax picture set 2"


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
        shard_size: pictures per shard; the last one may have fewer.
        negatives: one negative prompt for all prompts, or one for each; empty for none.
        size: of pictures, such as "832x624"; None for the model's own.

    Raises:
        LanternError: no prompts, or a number out of its range.
    """

    prompts: tuple[str, ...]
    num: int
    seed: int
    model: str
    dtype: str
    settings: Mapping[str, Any]
    shard_size: int
    negatives: tuple[str, ...] = ()
    size: str | None = None

    def __post_init__(self):
        if not self.prompts:
            raise LanternError("a set has no prompt: give at least one")
        check_count("num", self.num)
        check_count("shard size", self.shard_size)
        check_seed(self.seed)
        if len(self.negatives) not in {0, 1, len(self.prompts)}:
            raise LanternError(
                f"negative prompts are not one, or one for each of {len(self.prompts)} prompts"
            )

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
        there = set(os.listdir(directory)) if directory.is_dir() else set()
        return [
            shard for shard in asked if not {path.name for path in shard_paths(directory, shard)} <= there
        ]

    def difference(self, other: "SetPlan") -> str | None:
        """Describes the first difference from another plan; None where they are the same."""
        ours, theirs = self._facts(), other._facts()
        for name in ours | theirs:
            if ours.get(name) != theirs.get(name):
                given, wanted = (errors.short(json.dumps(facts.get(name)), 60) for facts in (ours, theirs))
                return f"{name} {given}, not {wanted}"
        return None

    def _facts(self) -> dict[str, Any]:
        """Returns each prompt, setting and other field by the name that errors give it."""
        facts = {name.replace("_", " "): value for name, value in vars(self).items()}
        for many, name in (("prompts", "prompt"), ("negatives", "negative prompt")):
            facts |= {f"{name} {number}": text for number, text in enumerate(facts.pop(many), 1)}
        return facts | facts.pop("settings")


@dataclass(frozen=True)
class Part:
    """Part ``number`` of ``count`` of a set, counted from 1, which one worker makes.

    Attributes:
        why: the reason that a process makes this part, in words; empty where it is plain.

    Raises:
        LanternError: a number outside 1 to ``count``.
    """

    number: int = 1
    count: int = 1
    why: str = dataclasses.field(default="", compare=False)

    def __post_init__(self):
        if not 1 <= self.number <= self.count:
            raise errors.invalid("worker", str(self), "i/N with i from 1 to N, such as 1/4 to 4/4")

    @classmethod
    def parse(cls, text: str) -> "Part":
        """Reads i/N."""
        try:
            number, count = map(int, text.split("/"))
        except ValueError:
            raise errors.invalid("worker", text, "i/N, such as 1/4 for the first of four") from None
        return cls(number, count)

    def shards(self, plan: SetPlan) -> range:
        """Returns the shards that it holds."""
        return range(self.number - 1, plan.shards, self.count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def shard_paths(directory: Path, shard: int) -> tuple[Path, Path]:
    """Returns a shard's file of arrays, and the folder of its pictures, in the order of writing."""
    return directory / f"shard-{shard:05d}.npz", directory / f"shard-{shard:05d}"


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
    try:
        content = dict(read_json(path, _LARGEST))
        if content.pop("written_by") != FORMAT:
            raise LanternError("it is of another version")
        lists = {name: tuple(content.pop(name)) for name in ("prompts", "negatives")}
        return SetPlan(**lists, **content)
    except (ValueError, KeyError, TypeError) as error:
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
    if is_set(directory):
        return
    directory.mkdir(exist_ok=True)
    content = json.dumps({"written_by": FORMAT} | vars(plan), indent=1, ensure_ascii=False) + "\n"
    with contextlib.suppress(LanternError):  # Another worker's is there.
        write_files({directory / PLAN_FILE: content}, overwrite=False, synced=True)
    check_plan(directory, plan)


def is_leftover(path: Path) -> bool:
    """Tells whether this is what a killed worker was writing or kept for the next one, or its lock."""
    return path.name.startswith(".") and path.suffix in (".part", ".old", ".lock", ".kept")
