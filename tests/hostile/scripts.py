"""Wrong inputs for the training and evaluation scripts, and the folder of useless things that they name."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lantern_jax.checkpoints.store import model_directory

ROOT = Path(__file__).parents[2]
DEMO = str(model_directory("demo"))
# Short names for longer words below.
WORDS = {
    **{kind: f"--config={ROOT}/configs/tiny_{kind}.py" for kind in ("tokenizer", "target", "drafter")},
    "demo": DEMO, "new": "--workdir=new/folder",
    "tokens": "--tokens=tokens", "features": "--features=features", "long": "a" * 5000,
}  # fmt: skip


def calls(*lines: str) -> list[list[str]]:
    return [[word.format(**WORDS) for word in shlex.split(line)] for line in lines]


def wrong(line: str, values: Mapping[str, str]) -> list[list[str]]:
    """Returns a line with each of an option's values, for each option."""
    given = [(option, value) for option, several in values.items() for value in shlex.split(several)]
    quoted = [shlex.quote(f"--{option}={value}") for option, value in given]
    return [words for more in quoted for words in calls(f"{line} {more}")]


# A script and what it is called with; folders and files are those of ``litter``.
WRONG = {
    "train.tokenizer": [
        *calls(
            "", "{new}", "{tokenizer} {new} more", "{target} {new}", "{tokenizer}:more {new}",
            "{tokenizer} {new} --config.start_from=none",
        ),
        *wrong("{new}", {"config": "none.py text.txt bad.py none_in_it.py number.py"}),
        *wrong("{tokenizer}", {"workdir": "text.txt other_run damaged_run {long}"}),
        *wrong("{tokenizer} {new}", {
            "steps": "3", "config.step": "3", "config.steps": "many -1", "config.batch_size": "0 100000",
            "config.rate": "nan", "config.seed": "-1", "config.size": "31", "config.model": "3",
            "config.model.ch_mult": "'()'", "config.loss.pyramid_levels": "1000000000", "config.dtype": "float8",
            "config.critic.fold": "8", "config.frozen": "('encodr',)",
        }),
    ],
    "train.encode": [
        *calls("{new}", "--tokenizer={demo} --workdir=text.txt"), *wrong("{new}", {"tokenizer": "none damaged_run"}),
        *wrong("--tokenizer={demo} {new}", {"pictures": "0 some", "validation": "1e3"}),
    ],
    "train.target": [
        *calls("{target} {new}", "{target} {new} {tokens}", "{tokenizer} {new} {tokens}"),
        *wrong("{target} {new}", {"tokens": "none damaged_tokens"}),
        *wrong("{target} {new} {tokens}", {"config.model.dim": "7", "config.validation": "0"}),
    ],
    "train.features": [
        *calls("{new}", "--target=damaged_run {new} {tokens}", "--target={demo} {new}"),
        *wrong("--target={demo} {new}", {"folder": "empty", "prompts": "none.txt noise.bin nonsense.txt"}),
        *wrong("--target={demo} {new} {tokens}", {"taps": "x 2,9999", "batch_size": "0", "mesh": "data"}),
    ],
    "train.drafter": [
        *calls("{drafter} {new}"), *wrong("{drafter} {new} --target={demo}", {"features": "none damaged_features"}),
        *wrong("{drafter} {new} {features}", {"target": "empty text.txt"}),
        *wrong("{drafter} {new} --target={demo} {features}", {"mesh": "x", "hosts": "x"}),
    ],
    "train.tree": [
        *calls("{new}", "--target=empty --drafter=empty {new}"),
        *wrong("--target={demo} {new}", {"drafter": "other_run"}),
        *wrong("--target={demo} --drafter=other_run {new}", {"sizes": "a,b", "pictures": "0"}),
    ],
    "train.export": [
        *calls("--out=new", "--drafter=empty --out=new --tokenizer=empty --target=empty"),
        *wrong("--out=new --checkpoint={demo}", {"drafter": "damaged_run none"}),
        *wrong("--drafter=empty --out=new", {"checkpoint": "empty", "guidance": "high"}),
    ],
    "train.fit": [
        *calls("", "--out=empty"), *wrong("--out=new", {"checkpoint": "none", "drafter": "best"}),
    ],
    "train.agreement": [
        *calls("", "--target={demo} {features}"), *wrong("--target={demo}", {"features": "damaged_features"}),
        *wrong("--target={demo} {features}", {"depths": "0", "guidance": "-1", "drafter": "none"}),
    ],
    "train.classifier": [
        *calls("{tokenizer} {new}", "--workdir=other_run"),
        *wrong("{new}", {"out": "none/file.npz", "tokenizer": "empty", "config.held_out": "1", "config.size": "40"}),
    ],
    "train.evaluate": wrong("", {"checkpoint": "none", "classifier": "text.txt", "pictures": "1 x"}),
    "train.demo": [
        *calls("", "--workdir=text.txt", "{new} --experiment=huge", "{new} more", "{new} --steps=3"),
        *wrong("{new}", {"owl.steps": "3", "target.stepz": "3", "target.steps": "many", "tokens.tokenizer": "empty"}),
        *wrong("{new}", {"tokenizer": "none"}),
    ],
    "eval.trained": [
        *calls("", "--work=new {tokens} more"), *wrong("--work=new", {"tokens": "none damaged_tokens"}),
        *wrong("--work=new {tokens}", {
            "size": "huge", "pictures": "1", "owl.steps": "3", "target.stepz": "3", "drafter.steps": "many",
        }),
    ],
    "eval.methods": [
        *calls("", "--work=text.txt"),
        *wrong("--work=new", {"methods": "led:speed=3", "model": "none", "pictures": "0", "out": "none/rows.jsonl"}),
    ],
    "eval.refill": [*calls("--model={demo} --method=best"), *wrong("", {"model": "none", "pictures": "0"})],
    "eval.never_slower": wrong("", {"model": "empty", "size": "huge", "tuned": "text.txt", "batches": "x"}),
    "eval.passes": wrong("", {"model": "empty", "methods": "ar:x=1", "pictures": "1", "batch": "0"}),
    "eval.gallery": [*wrong("", {"docs": "none text.txt"}), *calls("more")],
    "eval.sheets": [*wrong("", {"model": "none", "seed": "x", "out": "text.txt"}), *calls("more")],
    "eval.results": [*wrong("", {"docs": "none text.txt"}), *calls("--check more")],
    "eval.accelerator": wrong("", {"minutes": "0", "sizes": "huge", "batch": "x", "out": "none/file.json"}),
    "eval.peers": [
        *calls("--only lantern++", "more"),
        *wrong("", {"llamagen": "none", "size": "huge", "batch": "0", "only": "owl", "accept-lengths": "9"}),
    ],
    "eval.ahead.__main__": [
        *calls("", "--for=v5e:4x4 --mesh=data=3,model=4"), *wrong("", {"for": "v9 v5e:3x3"}),
        *wrong("--for=v5e", {"mesh": "rows=2", "against": "text.txt", "methods": "owl"}),
    ],
    "eval.floors": wrong("", {"sizes": "owl", "devices": "v9"}),
    "eval.decoding": wrong("", {"pictures": "3", "out": "none/file.json"}),
    "eval.serve_load": wrong("", {"model": "none", "requests": "0", "port": "99999"}),
    "eval.side_by_side": [*calls("", "--old=empty --restarts=0"), *wrong("", {"old": "text.txt"})],
}  # fmt: skip


