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
            "", "{new}", "{tokenizer}", "{tokenizer} {new} more", "{drafter} {new}", "{target} {new}",
            "{tokenizer}:more {new}", "{tokenizer} {new} --config.steps", "{tokenizer} {new} --config.start_from=none",
        ),
        *wrong("{new}", {"config": "none.py empty '' text.txt bad.py none_in_it.py number.py noise.bin"}),
        *wrong("{tokenizer}", {"workdir": "text.txt text.txt/in '' runs[2] other_run damaged_run {long}"}),
        *wrong("{tokenizer} {new}", {
            "steps": "3", "config.step": "3", "config.steps": "many 1.5 '' -1 0", "config.batch_size": "0 100000",
            "config.save_every": "0", "config.keep": "0", "config.rate": "nan inf", "config.warmup": "100000",
            "config.seed": "-1 99999999999999", "config.pictures": "0", "config.held_out": "0", "config.size": "0 31",
            "config.model": "3", "config.model.ch": "0", "config.model.ch_mult": "x '()'", "config.model.more": "3",
            "config.model.mid_attention": "perhaps", "config.loss.pyramid": "x", "config.dtype": "float8",
            "config.loss.pyramid_levels": "6 1000000000", "config.loss.shift": "3 32", "config.critic.fold": "0 8",
            "config.frozen": "('encodr',)",
        }),
    ],
    "train.encode": [
        *calls("{new}", "--tokenizer={demo} --workdir=text.txt"),
        *wrong("{new}", {"tokenizer": "none text.txt empty damaged_run other_run"}),
        *wrong("--tokenizer={demo} {new}", {"pictures": "0 -3 some", "validation": "1e3"}),
    ],
    "train.target": [
        *calls("{target} {new}", "{target} {new} {tokens}", "{tokenizer} {new} {tokens}"),
        *wrong("{target} {new}", {"tokens": "none empty text.txt damaged_tokens"}),
        *wrong("{target} {new} {tokens}", {"config.model.dim": "7", "config.model.num_layers": "0"}),
        *wrong("{target} {tokens}", {"workdir": "text.txt"}),
        *wrong("{target} {new} {tokens}", {"config.validation": "0"}),
    ],
    "train.features": [
        *calls(
            "{new}", "--target=none {new}", "--target=empty {new} {tokens}", "--target=damaged_run {new} {tokens}",
            "--target={demo} {new}", "--target={demo} {new} --prompts=text.txt {tokens}",
            "--target={demo} {new} {tokens} --samples=0 --pictures=0",
        ),
        *wrong("--target={demo} {new}", {
            "folder": "none empty", "prompts": "none.txt empty noise.bin blank.txt nonsense.txt",
            "tokens": "damaged_tokens",
        }),
        *wrong("--target={demo} {new} {tokens}", {
            "taps": "x 2,2 2,9999", "batch_size": "0", "dtype": "float8", "mesh": "data data=999", "seed": "-1",
        }),
    ],
    "train.drafter": [
        *calls("{drafter} {new}", "{drafter} --target={demo} {features} --workdir=text.txt"),
        *wrong("{drafter} {new} --target={demo}", {"features": "none empty features damaged_features"}),
        *wrong("{drafter} {new} {features}", {"target": "empty text.txt"}),
        *wrong("{drafter} {new} --target={demo} {features}", {"mesh": "x", "hosts": "x"}),
    ],
    "train.tree": [
        *calls("{new}", "--target=empty --drafter=empty {new}"),
        *wrong("--target={demo} {new}", {"drafter": "empty damaged_run other_run"}),
        *wrong("--target={demo} --drafter=other_run {new}", {"sizes": "0 a,b", "pictures": "0"}),
    ],
    "train.export": [
        *calls("--out=new", "--drafter=empty", "--drafter=empty --out=text.txt"),
        *calls("--drafter=empty --out=empty --checkpoint={demo} --overwrite"),
        *wrong("--out=new --checkpoint={demo}", {"drafter": "empty other_run damaged_run none"}),
        *wrong("--drafter=empty --out=new", {"checkpoint": "empty", "guidance": "high -1"}),
        *calls("--drafter=empty --out=new --tokenizer=empty --target=empty"),
        *wrong("--drafter=empty --out=new --tokenizer=empty --target=empty", {
            "trees": "text.txt other_run/config.json",
        }),
    ],
    "train.fit": [
        *calls("", "--out=empty", "--out=text.txt"),
        *wrong("--out=new", {
            "checkpoint": "none empty", "drafter": "best", "prompts": "none blank.txt", "pictures": "0",
        }),
    ],
    "train.agreement": [
        *calls("", "--target=none {features}", "--target={demo} {features}"),
        *wrong("--target={demo}", {"features": "empty damaged_features"}),
        *wrong("--target={demo} {features}", {"depths": "0", "guidance": "-1", "drafter": "none"}),
    ],
    "train.classifier": [
        *calls("{tokenizer} {new}", "--workdir=text.txt", "--workdir=other_run"),
        *wrong("{new}", {
            "out": "none/file.npz empty", "tokenizer": "none empty",
            "config.held_out": "1", "config.batch_size": "1000000", "config.size": "0 40 100", "config.warmup": "900",
        }),
    ],
    "train.evaluate": wrong("", {"checkpoint": "none empty", "classifier": "none text.txt", "pictures": "1 x"}),
    "train.demo": [
        *calls("", "--workdir=text.txt", "{new} --experiment=huge", "{new} more", "{new} --steps=3"),
        *wrong("{new}", {
            "owl.steps": "3", "target.stepz": "3", "target.steps": "many -1", "tokens.pictures": "x -3",
            "tokens.tokenizer": "empty", "target.": "3", ".steps": "3", "target": "3", "target.model": "3",
        }),
    ],
    "eval.methods": [
        *calls("", "--work=text.txt"),
        *wrong("--work=new", {
            "methods": "best led:speed=3", "model": "none empty", "pictures": "0", "batch": "-1", "seed": "-1",
            "dtype": "float8", "replicates": "0", "minutes": "-1 soon", "out": "none/rows.jsonl", "plot": "empty",
        }),
    ],
    "eval.refill": [
        *calls("--model={demo} --method=best"),
        *wrong("", {"model": "none", "pictures": "0", "repeats": "0", "out": "empty"}),
    ],
    "eval.never_slower": wrong("", {
        "model": "empty", "size": "huge", "tuned": "none text.txt", "batches": "0 x", "minutes": "0", "out": "empty",
    }),
    "eval.passes": wrong("", {
        "model": "empty", "methods": "x ar:x=1", "pictures": "0 1 x", "batch": "0", "seed": "-1",
    }),
    "eval.gallery": [*wrong("", {"docs": "none empty text.txt"}), *calls("more")],
    "eval.sheets": [
        *wrong("", {"model": "none empty", "classifier": "none text.txt", "seed": "-1 x", "out": "text.txt"}),
        *calls("more"),
    ],
    "eval.results": [*wrong("", {"docs": "none empty text.txt"}), *calls("--check more")],
    "eval.accelerator": wrong("", {
        "minutes": "0", "sizes": "huge ''", "batch": "0 x", "passes": "0", "accept-lengths": "x", "dtype": "int3",
        "out": "none/file.json",
    }),
    "eval.peers": [
        *calls("--only lantern++", "--only=ours --llamagen=empty --lantern", "more"),
        *wrong("", {
            "llamagen": "none empty text.txt", "lantern": "none empty", "size": "huge", "batch": "0 x", "rounds": "0 2",
            "repeats": "0", "only": "owl llamagen", "accept-lengths": "x 9", "window-lengths": "x", "guidance": "1 nan",
            "top-k": "-1 99999", "dtype": "int3", "out": "none/file.json empty",
        }),
    ],
    "eval.ahead.__main__": [
        *calls("", "--for=v5e:4x4 --mesh=data=3,model=4"),
        *wrong("", {"for": "v9 v5e:3x3 h100:9"}),
        *wrong("--for=v5e", {
            "mesh": "rows=2", "against": "none text.txt", "json": "none/rows.json", "methods": "owl", "batch": "x",
        }),
    ],
    "eval.floors": wrong("", {"sizes": "owl", "devices": "v9"}),
    "eval.decoding": wrong("", {"pictures": "3", "out": "none/file.json empty"}),
    "eval.serve_load": wrong("", {"model": "none", "requests": "0", "connections": "0", "port": "99999"}),
    "eval.side_by_side": [*calls("", "--old=empty --restarts=0"), *wrong("", {"old": "none text.txt"})],
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
