"""Retrain the whole demo with one command.

    python -m train.demo --workdir DIR [--experiment=demo|tiny] [--tokenizer=DIR] [--STAGE.NAME=VALUE ...]

Runs, one process after another: the tokenizer, the encoding of the target's pictures, the target, the extraction of
features, a drafter of each kind, the growing of draft trees, the classifier, and the export into DIR/export. Finished
stages are skipped and a killed one continues from its last checkpoint, so the same command always continues, even in a
folder that was moved to another machine. With `--tokenizer`, a checkpoint directory, no tokenizer is trained: a new
target is drawn with an old one's. DIR/seconds.json holds the seconds of each stage, summed over all calls.

`--target.steps=20000 --target.batch_size=64 --tokens.pictures=65536` changes values of the stages' experiments, or how
many pictures a stage works on; give the same changes again to continue. It is an error if a stage was done with other
values: remove DIR/STAGE.done to go on from where it ended, with more steps for example, and DIR/STAGE too if its files
were made with other values. The stages that read it then begin anew: their folders are removed once it is done.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

from ml_collections import ConfigDict

from lantern_jax.apps.commands import arguments
from lantern_jax.apps.commands.command_line import run_script
from lantern_jax.apps.terminal.locks import sole
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json, read_text, write_file
from train import script
from train.script import Experiment
from train.signals import heard

ROOT = Path(__file__).parents[1]
SECONDS = "seconds.json"

DRAFTERS = ("drafter", "eagle3", "medusa", "parallel")

# Stage -> its script, and the earlier stages whose folders it is given, each with its flag.
_TRAINED = {"target": "target", "features": "features"}
STAGES = {
    "tokenizer": ("train.tokenizer", {}),
    "tokens": ("train.encode", {"tokenizer": "tokenizer"}),
    "target": ("train.target", {"tokens": "tokens"}),
    "features": ("train.features", {"target": "target", "tokens": "tokens"}),
    "drafter": ("train.drafter", _TRAINED),
    "eagle3": ("train.drafter", _TRAINED),
    "medusa": ("train.drafter", _TRAINED),
    "parallel": ("train.drafter", _TRAINED),
    "trees": ("train.tree", {"target": "target", "drafter": "drafter"}),
    "classifier": ("train.classifier", {"tokenizer": "tokenizer"}),
    "export": (
        "train.export",
        {"tokenizer": "tokenizer", "target": "target"} | dict.fromkeys(DRAFTERS, "drafter"),
    ),
}

# Flags of the stages that have no config: above all, how many pictures they work on. Features are in float32 on every
# device, so that one device can go on with what another began.
_CARD = {"card": "lantern_jax/assets/demo/README.md"}
_FEATURES = {"batch_size": 64, "taps": "2,6,9,12", "dtype": "float32"}
EXPERIMENTS: dict[str, dict[str, dict[str, int | str]]] = {
    "demo": {
        "tokens": {"pictures": 65536, "validation": 512},
        "features": {"pictures": 1024, "samples": 1536, **_FEATURES},
        "trees": {"pictures": 64},
        "export": {"fit": 32, **_CARD},
    },
    "tiny": {
        "tokens": {"pictures": 512, "validation": 32},
        "features": {"pictures": 64, "samples": 64, **_FEATURES, "taps": "0,1,2"},
        "trees": {"pictures": 16},
        "export": {"fit": 0, **_CARD},
    },
}

# XLA allocates a step's temporary buffers anew each time, and glibc returns memory of that size to the system:
# keeping it saves a quarter of a training step on a CPU.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def stages(
    experiment: str,
    workdir: Path,
    changes: Mapping[tuple[str, str], str] | None = None,
    tokenizer: Path | None = None,
) -> list[tuple[str, list[str]]]:
    """Returns (name, arguments of Python) of every stage, in order.

    Args:
        changes: (stage, name) -> the value that takes the place of the experiment's.
        tokenizer: a checkpoint directory; with one, the tokenizer's stage is left out.

    Raises:
        LanternError: an unknown experiment, stage or name, or a value of another kind.
    """
    if experiment not in EXPERIMENTS:
        raise errors.unknown("experiment", experiment, EXPERIMENTS)
    settled, commands = EXPERIMENTS[experiment], []
    changed = {name: {} for name in STAGES}
    for (stage, name), value in (changes or {}).items():
        if stage not in STAGES:
            raise errors.unknown("stage", stage, STAGES)
        changed[stage][name] = value
    for name, (module, earlier) in STAGES.items():
        file = f"configs/{experiment}_{name}.py"
        flags = settled.get(name, {"config": file})
        values = ConfigDict(flags) if name in settled else script.read_experiment(Experiment(ROOT / file))
        script.change(values, changed[name], f"--{name}.")
        prefix = "" if name in settled else "config."
        flags = flags | {f"{prefix}{part}": value for part, value in changed[name].items()}
        folders = [
            (flag, tokenizer if part == "tokenizer" and tokenizer else workdir / part)
            for part, flag in earlier.items()
        ]
        if name == "export":
            folders += [("trees", workdir / "trees" / "trees.json"), ("out", workdir / name)]
        else:
            folders.append(("workdir", workdir / name))
        commands.append((name, ["-m", module, *(f"--{k}={v}" for k, v in [*flags.items(), *folders])]))
    return commands[1:] if tokenizer else commands


def train(
    experiment: str,
    workdir: str | Path,
    changes: Mapping[tuple[str, str], str] | None = None,
    tokenizer: Path | None = None,
) -> None:
    """Runs what is left of all stages, with changes and a tokenizer as in `stages`.

    Raises:
        LanternError: a stage was done with other values.
        CalledProcessError: a stage fails.
    """
    workdir, tokenizer = Path(workdir).absolute(), tokenizer and tokenizer.absolute()
    environment = {**ALLOCATOR, **os.environ} if sys.platform == "linux" else dict(os.environ)
    commands = stages(experiment, workdir, changes, tokenizer)
    # Of no particular folder: this one may be moved.
    notes = {name: set(words) for name, words in stages(experiment, Path(), changes, tokenizer)}
    busy = f"another process works in {workdir}: wait for it, or name another --workdir"
    with sole(workdir / "demo", busy):
        for name, words in notes.items():
            check_done(workdir, name, words)
        for name, words in commands:
            done = workdir / f"{name}.done"
            if not done.exists():
                print(f"{name}: python {' '.join(words)}", flush=True)
                with timed(workdir, name):
                    run_stage([sys.executable, *words], cwd=ROOT, env=environment)
                forget_readers(workdir, name)
                write_file(done, "\n".join(sorted(notes[name])))
            print(f"{name}: done", flush=True)
        taken = seconds_taken(workdir)
        print(f"seconds: {json.dumps(taken)}, {sum(taken.values()):.0f} in all", flush=True)


def forget_readers(workdir: Path, name: str) -> None:
    """Removes what the stages that read a stage's folder made here: it was made from what was there before."""
    begun = seconds_taken(workdir)
    for later, (_, read) in STAGES.items():
        if name in read:
            (workdir / f"{later}.done").unlink(missing_ok=True)
            folder = workdir / later
            # An export is replaced by the next one; what was not made here, or is behind a link, is the user's.
            if later in begun and later != "export" and folder.is_dir() and not folder.is_symlink():
                print(f"{later}: begins anew, {name} has changed", flush=True)
                shutil.rmtree(folder)


