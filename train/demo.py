"""Retrain the whole demo with one command.

    python -m train.demo --workdir DIR [--experiment=demo|tiny]

Runs, one process after the other: the tokenizer, the encoding of the target's pictures, the target, the
extraction of features, the drafter, the growing of draft trees and the export into DIR/export. Stages that are
done are skipped and a killed one goes on from its last checkpoint, so the same command always continues.
"""

import os
import subprocess
import sys
from pathlib import Path

from absl import app, flags

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
    """(name, arguments of Python) of every stage, in order.

    Raises ValueError for an unknown experiment.
    """
    if experiment not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {experiment!r}: choose one of {', '.join(EXPERIMENTS)}")
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
    """Run what is left of all stages; raises CalledProcessError where one fails."""
    workdir = Path(workdir).absolute()
    workdir.mkdir(parents=True, exist_ok=True)
    environment = {**ALLOCATOR, **os.environ} if sys.platform == "linux" else dict(os.environ)
    for name, arguments in stages(experiment, workdir):
        done = workdir / f"{name}.done"
        if done.exists():
            print(f"{name}: done", flush=True)
            continue
        print(f"{name}: python {' '.join(arguments)}", flush=True)
        subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True)
        done.touch()


def main(_: list[str]) -> None:
    train(flags.FLAGS.experiment, flags.FLAGS.workdir)


if __name__ == "__main__":
    flags.DEFINE_enum("experiment", "demo", list(EXPERIMENTS), "tiny runs through everything in minutes")
    flags.DEFINE_string("workdir", None, "where the stages work")
    flags.mark_flags_as_required(["workdir"])
    app.run(main)
