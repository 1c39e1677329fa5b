"""Something else in place of a file: pipes, sockets, devices, rings of links, files of /proc; for every option of a
command or script that takes a name, and in folders of every kind that they read.
"""

import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from lantern_jax.apps.commands.main import make_parser
from lantern_jax.apps.convert.formats import FORMATS
from tests.hostile.commands import LINES
from tests.hostile.scripts import WRONG

KINDS = ("pipe", "socket", "zero", "full", "ring", "kmsg", "memory", "empty", "folder")
_LINKS = {
    "zero": "/dev/zero", "full": "/dev/full", "kmsg": "/proc/kmsg", "memory": "/proc/self/mem", "ring": "ring",
}  # fmt: skip
SUFFIXES = ("", ".json", ".npz", ".txt", ".png", ".webp", ".jsonl", ".safetensors", ".pt", ".model", ".tsv")
# What commands and scripts look for in a folder that they are given.
INSIDE = (
    "set.json", "shard-00000.tar", "shard-00000.npz", "a.png", "a.txt", "model.safetensors", "tokenizer.json",
    "model.safetensors.index.json", "config.json", "train.npz", "validation.npz", "tokens_00000.npy",
    "features_00000.npy", "prefix_00000.npy", "metrics.jsonl", "setup.json", "made.json", "results",
)  # fmt: skip
_OUTPUTS = ("--out", "--plot", "--work", "--folder")
# Placeholders in commands' help that say that a path is read.
_NAMES = re.compile(r"FILE|DIR|IMAGE|SET\b|OLD|PROFILE|MODEL|T,\.\.\.")
_READS = re.compile(
    r"\b(add|add_argument)\(\s*\"(--[\w-]+)\",\s*type=arguments\.(file|folder|model|new_file|working_folder)\b"
)


def special(folder: Path) -> None:
    """Makes one of each kind in a folder, under every suffix, and folders and checkpoints that hold them."""
    for kind in KINDS:
        for suffix in SUFFIXES:
            make(folder / f"no-{kind}{suffix}", kind)
        (folder / f"of-{kind}").mkdir()
        for name in INSIDE:
            make(folder / f"of-{kind}" / name, kind)
        if (folder / "tiny").is_dir():
            shutil.copytree(folder / "tiny", folder / f"tiny-{kind}")
            data = folder / f"tiny-{kind}" / "model.safetensors"
            data.unlink()
            make(data, kind)


def make(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        # Paths of sockets must be short.
        here = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path.name)
        finally:
            os.fchdir(here)
            os.close(here)
    elif kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "ring" else _LINKS[kind])


def names(placeholder: str, turn: int) -> Iterator[str]:
    """Yields names that ``special`` made for an option: with the suffixes of its placeholder, otherwise two in turn."""
    suffixes = [suffix for suffix in SUFFIXES[1:] if suffix in placeholder]
    for number, kind in enumerate(KINDS):
        for suffix in suffixes or {"", SUFFIXES[(turn + number) % len(SUFFIXES)]}:
            yield f"no-{kind}{suffix}"
    yield from (f"{name}-{kind}" for name in ("of", "tiny") for kind in KINDS)


def path_lines() -> Iterator[tuple[str, list[str]]]:
    """Yields (an option's placeholder, a command line with the option) for all that take a name, written as {}."""
    parsers = next(action for action in make_parser()._actions if action.choices)
    for words in map(str.split, LINES.values()):
        for action in parsers.choices[words[0]]._actions:
            if action.option_strings and _NAMES.search(str(action.metavar)):
                yield str(action.metavar), [*words, action.option_strings[0], "{}"]
    for line in (
        "metrics {}", "metrics {} --reference {}", "info {}", "info {} --verify", "quantize {} --out new",
        "set --out {} --merge", "metrics folder --scores clip --weights {}", "generate lake --method gumbel:tree={}",
        "bench --accept-lengths {}",
    ):  # fmt: skip
        yield "", line.split()
    for name, known in FORMATS.items():
        needed = [word for file in known.files if file.required for word in (f"--{file.option}", "old.npz")]
        for file in known.files:
            yield "", ["convert", name, *needed, "--out", "new", f"--{file.option}", "{}"]


def script_lines() -> Iterator[tuple[str, list[str]]]:
    """Yields (script, words) for every option of a script that takes a name."""
    for script in WRONG:
        source = (Path(__file__).parents[2] / script.replace(".", "/")).with_suffix(".py").read_text()
        flags = {found[2] for found in _READS.finditer(source)}
        # Options that helpers of the scripts add.
        given = {word.partition("=")[0] for words in WRONG[script] for word in words}
        flags |= given & {"--config", "--target", "--checkpoint", "--prompts", "--docs"}
        # These name checkouts, which are run.
        yield from ((script, [f"{flag}={{}}"]) for flag in sorted(flags - {"--old", "--new"}))


def cases() -> Iterator[tuple[str, list[str]]]:
    for turn, (placeholder, line) in enumerate(path_lines()):
        for name in names(placeholder, turn):
            yield "lantern", [word.format(name) for word in line]
    for turn, (script, words) in enumerate(script_lines()):
        for name in names("", turn):
            # An output may replace a link or an empty file, a folder may be worked in, and what a script starts may
            # read a checkpoint once more: nothing stops those before they compute.
            worked = words[0].startswith(_OUTPUTS) and not re.match("no-(pipe|socket|zero|full)", name)
            if not worked and not (script.startswith("eval") and name.startswith("tiny-")):
                yield script, [word.format(name) for word in words]
