"""Retrain the whole demo with one command.

    python -m train.demo --workdir DIR [--experiment=demo|tiny]

Runs, one process after the other: the tokenizer, the encoding of the target's pictures, the target, the
extraction of features, the drafter, the growing of draft trees and the export into DIR/export. Finished stages are
skipped and a killed one continues from its last checkpoint, so the same command always continues.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lantern_jax.commands import arguments
from lantern_jax.commands.command_line import Parser, run_script
from lantern_jax.io import errors
from lantern_jax.io.locks import sole
from train.signals import heard

ROOT = Path(__file__).parents[1]

# How many pictures each stage works on, as flags of its script.
EXPERIMENTS = {
    "demo": {
        "tokens": {"pictures": 24576, "validation": 512},
        "features": {"pictures": 1024, "samples": 256},
        "trees": {"pictures": 64},
    },
    "tiny": {
        "tokens": {"pictures": 512, "validation": 32},
        "features": {"pictures": 64, "samples": 64},
        "trees": {"pictures": 16},
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


def stages(experiment: str, workdir: Path) -> list[tuple[str, list[str]]]:
    """Returns (name, arguments of Python) of every stage, in order. Raises LanternError for an unknown experiment."""
    if experiment not in EXPERIMENTS:
        raise errors.unknown("experiment", experiment, EXPERIMENTS)
    count = EXPERIMENTS[experiment]
    names = ("tokenizer", "tokens", "target", "features", "drafter", "trees")
    tokenizer, tokens, target, features, drafter, trees = ({name: workdir / name} for name in names)

    def config(model: str) -> dict[str, str]:
        return {"config": f"configs/{experiment}_{model}.py"}

    modules = {
        "tokenizer": ("train.tokenizer", config("tokenizer")),
        "tokens": ("train.encode", tokenizer | count["tokens"]),
        "target": ("train.target", config("target") | tokens),
        "features": ("train.features", target | tokens | count["features"]),
        "drafter": ("train.drafter", config("drafter") | target | features),
        "trees": ("train.tree", target | drafter | count["trees"]),
    }
    commands = [
        (name, module, flags_ | {"workdir": workdir / name}) for name, (module, flags_) in modules.items()
    ]
    result = {
        "trees": trees["trees"] / "trees.json",
        "card": "lantern_jax/assets/demo/README.md",
        "out": workdir / "export",
    }
    commands.append(("export", "train.export", tokenizer | target | drafter | result))
    return [
        (name, ["-m", module, *(f"--{flag}={value}" for flag, value in flags_.items())])
        for name, module, flags_ in commands
    ]


def train(experiment: str, workdir: str | Path) -> None:
    """Runs what is left of all stages. Raises CalledProcessError if one fails."""
    workdir = Path(workdir).absolute()
    environment = {**ALLOCATOR, **os.environ} if sys.platform == "linux" else dict(os.environ)
    busy = f"another process works in {workdir}: wait for it, or name another --workdir"
    with sole(workdir / "demo", busy):
        for name, words in stages(experiment, workdir):
            done = workdir / f"{name}.done"
            if done.exists():
                print(f"{name}: done", flush=True)
                continue
            print(f"{name}: python {' '.join(words)}", flush=True)
            run_stage([sys.executable, *words], cwd=ROOT, env=environment)
            done.touch()


def run_stage(command: Sequence[str], **options) -> None:
    """Runs one process, which hears of Ctrl-C and SIGTERM from this one only. Raises CalledProcessError if it fails."""
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt:
                process.send_signal(heard())
    if status:
        raise subprocess.CalledProcessError(status, command)


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--experiment", choices=tuple(EXPERIMENTS), default="demo", help="tiny runs through all in minutes")
    add("--workdir", type=arguments.working_folder, required=True, help="where the stages work")
    options = parser.parse_args(argv)
    try:
        train(options.experiment, options.workdir)
    except subprocess.CalledProcessError as failed:
        # The stage said why.
        raise SystemExit(failed.returncode if failed.returncode > 0 else 1) from None


if __name__ == "__main__":
    run_script(main)