def litter() -> None:
    """Fills the current folder with things that scripts cannot use."""
    for name in ("empty", "damaged_tokens", "tokens", "features", "damaged_features"):
        Path(name).mkdir()
    for run_folder in ("other_run", "damaged_run"):
        Path(run_folder, "checkpoints", "step_000010").mkdir(parents=True)
    Path("other_run", "config.json").write_text(json.dumps({"size": 64, "model": {"dim": 3}, "seed": 7}))
    Path("damaged_run", "config.json").write_bytes(b'{"size": \xff')
    Path("text.txt").write_text("a lake\n")
    Path("nonsense.txt").write_text("xyzzy plugh\n")
    Path("blank.txt").write_text("\n\n")
    Path("noise.bin").write_bytes(bytes(range(256)))
    Path("bad.py").write_text("def get_config(:\n")
    Path("none_in_it.py").write_text("steps = 3\n")
    Path("number.py").write_text("def get_config():\n    return 3\n")
    for folder in ("damaged_tokens", "tokens"):
        for name in ("train", "validation"):
            Path(folder, f"{name}.npz").write_bytes(b"PK\x03\x04 and no more")
    for name in ("train", "validation"):
        content = {"tokens": np.full((3, 5), 9, np.int16), "attributes": np.zeros((3, 2), int)}
        np.savez(Path("tokens", f"{name}.npz"), **content)
    for name in ("features", "prefix", "tokens"):
        Path("damaged_features", f"{name}_00000.npy").write_bytes(b"\x93NUMPY\x01\x00")
        np.save(Path("features", f"{name}_00000.npy"), np.zeros((1, 2, 3, 4), np.float16))


def is_quick(words: list[str]) -> bool:
    return not any(DEMO in word for word in words)