def check_done(workdir: Path, name: str, words: Set[str]) -> None:
    """Raises LanternError if a stage was done with other words; older files are empty and note none."""
    done = workdir / f"{name}.done"
    if not done.exists() or not done.stat().st_size:
        return
    kept = set(read_text(done, 2**16).splitlines())
    if kept != words:
        had, lacked = (" ".join(sorted(part)) for part in (kept - words, words - kept))
        how = f"with {had}" if had else f"without {lacked}"
        raise LanternError(
            f"{name} was done {how}: give the same, remove {done} to go on and begin anew what reads it, or name "
            "another --workdir"
        )


def seconds_taken(workdir: Path) -> dict[str, float]:
    """Reads the seconds that each stage has taken so far. Raises LanternError for a damaged file."""
    path = workdir / SECONDS
    if not path.is_file():
        return {}
    with script.reading(path, "remove it"):
        return {str(name): float(value) for name, value in read_json(path, 2**16).items()}


@contextmanager
def timed(workdir: Path, name: str) -> Iterator[None]:
    """Adds the seconds of a block to a stage's, whether or not the block ends well."""
    taken, since = seconds_taken(workdir), time.monotonic()
    try:
        yield
    finally:
        taken[name] = round(taken.get(name, 0.0) + time.monotonic() - since, 1)
        write_file(workdir / SECONDS, json.dumps(taken, indent=1) + "\n", parents=True)
        print(f"{name}: {taken[name]:.0f} s", flush=True)


def run_stage(command: Sequence[str], **options) -> None:
    """Runs one process, which gets Ctrl-C and SIGTERM from this one only. Raises CalledProcessError if it fails."""
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt:
                process.send_signal(heard())
    if status:
        raise subprocess.CalledProcessError(status, command)


def changes_of(words: Sequence[str]) -> dict[tuple[str, str], str]:
    """Reads --STAGE.NAME=VALUE as {(stage, name): value}. Raises LanternError for anything else."""
    changes = {}
    for word in words:
        name, sign, value = word.partition("=")
        stage, dot, rest = name.removeprefix("--").partition(".")
        if not (name.startswith("--") and sign and dot):
            raise LanternError(f"unrecognized arguments: {word}")
        changes[stage, rest] = value
    return changes


def main(argv: Sequence[str] | None = None) -> None:
    parser = script.make_parser(__doc__)
    add = parser.add_argument
    add("--experiment", choices=tuple(EXPERIMENTS), default="demo", help="tiny runs through all in minutes")
    add("--workdir", type=arguments.working_folder, required=True, help="where the stages work")
    add("--tokenizer", type=arguments.folder, help="checkpoint directory whose tokenizer is taken")
    options, rest = parser.parse_known_args(argv)
    changes = changes_of(rest)
    try:
        train(options.experiment, options.workdir, changes, options.tokenizer)
    except subprocess.CalledProcessError as failed:
        # The stage said why.
        raise SystemExit(failed.returncode if failed.returncode > 0 else 1) from None


if __name__ == "__main__":
    run_script(main)
